"""Error measures and the bitwise comparison of the reference."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sm70_kernels import reference


def half(code: int) -> torch.Tensor:
    return torch.tensor([code]).to(torch.int16).view(torch.float16)


def test_relative_l2_is_a_ratio_of_norms() -> None:
    wanted = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert reference.relative_l2(torch.tensor([3.0, 4.5]), wanted) == pytest.approx(0.1)
    assert reference.relative_l2(wanted, wanted) == 0.0
    assert reference.relative_l2(torch.zeros(2), torch.zeros(2)) == 0.0
    assert reference.relative_l2(torch.ones(2), torch.zeros(2)) == math.inf
    assert reference.max_abs_error(torch.tensor([3.0, 4.5]), wanted) == 0.5
    assert reference.max_abs_error(torch.zeros(0), torch.zeros(0)) == 0.0


def test_nan_never_passes_a_bound() -> None:
    poisoned = torch.tensor([1.0, math.nan])
    for wanted in (torch.ones(2), torch.zeros(2)):
        assert not reference.relative_l2(poisoned, wanted) <= 1e9
        assert not reference.max_abs_error(poisoned, wanted) <= 1e9


def test_fp16_rounding_floor_is_the_error_of_the_best_fp16_output() -> None:
    x = torch.randn(4096, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    floor = reference.fp16_rounding_floor(x)
    rounded = x.numpy().astype(np.float16).astype(np.float64)
    assert floor == pytest.approx(np.linalg.norm(rounded - x.numpy()) / np.linalg.norm(x.numpy()), rel=1e-12)
    assert 1e-4 < floor < 2.0**-11
    assert reference.fp16_rounding_floor(x.half()) == 0.0


@pytest.mark.parametrize(
    ("a", "b", "ulps", "steps"),
    [
        (0x3C00, 0x3C01, 1.0, 1),
        (0x3C00, 0x3BFF, 0.5, 1),  # across a power of two: the larger value's spacing is twice the step
        (0x3BFF, 0x3C01, 1.5, 2),
        (0x0000, 0x8000, 0.0, 0),
        (0x0001, 0x8001, 2.0, 2),
        (0x03FF, 0x0400, 1.0, 1),
        (0x7BFF, 0x7C00, math.inf, 1),
        (0x7C00, 0x7C00, 0.0, 0),
        (0x7E00, 0xFE01, 0.0, 0),
        (0x7E00, 0x3C00, math.inf, 65536),
        (0x7C00, 0xFC00, math.inf, 2 * 0x7C00),
    ],
)
def test_ulp_distances(a: int, b: int, ulps: float, steps: int) -> None:
    for first, second in ((a, b), (b, a)):
        assert reference.ulp_distance(half(first), half(second)).item() == ulps
        assert reference.steps_apart(half(first), half(second)).item() == steps


def test_spacing_is_numpys() -> None:
    x = torch.arange(65536).to(torch.int16).view(torch.float16)
    x = x[x.abs() < 65504]  # numpy's spacing overflows at the largest value
    expected = np.spacing(x.abs().numpy()).astype(np.float64)
    np.testing.assert_array_equal(reference.fp16_spacing(x).numpy(), expected)
    assert reference.fp16_spacing(half(0x7BFF)).item() == 32.0
    assert math.isnan(reference.fp16_spacing(half(0x7C00)).item())


@settings(max_examples=200, deadline=None)
@given(a=st.integers(0, 65535), b=st.integers(0, 65535))
def test_steps_are_between_one_and_two_of_the_larger_ulps(a: int, b: int) -> None:
    first, second = half(a), half(b)
    steps, ulps = reference.steps_apart(first, second).item(), reference.ulp_distance(first, second).item()
    assert (steps == 0) == (ulps == 0)
    if math.isfinite(ulps):
        assert steps >= ulps
        assert reference.steps_apart(second, first).item() == steps


def test_differing_elements_count_values() -> None:
    a = torch.tensor([0.0, 1.0, math.nan, 2.0], dtype=torch.float16)
    b = torch.tensor([-0.0, 1.0, math.nan, 2.5], dtype=torch.float16)
    assert reference.differing_elements(a, b) == 1
    assert reference.fraction_differing(a, b) == 0.25
    assert reference.fraction_differing(a[:0], b[:0]) == 0.0
    with pytest.raises(ValueError, match="actual: got shape"):
        reference.fraction_differing(a, b[:1])


def test_group_changes_count_vectors() -> None:
    wanted = torch.zeros(4, 2, dtype=torch.float64)
    before = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [math.nan, 0.0]])
    now = torch.tensor([[0.5, 0.0], [1.0, 1.0], [0.0, 1.0], [9.0, 0.0]])
    assert reference.group_changes(now, before, wanted) == (2, 1, 1)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (3, 3), (5, 12), (1, 100)])
def test_prefill_flops_count_visible_pairs(queries: int, keys: int) -> None:
    pairs = sum(keys - queries + row + 1 for row in range(queries))
    assert reference.prefill_flops(6, 256, queries, keys) == 4 * 6 * 256 * pairs


def test_prefill_flops_of_the_headline_shape() -> None:
    flops = reference.prefill_flops(6, 256, 8192, 128_000)
    assert flops == 4 * 6 * 256 * (8192 * (128_000 - 8192) + 8192 * 8193 // 2)
    assert flops / 80.976e-3 == pytest.approx(77.01e12, rel=1e-3)
    with pytest.raises(ValueError, match=r"query_rows: got 5; wanted 1\.\.keys=4"):
        reference.prefill_flops(6, 256, 5, 4)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.float32, torch.float64, torch.int64])
def test_equal_bits_pass_whatever_the_strides(dtype: torch.dtype) -> None:
    x = torch.arange(24).reshape(2, 3, 4).to(dtype)
    reference.compare_bitwise(x.transpose(0, 2), x.transpose(0, 2).contiguous(), "x")
    reference.compare_bitwise(x[:0], x[:0], "empty")
    reference.compare_bitwise(x[0, 0, 0], x[0, 0, 0].clone(), "scalar")


def test_equal_nan_payloads_pass_and_others_fail() -> None:
    reference.compare_bitwise(half(0x7E01), half(0x7E01), "payload")
    with pytest.raises(AssertionError, match=r"(?s)1 of 1 elements.*nan \(0x7e01\).*nan \(0x7e00\)"):
        reference.compare_bitwise(half(0x7E01), half(0x7E00), "payload")
    with pytest.raises(AssertionError, match=r"(?s)-0\.0 \(0x8000\).*0\.0 \(0x0000\)"):
        reference.compare_bitwise(half(0x8000), half(0x0000), "zero")


def test_the_report_says_where_and_what() -> None:
    expected = torch.zeros(2, 3, 4)
    actual = expected.clone()
    actual[1, 0, 2] = 1.0  # 0x3f800000: bytes 2 and 3 of element 14
    actual[1, 2, 3] = -2.0
    with pytest.raises(AssertionError) as failure:
        reference.compare_bitwise(actual.transpose(0, 1).contiguous().transpose(0, 1), expected, "out")
    assert str(failure.value) == (
        "out: 2 of 24 elements differ bitwise (torch.float32, shape [2, 3, 4])\n"
        "  first at [1, 0, 2], element 14, byte 58\n"
        "  actual   1.0 (0x3f800000)\n"
        "  expected 0.0 (0x00000000)"
    )


def test_float8_and_wide_elements_are_reported() -> None:
    codes = torch.tensor([0x38, 0x7F], dtype=torch.uint8)
    with pytest.raises(AssertionError, match=r"(?s)\[1\], element 1, byte 1\n.*nan \(0x7f\).*1\.0 \(0x38\)"):
        reference.compare_bitwise(codes.view(torch.float8_e4m3fn), codes[:1].repeat(2).view(torch.float8_e4m3fn), "fp8")
    with pytest.raises(AssertionError, match=r"byte 7\n.*\(0x8000000000000000\)"):
        reference.compare_bitwise(
            torch.tensor(-0.0, dtype=torch.float64), torch.tensor(0.0, dtype=torch.float64), "scalar"
        )


def test_dtype_and_shape_differences_are_differences() -> None:
    with pytest.raises(AssertionError, match=r"x: dtype differs: got torch\.float16, expected torch\.float32"):
        reference.compare_bitwise(torch.zeros(2).half(), torch.zeros(2), "x")
    with pytest.raises(AssertionError, match=r"x: shape differs: got \[2\], expected \[1, 2\]"):
        reference.compare_bitwise(torch.zeros(2), torch.zeros(1, 2), "x")
