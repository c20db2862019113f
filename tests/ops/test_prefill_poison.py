"""What prefill must not see, memory that is no key of a sequence; and what it must not hide, NaN in what it sees.

The poison is NaN. K and V of every test lie between NaN tokens (``prefill_cases.between_nans``); here also sequences
lie between poisoned ones.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.ops import marks
from tests.ops.prefill_cases import Case, Result, check, check_same_bits, make_case

NAN = float("nan")
#: Key counts with tails in a tile, on it, and past a fold; each between stretches of NaN.
TAILS = [1, 7, 64, 127, 128, 129, 200, 4096 + 5]


def with_gaps(case: Case, gap: int) -> Case:
    """The batch with ``gap`` NaN keys of no query behind each sequence."""
    assert case.lengths is not None
    lengths: list[tuple[int, int]] = []
    parts: dict[str, list[Tensor]] = {"k": [], "v": []}
    first = 0
    for pair in case.lengths:
        lengths += [pair, (0, gap)]
        for name, tensor in (("k", case.k), ("v", case.v)):
            nans = torch.full((gap, *tensor.shape[1:]), NAN, dtype=tensor.dtype, device=tensor.device)
            parts[name] += [tensor[first : first + pair[1]], nans]
        first += pair[1]
    spoilt = Case(case.q, torch.cat(parts["k"]), torch.cat(parts["v"]), lengths, case.causal)
    first = 0
    for queries, keys in lengths:
        if queries == 0:
            marks.tainted(spoilt.k[first : first + keys], spoilt.v[first : first + keys])
        first += keys
    return spoilt


@pytest.mark.memcheck
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_keys_of_nobody_reach_nothing(device: torch.device, head_dim: int, causal: bool) -> None:
    lengths = [(min(keys, 5), keys) for keys in TAILS[: 8 if head_dim == 64 else 7]]
    case = make_case(lengths, group=3, head_dim=head_dim, causal=causal, device=device)
    result = check(with_gaps(case, 150))
    assert bool(result.out.isfinite().all())


def test_a_neighbour_full_of_nan(device: torch.device) -> None:
    """The bits of a sequence do not depend on what its neighbours hold."""
    case = make_case([(10, 100), (30, 130), (7, 300)], head_dim=64, device=device)
    clean = case.run()
    q, k, v = case.q.clone(), case.k.clone(), case.v.clone()
    for tensor, first, last in ((q, 10, 40), (k, 100, 230), (v, 100, 230)):
        tensor[first:last] = NAN
    spoilt = case.but(q=q, k=k, v=v).run()
    assert bool(spoilt.out[10:40].isnan().all())
    others = [*range(10), *range(40, 47)]
    check_same_bits(Result(*(t[others] for t in spoilt)), Result(*(t[others] for t in clean)))


def test_contents_of_the_workspace_do_not_matter(device: torch.device) -> None:
    case = make_case((50, 1100), head_dim=64, device=device)
    results = []
    for byte in (0x00, 0xFF, 0x7F, 0x55):
        results.append(case.run(workspace=case.plan().new_workspace().fill_(byte)))
    for result in results[1:]:
        check_same_bits(result, results[0])


def test_a_workspace_that_another_shape_left_behind(device: torch.device) -> None:
    large = make_case((70, 2000), head_dim=128, device=device)
    small = make_case((50, 700), group=3, kv_heads=2, head_dim=64, device=device, seed=1)
    alone = small.run()
    workspace = large.plan().new_workspace()
    assert workspace.numel() >= small.plan().workspace_bytes
    large.run(workspace=workspace)
    check_same_bits(small.run(workspace=workspace), alone)


#: (tensor, token): in the first tile, at its ends, in the middle, at the last key, which only the last query sees.
PLACES = [("k", 0), ("v", 0), ("k", 127), ("v", 128), ("k", 300), ("v", 511), ("k", 519), ("v", 519)]


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
@pytest.mark.parametrize("head_dim,group", [(256, 6), (64, 3)])
def test_a_nan_or_infinity_in_k_or_v_shows(device: torch.device, head_dim: int, group: int, bad: float) -> None:
    """NaN in every row that sees the key: from K in all dimensions, from V in its own. Other KV heads are as before."""
    case = make_case((30, 520), group=group, kv_heads=2, head_dim=head_dim, device=device)
    clean = case.run()
    for number, (name, token) in enumerate(PLACES):
        head, dimension = number // 2 % 2, (37 * number + 5) % head_dim
        tensor = getattr(case, name).clone()
        tensor[token, head, dimension] = bad
        spoilt = case.but(**{name: tensor}).run()
        sees = 520 - 30 + torch.arange(30) >= token
        hit = spoilt.out[sees.to(device)][:, head * group : (head + 1) * group]
        if name == "v":
            hit = hit[..., dimension]
            assert not bool(hit.isfinite().any()), f"{bad} in {name}[{token}] was lost"
        else:
            assert bool(hit.isnan().all()), f"{bad} in {name}[{token}] was lost"
        others = slice((1 - head) * group, (2 - head) * group)
        check_same_bits(Result(*(t[:, others] for t in spoilt)), Result(*(t[:, others] for t in clean)), name)


@pytest.mark.parametrize("name", ["k", "v", "q"])
def test_every_place_of_a_tile_shows_its_nan(device: torch.device, name: str) -> None:
    """Scores that are not finite are found beside the arithmetic: no lane, row or column may be left out.

    A sequence a place: 130 of them, each with a NaN at another key or query.
    """
    places = 130
    lengths = [(places, places)] * places if name == "q" else [(1, places)] * places
    case = make_case(lengths, group=1, head_dim=64, causal=False, device=device)
    tensor = getattr(case, name).clone()
    index = torch.arange(places, device=device)
    tensor[places * index + index, 0, index * 29 % 64] = NAN
    spoilt = case.but(**{name: tensor}).run()
    if name == "v":
        assert bool(spoilt.out[index, 0, index * 29 % 64].isnan().all())
        assert int(spoilt.out.isnan().sum()) == places
    elif name == "k":
        assert bool(spoilt.out.isnan().all()) and bool(spoilt.lse.isnan().all())
    else:
        assert bool(spoilt.out[places * index + index].isnan().all())


@pytest.mark.parametrize("bad", [NAN, math.inf])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_a_nan_or_infinity_in_q_shows(device: torch.device, head_dim: int, bad: float) -> None:
    """In its own row; rows of other tiles are as before."""
    case = make_case((70, 300), head_dim=head_dim, device=device)
    clean = case.run()
    for query, head in ((0, 0), (20, 5), (69, 3)):
        q = case.q.clone()
        q[query, head, 7 * query % head_dim] = bad
        spoilt = case.but(q=q).run()
        assert bool(spoilt.out[query, head].isnan().all()) and bool(spoilt.lse[query, head].isnan())
        tile = (query * 6 + head) // 128
        packed = torch.arange(70 * 6, device=device).view(70, 6) // 128
        others = packed != tile
        check_same_bits(Result(*(t[others] for t in spoilt)), Result(*(t[others] for t in clean)))


def test_a_nan_of_a_folded_or_split_tile_shows(device: torch.device) -> None:
    """Past a fold, and in one part of the keys only."""
    case = make_case((3, 9000), group=2, head_dim=64, device=device)
    for name, token in (("k", 10), ("v", 10), ("k", 4500), ("v", 4500), ("k", 8990)):
        tensor = getattr(case, name).clone()
        tensor[token] = NAN
        assert bool(case.but(**{name: tensor}).run().out.isnan().all()), f"NaN in {name}[{token}] was lost"


def test_an_infinite_result_is_infinite(device: torch.device) -> None:
    """V near the largest half, rounded up by no more than its own spacing, stays what it is."""
    case = make_case((3, 200), head_dim=64, device=device)
    for value in (65504.0, -65504.0):
        assert bool((case.but(v=torch.full_like(case.v, value)).run().out == value).all())
