"""prefill at every kind of length: tiny, off the tile, past a fold, past 16 bits, the longest; against float64."""

from __future__ import annotations

import pytest
import torch

from tests.ops.prefill_cases import FOLD, TILE, check, check_same_bits, check_sampled, make_case


def off(*multiples: int) -> list[int]:
    """Lengths on both sides of these."""
    return [multiple + step for multiple in multiples for step in (-1, 0, 1)]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("queries,keys", [(1, 1), (2, 3), (63, 64), (64, 96)])
def test_small_shapes(device: torch.device, queries: int, keys: int, head_dim: int) -> None:
    for causal in (True, False):
        case = make_case((queries, keys), head_dim=head_dim, causal=causal, device=device, seed=queries)
        result = check(case, what=f"causal {causal}")
        if keys == 1:  # one key has weight 1: V itself
            assert torch.equal(result.out, case.v.expand(1, 6, head_dim))


@pytest.mark.usefixtures("unwatched")
def test_every_length_up_to_two_tiles_and_one_more(device: torch.device) -> None:
    """One ragged batch of all lengths; as many queries as keys on both sides of a tile."""
    whole = {1, 2, 3, *off(16, 64, TILE), 2 * TILE + 1}
    lengths = [(keys if keys in whole else min(keys, 1 + keys % 5), keys) for keys in range(1, 2 * TILE + 2)]
    check(make_case(lengths, group=1, head_dim=64, device=device))


def test_lengths_without_a_causal_mask(device: torch.device) -> None:
    lengths = [(1 + keys % 5, keys) for keys in (*range(1, 20), *off(32, 64, TILE, 2 * TILE))]
    check(make_case(lengths, group=1, head_dim=64, causal=False, device=device))


def test_queries_around_tiles_of_packed_rows(device: torch.device) -> None:
    """6 heads a query: 21 queries and 2 rows fill a tile, 64 queries three tiles."""
    lengths = [(queries, queries + 3) for queries in (20, 21, 22, 42, 43, 63, 64, 65)]
    check(make_case(lengths, head_dim=64, device=device))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("head_dim,group", [(256, 6), (64, 16)])
def test_65_queries_of_4130_keys(device: torch.device, head_dim: int, group: int) -> None:
    check(make_case((65, 4130), head_dim=head_dim, group=group, device=device))


@pytest.mark.usefixtures("unwatched")
def test_keys_around_folds_of_the_output(device: torch.device) -> None:
    """Folded after 32 tiles, and again; parts of a tile that several blocks share fold on their own."""
    lengths = [(3, keys) for keys in (*off(FOLD, FOLD + TILE), *off(2 * FOLD, 3 * FOLD))]
    check(make_case(lengths, head_dim=64, device=device))


@pytest.mark.usefixtures("unwatched")
def test_lengths_around_powers_of_two_that_overflow_16_bits(device: torch.device) -> None:
    check(make_case([(2, keys) for keys in (*off(32768), 65537)], group=4, head_dim=64, device=device))


@pytest.mark.parametrize("queries,keys", [(2925, 2925), (4096, 4130)])
def test_lengths_that_are_no_multiples(device: torch.device, queries: int, keys: int) -> None:
    check_sampled(make_case((queries, keys), device=device), blocks=6, rows=24)


@pytest.mark.parametrize("queries", [8000, 8192])
@pytest.mark.parametrize("keys", [128000, 131072, 256000])
def test_long_prefixes(cuda_device: torch.device, queries: int, keys: int) -> None:
    check_sampled(make_case((queries, keys), device=cuda_device), blocks=0, rows=64)


@pytest.mark.timeout(600)
def test_the_longest(device: torch.device) -> None:
    """Rounding and truncation do not pile up along 256K keys."""
    check_sampled(make_case((8192, 262144), device=device), blocks=1, rows=6)


@pytest.mark.parametrize("keys", [0, 1, 300])
def test_no_queries(device: torch.device, keys: int) -> None:
    result = make_case((0, keys), head_dim=64, device=device).run()
    assert result.out.shape == (0, 6, 64)


def test_queries_without_keys_are_zeros(device: torch.device) -> None:
    result = check(make_case((50, 0), head_dim=64, causal=False, device=device))
    assert not result.out.view(torch.int16).any() and bool((result.lse == -torch.inf).all())


def test_one_sequence_is_a_ragged_batch_of_one(device: torch.device) -> None:
    case = make_case((40, 300), device=device)
    check_same_bits(case.but(lengths=[(40, 300)]).run(), case.run())
