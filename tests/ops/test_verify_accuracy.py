"""The numbers of verify: their distance from float64, what no data may do to them, and what its arithmetic is for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.lab import emulator
from tests.ops import verify_controls
from tests.ops.verify_cases import FORMATS, LEAF, Case, Result, check, check_accuracy, draft, fill_live, make_case
from tests.ops.verify_controls import COMPENSATIONS, CONTROLS, PLAIN, unrounded

CPU = torch.device("cpu")
ROUNDINGS: tuple[Any, ...] = ("truncate", "nearest")


@pytest.fixture(scope="module", autouse=True)
def controls_loaded() -> None:
    verify_controls.load()


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("q_rows", range(1, 9))
def test_every_number_of_rows(device: torch.device, q_rows: int) -> None:
    check(make_case([draft(700, q_rows), draft(300, q_rows)], page=3296, device=device, seed=q_rows))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
def test_sixteen_rows(device: torch.device, kv_format: str) -> None:
    """Rows of two blocks."""
    check(make_case([draft(500, 16), draft(17, 16)], page=784, kv_format=kv_format, device=device))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(
    "group,kv_heads,head_dim,kv_format",
    [
        (1, 2, 64, "e4m3"),
        (16, 1, 64, "e5m2"),
        (7, 3, 128, "e4m3"),
        (8, 2, 128, "e5m2"),
        (16, 1, 256, "e4m3"),
        (12, 1, 128, "e4m3"),
        (1, 1, 256, "e5m2"),
        (2, 2, 256, "e5m2"),
    ],
)
def test_shapes(device: torch.device, group: int, kv_heads: int, head_dim: int, kv_format: str) -> None:
    shape = {"group": group, "kv_heads": kv_heads, "head_dim": head_dim, "kv_format": kv_format}
    check(make_case([draft(400, 5), [3, 0, 130, 1, 257]], page=48, device=device, **shape))


@pytest.mark.usefixtures("unwatched")
def test_a_long_row(device: torch.device) -> None:
    """Rounding and truncation do not pile up along a row. Longer ones: test_verify_full_size, and the ties below."""
    check(make_case([draft(32768, 2)], group=2, page=3296, device=device))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("head_dim,page", [(64, 16), (128, 848), (256, 48)])
def test_lengths_off_tiles_and_leaves(device: torch.device, head_dim: int, page: int) -> None:
    """Tiny ones, and both sides of tiles, quarters of a leaf, leaves, pages."""
    lengths = [*range(1, 10), *(n + s for n in (16, 32, 64, 96, LEAF, 3 * LEAF, 848) for s in (-1, 0, 1)), 2925, 0]
    rows = [lengths[i : i + 8] for i in range(0, len(lengths), 8)]
    check(make_case(rows, page=page, group=2, head_dim=head_dim, device=device))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("middle", [32768, 65536])
def test_lengths_that_overflow_16_bits(device: torch.device, middle: int) -> None:
    check(make_case([[middle - 1, middle, middle + 1]], page=784, group=2, head_dim=64, device=device))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("factor,offset", [(1.0, 8.0), (64.0, 0.0), (0.25, -100.0)])
def test_values_of_large_mean_or_size(device: torch.device, factor: float, offset: float) -> None:
    case = make_case([draft(3000, 4)], head_dim=128, page=48, device=device)
    values = torch.randn(3000, 1, 128, generator=torch.Generator().manual_seed(8)) * factor + offset
    fill_live(case, case.value_cache, values)
    check(case)


@pytest.mark.usefixtures("unwatched")
def test_scores_beyond_fp16_stay_finite(device: torch.device) -> None:
    """Q.K up to 1e8, of both signs: nothing between is FP16."""
    case = make_case([draft(400, 4)], head_dim=64, group=4, device=device)
    generator = torch.Generator().manual_seed(4)
    fill_live(case, case.key_cache, torch.where(torch.rand(400, 1, 64, generator=generator) < 0.5, -448.0, 448.0))
    q = torch.where(torch.rand(1, 4, 4, 64, generator=generator) < 0.5, -1000.0, 1000.0).half().to(device)
    large = case.but(q=q, softmax_scale=1.0)
    exact = large.exact()
    assert float(exact.lse.max()) > 65504.0
    result = large.run()
    assert bool(result.out.isfinite().all()) and bool(result.lse.isfinite().all())
    check(large.but(softmax_scale=1e5 / float(exact.lse.max())), largest_score=1e5)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("k_scale,v_scale", [(0.0371, 1.93), (3.0, 0.004), (0.25, 100.0)])
def test_scales(device: torch.device, k_scale: float, v_scale: float) -> None:
    """Of the host and of the device: the same bits."""
    case = make_case([draft(513, 3)], group=7, head_dim=64, kv_heads=2, device=device)
    host = check(case.but(k_scale=k_scale, v_scale=v_scale))
    tensors = [torch.tensor([scale], device=device) for scale in (k_scale, v_scale)]
    on_device = case.but(k_scale=tensors[0], v_scale=tensors[1][0]).run()
    assert torch.equal(on_device.out, host.out) and torch.equal(on_device.lse, host.lse)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bad_device_scale_gives_nan(device: torch.device, bad: float) -> None:
    case = make_case([[40, 0, 1000]], head_dim=64, group=2, device=device)
    scale = torch.tensor([bad], device=device)
    for changed in (case.but(k_scale=scale), case.but(v_scale=scale)):
        out = changed.run().out[0]
        assert bool(out[[0, 2]].isnan().all()) and not out[1].view(torch.int16).any()


@pytest.mark.usefixtures("unwatched")
def test_every_e4m3_value_that_is_a_number(device: torch.device) -> None:
    """One key has weight 1: its V, bit for bit."""
    case = make_case([[1, 1]], group=2, device=device)
    codes = torch.arange(256, device=device).to(torch.uint8)
    codes[[0x7F, 0xFF]] = 0
    case.value_cache[case.block_table[0, 0].long(), 0, 0] = codes
    exact = reference.dequantize_fp16(codes, 1.0, "e4m3").expand(1, 2, 2, 256)
    assert torch.equal(case.run().out, exact)


@pytest.mark.usefixtures("unwatched")
def test_every_e5m2_value_that_is_finite(device: torch.device) -> None:
    case = make_case([[1, 1]], group=2, kv_format="e5m2", device=device)
    codes = torch.arange(256, device=device).to(torch.uint8)
    codes[(codes & 0x7F) >= 0x7C] = 0
    case.value_cache[case.block_table[0, 0].long(), 0, 0] = codes
    exact = reference.dequantize_fp16(codes, 1.0, "e5m2").expand(1, 2, 2, 256)
    assert torch.equal(case.run().out, exact)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("constant", [0.0, 1.0, -0.8125, 448.0, 2.0**-9])
@pytest.mark.parametrize("tensor_rounding", ROUNDINGS)
def test_a_constant_v_gives_that_constant(tensor_rounding: Any, constant: float) -> None:
    """Whatever the weights, on both kinds of tensor cores."""
    case = make_case([[1, 100, LEAF + 1, 1500]], group=3, head_dim=64, page=784, device=CPU)
    fill_live(case, case.value_cache, torch.full((1500, 1, 64), constant))
    with emulator.enabled(tensor_rounding=tensor_rounding):
        for scale in (1 / 16, 4.0, 1e-30):
            assert bool((case.but(softmax_scale=scale).run().out == constant).all())


# --- what the residual is for ---


def two_weights(device: torch.device, small: float, value: float) -> Case:
    """Half of 2048 keys have weight 1 and V -value, the others weight ``small`` and V value, so that most cancels."""
    length = 2048
    case = make_case([[length, length]], head_dim=64, group=1, page=784, device=device)
    keys, values = torch.zeros(length, 1, 64), torch.full((length, 1, 64), value)
    keys[::2, :, 0], values[::2] = 1.0, -value
    fill_live(case, case.key_cache, keys)
    fill_live(case, case.value_cache, values)
    q = torch.zeros(1, 2, 1, 64, dtype=torch.float16, device=device)
    q[..., 0] = 1.0
    return case.but(q=q, softmax_scale=-math.log(small))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("small", [2.0**-9, 2.0**-9 * 1.00048, 2.0**-20 * 1.3, 0.99951, 0.99976])
@pytest.mark.parametrize("value", [448.0, -448.0, 0.001953125])
def test_weights_near_2_to_the_minus_9_and_1(device: torch.device, small: float, value: float) -> None:
    case = two_weights(device, small, value)
    result, exact = case.run(), case.exact()
    # What is left of cancelling values has their errors: those of weights, 2^-22, and of scores.
    error = float((result.out.double() - exact.out).abs().max())
    size = abs(value) * float(SCORE_OF_WEIGHTS)
    half_spacing = float(reference.fp16_spacing(reference.round_to_fp16(exact.out)).max()) / 2
    assert error <= 1.02 * half_spacing + size, error
    if small > 0.9 and abs(value) == 448.0:
        control = verify_controls.run(case, "single")[0]
        wrong = float((control.out.double() - exact.out).abs().max())
        assert wrong > 2 * error, f"one half without a residual is off by {wrong}, as little as {error}"


#: 2^-22 of P, and the rounding of a score, which is below 8 in base 2.
SCORE_OF_WEIGHTS = 2.0**-22 + 2.0**-21


# --- ties ---


def midpoint(total: int, device: torch.device) -> tuple[Case, Tensor]:
    """Equal weights, and what the rounded outputs must be.

    V is 1 and 1.125 in such parts that the mean is the tie 1 + 2^-11, which goes to the even 1, in every third
    dimension; one key of 1.125 more in the next, 5e-7, and it goes up; one less in the third. Which keys are larger
    differs between dimensions.
    """
    case = make_case([[total, total]], head_dim=64, group=1, page=3296, device=device)
    values, expected = torch.ones(total, 1, 64), torch.ones(64)
    for dimension in range(64):
        larger = total // 256 + (0, 1, -1)[dimension % 3]  # of 0.125: total x 2^-11 in all
        values[(torch.arange(larger) * (total // larger) + 5 * dimension) % total, 0, dimension] = 1.125
        if dimension % 3 == 1:
            expected[dimension] += 2.0**-10
    fill_live(case, case.value_cache, values)
    return case.but(q=torch.zeros_like(case.q)), expected.half().to(device)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("total", [131072, 262144])
def test_ties_round_as_the_exact_value_does(device: torch.device, total: int) -> None:
    case, expected = midpoint(total, device)
    wrong = (case.run().out != expected).sum((0, 1, 2))
    assert not wrong.any(), f"dimensions {wrong.nonzero().flatten().tolist()}"


def test_ties_find_partial_results_in_fp16() -> None:
    case, expected = midpoint(65536, CPU)
    with emulator.enabled():
        assert bool((verify_controls.run(case, PLAIN)[0].out == expected).all())
        assert bool((verify_controls.run(case, "halves")[0].out != expected).any())


# --- truncation made visible ---


def slow_weights(total: int) -> Case:
    """Weights that vary slowly, V constant: the exact result is that constant, so that what a sum loses shows."""
    case = make_case([[total, total]], head_dim=64, group=2, page=3296, device=CPU).but(softmax_scale=0.02)
    fill_live(case, case.value_cache, torch.full((total, 1, 64), 1.875))
    return case


def bias(total: int, numerics: str, tensor_rounding: Any) -> float:
    """Of the unrounded result, relative."""
    case = slow_weights(total)
    with emulator.enabled(tensor_rounding=tensor_rounding):
        _, workspace = verify_controls.run(case, numerics)
    return float((unrounded(case, workspace) / 1.875 - 1.0).mean())


@pytest.mark.parametrize("total,rounding", [(8192, "truncate"), (8192, "nearest"), (65536, "truncate")])
def test_fresh_accumulators_have_no_bias(total: int, rounding: Any) -> None:
    """2e-9 of the sum on truncating tensor cores as on rounding ones; 2^-26 is a quarter of an FP32 rounding."""
    assert abs(bias(total, PLAIN, rounding)) < 2.0**-26


def test_a_carried_accumulator_is_biased_toward_zero() -> None:
    """What the truncation of a long sum costs, and that it is truncation."""
    assert -2e-4 < bias(8192, "carried", "truncate") < -1e-4
    assert -1e-3 < bias(32768, "carried", "truncate") < -5e-4
    assert abs(bias(8192, "carried", "nearest")) < 2e-6


@pytest.mark.parametrize("control", CONTROLS)
def test_controls_fail_the_contract(control: str) -> None:
    """The checks of this module have teeth: each control misses the bound that the shipped numerics keep."""
    case = make_case([draft(32768 if control == "carried" else 8192, 2)], head_dim=64, group=2, page=3296, device=CPU)
    if control == "carried":  # a sum that grows is what loses
        fill_live(case, case.value_cache, torch.rand(32768, 1, 64, generator=torch.Generator().manual_seed(3)) + 0.5)
    exact = case.exact()
    with emulator.enabled():
        check_accuracy(verify_controls.run(case, PLAIN)[0], exact)
        with pytest.raises(AssertionError, match="relative L2"):
            check_accuracy(verify_controls.run(case, control)[0], exact, what=CONTROLS[control])


def score_errors(numerics: str, tensor_rounding: Any) -> Tensor:
    """Relative errors of single scores: the lse of rows of one key, a sum of 256 terms of one sign and many sizes."""
    generator = torch.Generator().manual_seed(1)
    case = make_case([[1] * 8] * 8, group=6, page=16, device=CPU)
    for request in range(8):
        key = torch.exp(torch.randn(1, 256, generator=generator))
        case.key_cache[int(case.block_table[request, 0]), 0] = reference.quantize(key.half(), 1.0, "e4m3")
    q = torch.exp(torch.randn(case.q.shape, generator=generator) * 2.0).half()
    case = case.but(q=q, softmax_scale=1.0)
    exact = case.exact().lse
    with emulator.enabled(tensor_rounding=tensor_rounding):
        result, _ = verify_controls.run(case, numerics)
    return (result.lse.double() - exact) / exact


def test_compensations() -> None:
    """Fresh K16 products keep most of what a chain of all of them loses; Kahan's sums gain nothing that FP32 shows."""
    found = {numerics: score_errors(numerics, "truncate") for numerics in COMPENSATIONS}
    means = {numerics: float(errors.mean()) for numerics, errors in found.items()}
    largest = {numerics: float(errors.abs().max()) for numerics, errors in found.items()}
    assert means["none"] < 2 * means[PLAIN] < 0, f"one chain is not biased more: {means}"
    assert largest[PLAIN] < 1.25 * largest["kahan"] < 2.0**-21, largest


