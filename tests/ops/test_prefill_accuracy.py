"""The numbers of prefill: what no data may do to them, and what an output owes to each key."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch

from sm70_kernels import reference
from sm70_kernels.attention.states import merge_states
from sm70_kernels.lab import emulator
from tests.ops.prefill_cases import (
    FOLD,
    SCORE_ERROR,
    SMALLEST_WEIGHT,
    TILE,
    WEIGHT_ERROR,
    Case,
    Result,
    check,
    check_accuracy,
    check_same_bits,
    make_case,
)


@pytest.mark.parametrize("tensor_rounding", ["truncate", "nearest"])
def test_volta_truncation_costs_nothing(tensor_rounding: Any) -> None:
    """Truncating tensor cores, Volta's, and rounding ones, later GPUs': the same contract. One block, two folds."""
    case = make_case((5, 9000), group=16, head_dim=128, device=torch.device("cpu"))
    case = case.but(v=case.v + 1.0)  # sums of one sign, which truncation would pull down
    with emulator.enabled(tensor_rounding=tensor_rounding, multiprocessors=1):
        check(case)


MEANS = {"V + 8": (1.0, 8.0), "V x 64": (64.0, 0.0), "V - 100": (0.25, -100.0)}


@pytest.mark.parametrize("factor,offset", MEANS.values(), ids=MEANS.keys())
def test_values_of_large_mean_or_size(device: torch.device, factor: float, offset: float) -> None:
    case = make_case((40, 900), head_dim=128, device=device)
    check(case.but(v=case.v * factor + offset))


@pytest.mark.parametrize("factor", [64.0, 1 / 64.0])
def test_scaled_inputs(device: torch.device, factor: float) -> None:
    case = make_case((40, 600), device=device)
    largest = 16.0 * max(1.0, factor)  # of scaled scores: |q . k| / 16 stays below 8 for normal data
    check(case.but(q=case.q * factor), largest_score=largest)
    check(case.but(k=case.k * factor), largest_score=largest)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("constant", [0.0, 0.7, -0.8125, 65504.0, 2.0**-24])
def test_a_constant_v_gives_that_constant(device: torch.device, constant: float) -> None:
    """The row sum is taken over the rounded weights, and no bias is left for FP16 to see: also past a fold."""
    case = make_case([(1, 1), (25, 300), (3, FOLD + 300), (3, 9000)], head_dim=128, device=device)
    constant = float(torch.tensor(constant).half())
    case = case.but(v=torch.full_like(case.v, constant))
    for scale in (None, 4.0):  # normal scores; far apart
        assert bool((case.but(softmax_scale=scale).run().out == constant).all()), f"scale {scale}"


def test_a_constant_v_in_one_block(device: torch.device) -> None:
    """One block takes all keys, in three accumulations."""
    case = make_case((5, 2 * FOLD + 300), group=3, head_dim=64, device=torch.device("cpu"))
    for constant in torch.tensor([0.7, -3.3]).half().tolist():
        with emulator.enabled(multiprocessors=1):
            assert bool((case.but(v=torch.full_like(case.v, constant)).run().out == constant).all())


@pytest.mark.parametrize("first", [0, FOLD - 64])
def test_one_key_above_all_others_at_every_place(device: torch.device, first: int) -> None:
    """The spike has all the weight: the output is its V, whichever place of a tile it is in.

    Query ``i`` points along dimension ``i``; key ``first + i`` is the only one with a part along it.
    """
    keys, dim = first + 2 * TILE + 7, 256
    case = make_case((2 * TILE, keys), group=1, head_dim=dim, causal=False, device=device)
    q = torch.zeros_like(case.q)
    k = torch.zeros_like(case.k)
    index = torch.arange(2 * TILE, device=device)
    q[index, 0, index] = 100.0
    k[first + index, 0, index] = 100.0
    result = case.but(q=q, k=k, softmax_scale=1.0).run()
    assert torch.equal(result.out[:, 0], case.v[first + index, 0])
    assert float((result.lse - 10000.0).abs().max()) <= SCORE_ERROR * 10000.0


def test_one_value_among_zeros_at_every_place(device: torch.device) -> None:
    """Equal weights, and V of 256 at key ``j`` in dimension ``j % D`` of tile after tile: every key counts once."""
    keys, dim = 2 * TILE, 64
    case = make_case((1, keys), group=2, head_dim=dim, device=device)
    v = torch.zeros(keys, 1, dim, dtype=torch.float16, device=device)
    index = torch.arange(keys, device=device)
    v[index, 0, index % dim] = (1 + index // dim).half()  # 1, 2, 3, 4 in each dimension
    result = case.but(q=torch.zeros_like(case.q), v=v).run()
    assert bool((result.out == 10.0 / keys).all())
    assert float((result.lse - math.log(keys)).abs().max()) <= SCORE_ERROR * math.log(keys)


@pytest.mark.parametrize("head_dim", [64, 256])
def test_scores_beyond_fp16_stay_finite(device: torch.device, head_dim: int) -> None:
    """Q.K up to 1e12, of both signs: nothing between is FP16."""
    case = make_case((20, 300), head_dim=head_dim, group=4, device=device)
    generator = torch.Generator().manual_seed(4)
    q, k = (
        torch.where(torch.rand(of.shape, generator=generator) < 0.5, -largest, largest).half().to(device)
        for of, largest in ((case.q, 60000.0), (case.k, 65504.0))
    )
    large = case.but(q=q, k=k, softmax_scale=1.0)
    exact = large.exact()
    assert float(exact.lse.max()) > 65504.0
    result = large.run()
    assert bool(result.out.isfinite().all()) and bool(result.lse.isfinite().all())
    scale = 1e5 / float(exact.lse.abs().max())
    check(large.but(softmax_scale=scale), largest_score=1e5)


def test_all_scores_far_below_zero(device: torch.device) -> None:
    """The running maximum starts below any score of finite inputs: 65504 x 65504 x 256."""
    case = make_case((3, 200), device=device)
    case = case.but(q=torch.full_like(case.q, 65504.0), k=torch.full_like(case.k, -65504.0), softmax_scale=1000.0)
    result = case.run()
    check_accuracy(result, case.exact(), largest_score=1e16)
    assert bool(result.lse.isfinite().all())
    assert float((result.out[2] - case.v.float().mean(0)).abs().max()) < 1e-3, "equal scores have equal weights"


def test_rising_and_falling_scores(device: torch.device) -> None:
    """The running maximum grows in every tile, or is found in the first: rescaled right either way."""
    keys = 6 * TILE
    case = make_case((21, keys), head_dim=128, device=device)
    ramp = torch.linspace(-40.0, 40.0, keys, device=device)[:, None, None].half()
    for sign in (1.0, -1.0):
        q, k = torch.ones_like(case.q), (sign * ramp).expand(-1, 1, 128).contiguous()
        check(case.but(q=q, k=k, softmax_scale=1 / 128), largest_score=40.0, what=f"sign {sign}")


def test_small_weights(device: torch.device) -> None:
    """A weight counts from 2^-29 of the largest that its block has seen; below it is zero."""
    keys = 2 * TILE
    case = make_case((1, keys), group=1, head_dim=64, device=device)
    q, k, v = torch.zeros_like(case.q), torch.zeros_like(case.k), torch.full_like(case.v, 1024.0)
    q[:, :, 0], k[0, 0, 0], v[0] = 1.0, 1.0, 0.0
    for exponent, counted in ((-28.5, True), (-29.6, False)):
        out = case.but(q=q, k=k, v=v, softmax_scale=-exponent * math.log(2.0)).run().out
        expected = (keys - 1) * 2.0**exponent * 1024 if counted else 0.0
        error = float((out.float() - expected).abs().max())
        assert error <= 2.0**-10 * expected, f"weights of 2^{exponent}"
    assert SMALLEST_WEIGHT == 2.0**-29


def test_softmax_scales(device: torch.device) -> None:
    case = make_case((5, 30), head_dim=64, device=device)
    for scale in (1e-38, 1e-30, 1e-6, 30.0):
        check(case.but(softmax_scale=scale), largest_score=50.0 * scale)
    for scale in (1e9, 1e30):  # the largest score has all the weight
        result = case.but(softmax_scale=scale).run()
        assert torch.equal(result.out, case.but(softmax_scale=1e4).run().out)
        assert bool(result.lse.isfinite().all())


@pytest.mark.parametrize("head_dim,group", [(256, 6), (64, 3)])
def test_parts_of_the_keys_merge(device: torch.device, head_dim: int, group: int) -> None:
    """Shared prefixes, chunks and context-parallel ranks: attention to disjoint keys, merged by lse."""
    case = make_case((20, 500), head_dim=head_dim, group=group, device=device)
    cuts = [0, 130, 200, 480]  # the queries are the last 20 tokens: earlier keys are seen by all
    parts = []
    for first, last in pairwise(cuts):
        parts.append(Case(case.q, case.k[first:last], case.v[first:last], None, False).run())
    parts.append(Case(case.q, case.k[480:], case.v[480:]).run())
    nothing = Case(case.q, case.k[:0], case.v[:0], None, False).run()
    outs, lses = ([part[i] for part in (*parts, nothing)] for i in (0, 1))
    # Each part's lse is off by its rounded weights; the error of a merged weight is that of two.
    exact = case.exact()
    merged = Result(*merge_states(outs, lses))
    assert reference.relative_l2(merged.out, exact.out) <= 5e-4 + 2 * WEIGHT_ERROR
    check_accuracy(merged._replace(out=case.run().out), exact)


@pytest.mark.parametrize("group,head_dim", [(6, 256), (5, 64)])
def test_what_a_query_does_not_see_changes_nothing(device: torch.device, group: int, head_dim: int) -> None:
    """Causal, bit for bit: other later keys and values leave a row as it was."""
    case = make_case((60, 200), group=group, head_dim=head_dim, device=device)
    clean = case.run()
    for query in (0, 20, 21, 59):
        seen = 200 - 60 + query + 1
        k, v = case.k.clone(), case.v.clone()
        k[seen:], v[seen:] = 1000.0, -500.0
        changed = case.but(k=k, v=v).run()
        upto = Result(changed.out[: query + 1], changed.lse[: query + 1])
        check_same_bits(upto, Result(clean.out[: query + 1], clean.lse[: query + 1]), f"query {query}:")
        if query < 59:
            assert not torch.equal(changed.out[query + 1], clean.out[query + 1])
