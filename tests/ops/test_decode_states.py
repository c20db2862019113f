"""States of decode: the lse that comes with an output, and merging results over parts of the keys."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.attention import states
from tests.ops.decode_cases import FORMATS, VARIANTS, Case, Result, check_accuracy, check_same_bits, make_case

CPU = torch.device("cpu")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_lse_of_equal_scores_is_the_logarithm_of_their_number(device: torch.device, variant: str) -> None:
    lengths = [1, 2, 127, 128, 129, 1000, 6000]
    case = make_case(lengths, head_dim=64, group=2, device=device)
    result = case.but(softmax_scale=1e-30).run(variant)
    for row, length in enumerate(lengths):
        error = float((result.lse[row] - math.log(length)).abs().max())
        assert error <= 2.0**-22 * max(1.0, math.log(length)), f"{length} keys: {error}"


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_out_does_not_depend_on_asking_for_lse(device: torch.device, variant: str) -> None:
    case = make_case([5000, 0, 30], head_dim=64, device=device)
    expected = case.run(variant)
    out = case.new_result().out
    case.plan(variant).run(case.q, *case.caches, case.block_table, case.seq_lens, out=out)
    assert torch.equal(out, expected.out)


def part(case: Case, first: int, last: int) -> Case:
    """Tokens ``first`` (a multiple of the page) to ``last`` of every row."""
    page = case.key_cache.shape[1]
    lengths = (case.seq_lens - first).clamp(0, last - first)
    table = case.block_table[:, first // page :].contiguous()
    return case.but(block_table=table, seq_lens=lengths.to(torch.int32))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("cuts", [[800], [16, 2400], [48, 96, 144, 3200]])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_parts_of_a_context_merge_into_the_whole(
    device: torch.device, kv_format: str, variant: str, cuts: list[int]
) -> None:
    """Every part rounds its output to FP16, and the merge once more: their errors add like the floor's, as squares."""
    case = make_case([4000, 801, 0, 17], page=16, head_dim=64, kv_heads=2, kv_format=kv_format, device=device)
    whole = case.exact()
    bounds = [0, *cuts, 4000]
    parts = [part(case, first, last).run(variant) for first, last in itertools.pairwise(bounds)]
    out, lse = states.merge_states([p.out for p in parts], [p.lse for p in parts])
    floor = reference.fp16_rounding_floor(whole.out)
    # A part of n_i of n keys has values of size 1 / sqrt(n_i) and weight n_i / n: the squares of the parts' errors, in
    # the whole, add up to that of one rounding of the whole.
    assert reference.relative_l2(out, whole.out) <= math.sqrt(2.0) * 1.04 * floor + 2e-6
    check_accuracy(Result(case.run(variant).out, lse), whole)


def some_states(parts: int, shape: tuple[int, ...], seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    outs = torch.randn(parts, *shape, generator=generator).half()
    return outs, torch.randn(parts, *shape[:-1], generator=generator) * 3


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_merge_is_the_reference_rounded(parts: int) -> None:
    outs, lses = some_states(parts, (7, 6, 32))
    out, lse = states.merge_states(outs, lses)
    exact = reference.merge_states(outs, lses)
    assert reference.relative_l2(out, exact[0]) <= 1.001 * reference.fp16_rounding_floor(exact[0]) + 2e-7
    assert reference.max_abs_error(lse, exact[1]) <= 2.0**-22 * (1.0 + float(lses.abs().max()))
    assert out.dtype == torch.float16 and lse.dtype == torch.float32


def test_merging_one_part_changes_nothing() -> None:
    outs, lses = some_states(1, (4, 3, 16))
    out, lse = states.merge_states(outs, lses)
    check_same_bits(Result(out, lse), Result(outs[0], lses[0]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_the_dtype_of_outs_is_kept(dtype: torch.dtype) -> None:
    outs, lses = some_states(2, (4, 16))
    assert states.merge_states(outs.to(dtype), lses)[0].dtype == dtype


def test_merging_in_steps_is_merging_at_once() -> None:
    outs, lses = some_states(3, (9, 32), seed=2)
    outs = outs.float()
    first = states.merge_states(outs[:2], lses[:2])
    stepwise = states.merge_states([first[0], outs[2]], [first[1], lses[2]])
    at_once = states.merge_states(outs, lses)
    for got, want in zip(stepwise, at_once, strict=True):
        assert reference.relative_l2(got, want) < 4 * 2.0**-24


def test_empty_parts_are_not_looked_at() -> None:
    outs, lses = some_states(3, (5, 16))
    outs[1], lses[1] = math.nan, -math.inf
    out, lse = states.merge_states(outs, lses)
    expected = states.merge_states(outs[[0, 2]], lses[[0, 2]])
    check_same_bits(Result(out, lse), Result(*expected))


def test_nothing_but_empty_parts_is_zeros() -> None:
    outs = torch.full((2, 3, 8), math.nan, dtype=torch.float16)
    out, lse = states.merge_states(outs, torch.full((2, 3), -math.inf))
    assert not out.view(torch.int16).any() and bool((lse == -math.inf).all())


def test_lses_far_apart_and_large_do_not_overflow() -> None:
    outs, _ = some_states(2, (4, 8))
    lses = torch.tensor([[1e5, -1e5, 0.0, 300.0], [1e5, 1e5, -400.0, 300.0]])
    out, lse = states.merge_states(outs, lses)
    exact = reference.merge_states(outs, lses)
    assert bool(out.isfinite().all()) and bool(lse.isfinite().all())
    assert torch.equal(out[1], outs[1, 1]) and torch.equal(out[2], outs[0, 2])
    assert reference.max_abs_error(lse, exact[1]) <= 2.0**-20 * 1e5


def test_a_nan_stays_in_its_rows() -> None:
    outs, lses = some_states(2, (4, 8))
    outs[0, 1, 3], lses[1, 2] = math.nan, math.nan
    out, lse = states.merge_states(outs, lses)
    wrong = out.isnan()
    assert bool(wrong[1, 3]) and bool(wrong[2].all()) and int(wrong.sum()) == 9
    assert bool(lse[2].isnan()) and int(lse.isnan().sum()) == 1


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "no parts": ([], [], "'lses': got 0 parts beside 0 of outs"),
    "fewer lses": (torch.zeros(2, 3, 8), torch.zeros(1, 3), "'lses': got 1 parts beside 2 of outs"),
    "two shapes": ([torch.zeros(3, 8), torch.zeros(4, 8)], [torch.zeros(3)] * 2, "'outs': part 1 is .*shape of part 0"),
    "two dtypes": ([torch.zeros(3, 8), torch.zeros(3, 8).half()], [torch.zeros(3)] * 2, "'outs': part 1 is torch.fl"),
    "integers": (torch.zeros(1, 3, 8, dtype=torch.int32), torch.zeros(1, 3), "'outs': part 0 is torch.int32"),
    "lse of FP16": (torch.zeros(1, 3, 8), torch.zeros(1, 3).half(), "'lses': part 0 is torch.float16"),
    "lse of another shape": (torch.zeros(1, 3, 8), torch.zeros(1, 3, 1), r"'lses': part 0 is .*want .*\[3\]"),
}


@pytest.mark.parametrize("outs,lses,message", REFUSED.values(), ids=REFUSED.keys())
def test_merge_refuses(outs: Any, lses: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        states.merge_states(outs, lses)