@pytest.mark.usefixtures("unwatched")
def test_the_shipped_numerics_are_the_plain_ones(device: torch.device) -> None:
    case = make_case([draft(3000, 8), draft(200, 8)], group=2, head_dim=64, device=device)
    shipped, plain = case.run(), verify_controls.run(case, PLAIN)[0]
    assert torch.equal(shipped.out, plain.out) and torch.equal(shipped.lse, plain.lse)


@pytest.mark.parametrize("tensor_rounding", ROUNDINGS)
def test_both_kinds_of_tensor_cores(tensor_rounding: Any) -> None:
    case = make_case([draft(4000, 8)], page=800, group=2, head_dim=128, device=CPU)
    with emulator.enabled(tensor_rounding=tensor_rounding):
        check(case)


@pytest.mark.usefixtures("unwatched")
def test_a_nan_in_one_query_row_stays_there(device: torch.device) -> None:
    case = make_case([draft(300, 5), draft(700, 5)], group=2, kv_heads=2, head_dim=64, device=device)
    clean = case.run()
    q = case.q.clone()
    q[1, 3, 1, 17] = math.nan
    spoilt = case.but(q=q).run()
    assert bool(spoilt.out[1, 3, 1].isnan().all()) and bool(spoilt.lse[1, 3, 1].isnan())
    for tensor, other in zip(spoilt, clean, strict=True):
        tensor[1, 3, 1] = other[1, 3, 1]
    assert torch.equal(spoilt.out, clean.out) and torch.equal(spoilt.lse, clean.lse)


@pytest.mark.usefixtures("unwatched")
def test_results_beyond_fp16_are_infinite(device: torch.device) -> None:
    case = make_case([[50, 50]], head_dim=64, group=2, device=device)
    fill_live(case, case.value_cache, torch.full((50, 1, 64), 448.0))
    assert bool((case.but(v_scale=1000.0).run().out == math.inf).all())
    assert bool((case.but(v_scale=146.0).run().out == 65408.0).all())


@pytest.mark.usefixtures("unwatched")
def test_lse_of_equal_scores_is_the_logarithm_of_their_number(device: torch.device) -> None:
    lengths = [1, 2, 127, 128, 129, 1000, 6000, 0]
    result: Result = make_case([lengths], head_dim=64, group=2, device=device).but(softmax_scale=1e-30).run()
    for row, length in enumerate(lengths[:-1]):
        error = float((result.lse[0, row] - math.log(length)).abs().max())
        assert error <= 2.0**-22 * max(1.0, math.log(length)), f"{length} keys: {error}"
