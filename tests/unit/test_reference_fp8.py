"""The number formats of the reference against independent enumerations and exact rational arithmetic."""

import bisect
import math
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sm70_kernels import reference

FP8 = ("e4m3", "e5m2")
TORCH_DTYPE = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
ALL_FP16 = torch.arange(65536).to(torch.int16).view(torch.float16)


def enumerate_values(fmt: str) -> list[float]:
    """List the values of codes 0..127 by counting up: equal steps in a binade, doubled in the next."""
    mantissas, first_step, finite = {"e4m3": (8, 2.0**-9, 127), "e5m2": (4, 2.0**-16, 124)}[fmt]
    values, step = [0.0], first_step
    while len(values) < finite:
        values.append(values[-1] + step)
        code = len(values) - 1
        if code % mantissas == 0 and code >= 2 * mantissas:  # subnormals and the first binade share a step
            step *= 2
    return [*values, math.nan] if fmt == "e4m3" else [*values, math.inf, math.nan, math.nan, math.nan]


@cache
def finite_magnitudes(fmt: str) -> list[Fraction]:
    values = ALL_FP16[:0x7C00].tolist() if fmt == "fp16" else enumerate_values(fmt)
    return [Fraction(value) for value in values if math.isfinite(value)]


def rne_fraction(value: Fraction, digits: int, smallest_exponent: int) -> Fraction:
    """Round to ``digits`` significant bits, ties to even, with quanta no finer than 2^smallest_exponent."""
    if value == 0:
        return value
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length() - digits
    while abs(value) >= Fraction(2) ** (exponent + digits):
        exponent += 1
    quantum = Fraction(2) ** max(exponent, smallest_exponent)
    return round(value / quantum) * quantum  # Fraction.__round__ is half to even


def nearest_code(value: Fraction, table: list[Fraction], sign: bool, *, saturate: bool) -> int:
    """Find the code whose value is nearest, by exact distances; ``table`` holds the finite magnitudes."""
    magnitude = abs(value)
    above = bisect.bisect_left(table, magnitude)
    if above == len(table):
        overflow = 2 * table[-1] - table[-2]  # where the next value would be
        low, high = table[-1], overflow
        code = above - 1 if saturate or magnitude - low < high - magnitude else above
    elif above == 0 or table[above] == magnitude:
        code = above
    else:
        down, up = magnitude - table[above - 1], table[above] - magnitude
        code = above - 1 if down < up else above if up < down else above - 1 + (above - 1) % 2
    return code | (0x80 if sign else 0)


@pytest.mark.parametrize("fmt", FP8)
def test_decode_table_is_the_independent_enumeration(fmt: str) -> None:
    positive = enumerate_values(fmt)
    assert len(positive) == 128
    table = reference.decode_table(fmt)
    np.testing.assert_array_equal(table[:128].numpy(), np.array(positive))
    np.testing.assert_array_equal(table[128:].numpy(), -np.array(positive))
    assert table.signbit().tolist() == [code >= 128 for code in range(256)], "signs of zeros and NaNs are kept"


@pytest.mark.parametrize("fmt", FP8)
def test_decode_table_is_torchs_dtype(fmt: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(TORCH_DTYPE[fmt]).to(torch.float64)
    torch.testing.assert_close(reference.decode(codes, fmt), expected, rtol=0, atol=0, equal_nan=True)
    stored = codes.view(TORCH_DTYPE[fmt])
    torch.testing.assert_close(reference.decode(stored, fmt), expected, rtol=0, atol=0, equal_nan=True)


def test_known_values() -> None:
    for fmt, code, value in (
        ("e4m3", 0x7E, 448.0),
        ("e4m3", 0x78, 256.0),
        ("e4m3", 0x01, 2.0**-9),
        ("e4m3", 0x08, 2.0**-6),
        ("e5m2", 0x7B, 57344.0),
        ("e5m2", 0x01, 2.0**-16),
        ("e5m2", 0xFC, -math.inf),
        ("fp16", 0x7BFF, 65504.0),
        ("fp16", 0x0001, 2.0**-24),
    ):
        assert reference.decode_code(code, fmt) == value


def test_fp16_table_is_binary16() -> None:
    np.testing.assert_array_equal(reference.decode_table("fp16").numpy(), ALL_FP16.numpy().astype(np.float64))


@pytest.mark.parametrize("fmt", FP8)
def test_every_finite_byte_survives_decode_and_encode(fmt: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    values = reference.decode(codes, fmt)
    kept = ~values.isnan()
    assert torch.equal(reference.encode(values, fmt)[kept], codes[kept])
    # FP16 holds every byte's value, so the FP16 round trip is exact as well.
    through_fp16 = reference.dequantize_fp16(codes, 1.0, fmt)
    assert torch.equal(through_fp16[kept].to(torch.float64), values[kept])
    assert torch.equal(reference.quantize(through_fp16, 1.0, fmt)[kept], codes[kept])
    assert bool(through_fp16[~kept].isnan().all())


@pytest.mark.parametrize("fmt", FP8)
def test_encode_is_the_nearest_value_for_all_fp16(fmt: str) -> None:
    table = finite_magnitudes(fmt)
    got = reference.quantize(ALL_FP16, 1.0, fmt).tolist()
    infinity, nan = {"e4m3": (0x7E, 0x7F), "e5m2": (0x7C, 0x7E)}[fmt]
    for code, value in enumerate(ALL_FP16.tolist()):
        sign = code >> 15
        if math.isfinite(value):
            expected = nearest_code(Fraction(value), table, bool(sign), saturate=fmt == "e4m3")
        else:
            expected = (nan if math.isnan(value) else infinity) | sign << 7
        assert got[code] == expected, f"{fmt} of {value!r} (0x{code:04x})"


@pytest.mark.parametrize("fmt", FP8)
def test_encode_agrees_with_torch_below_overflow(fmt: str) -> None:
    limit = {"e4m3": 448.0, "e5m2": 57344.0}[fmt]
    x = ALL_FP16[ALL_FP16.abs() <= limit]
    expected = x.to(torch.float32).to(TORCH_DTYPE[fmt]).view(torch.uint8)
    reference.compare_bitwise(reference.encode(x, fmt), expected, fmt)


@pytest.mark.parametrize("fmt", [*FP8, "fp16"])
@settings(max_examples=60, deadline=None)
@given(
    halves=st.lists(st.integers(0, 65535), min_size=1, max_size=16),
    scale=st.floats(min_value=2.0**-149, max_value=2.0**127, width=32),
)
@example(halves=[0x3C00, 0x7BFF, 0x0001, 0x8000], scale=2.0**-149)
@example(halves=[0x3C00, 0x7BFF, 0x0001, 0x8001], scale=2.0**127)
@example(halves=list(range(0x3C00, 0x3C40)), scale=float(np.float32(1 / 3)))
def test_write_contract_is_two_exact_roundings(fmt: str, halves: list[int], scale: float) -> None:
    x = torch.tensor(halves).to(torch.int16).view(torch.float16)
    x = x[x.isfinite()]
    got = reference.quantize(x, scale, fmt)
    table = finite_magnitudes(fmt)
    for element, value in enumerate(x.tolist()):
        quotient = rne_fraction(Fraction(value) / Fraction(scale), 24, -149)
        sign = math.copysign(1.0, value) < 0
        code = nearest_code(quotient, table, sign=False, saturate=fmt == "e4m3")
        if fmt == "fp16":
            assert int(got.view(torch.int16)[element]) & 0xFFFF == code | sign << 15
        else:
            assert int(got[element]) == code | sign << 7


@pytest.mark.parametrize("fmt", FP8)
@settings(max_examples=30, deadline=None)
@given(scale=st.floats(min_value=2.0**-149, max_value=2.0**127, width=32))
@example(scale=1.0)
@example(scale=8408269 * 2.0**-23)  # 1.875 times it is near an FP16 midpoint that its FP32 product falls on
def test_read_contract_is_two_exact_roundings(fmt: str, scale: float) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    got = reference.dequantize_fp16(codes, scale, fmt)
    # numpy is the second opinion: one IEEE FP32 multiplication, one float32 -> float16 conversion.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        product = reference.decode_table(fmt).numpy().astype(np.float32) * np.float32(scale)
        expected = product.astype(np.float16)
    np.testing.assert_array_equal(got.numpy(), expected)
    assert torch.equal(got.signbit(), codes >= 128), "signs of zeros and NaNs are kept"
    exact = reference.dequantize(codes, scale, fmt)
    for code in range(128):
        value = reference.decode_code(code, fmt)
        if math.isfinite(value):
            assert Fraction(exact[code].item()) == Fraction(value) * Fraction(scale)


def test_special_values_are_encoded_by_the_contract() -> None:
    x = torch.tensor([math.inf, -math.inf, math.nan, 464.0, 480.0, 1e30, 61439.0, 61440.0, -0.0, 2**-10])
    x = torch.cat((x, torch.tensor([-1], dtype=torch.int32).view(torch.float32)))  # 0xFFFFFFFF, a NaN
    e4m3 = [0x7E, 0xFE, 0x7F, 0x7E, 0x7E, 0x7E, 0x7E, 0x7E, 0x80, 0x00, 0xFF]
    e5m2 = [0x7C, 0xFC, 0x7E, 0x5F, 0x60, 0x7C, 0x7B, 0x7C, 0x80, 0x14, 0xFE]
    assert reference.encode(x, "e4m3").tolist() == e4m3
    assert reference.encode(x, "e5m2").tolist() == e5m2


@settings(max_examples=200, deadline=None)
@given(
    value=st.floats(min_value=-70000.0, max_value=70000.0),
    half=st.integers(0, 0x7BFE),
    nudge=st.integers(-2, 2),
)
@example(value=0.0, half=0x3C00, nudge=1)
def test_float64_is_rounded_to_fp16_once(value: float, half: int, nudge: int) -> None:
    # A midpoint of two FP16 values moved by up to two float64 steps: rounding to FP32 first loses the step.
    table = reference.decode_table("fp16")
    midpoint = (table[half] + table[half + 1]).item() / 2
    for _ in range(abs(nudge)):
        midpoint = math.nextafter(midpoint, math.inf if nudge > 0 else -math.inf)
    x = torch.tensor([value, midpoint, -midpoint], dtype=torch.float64)
    with np.errstate(over="ignore"):
        expected = torch.from_numpy(x.numpy().astype(np.float16))  # numpy converts float64 directly
    reference.compare_bitwise(reference.round_to_fp16(x), expected, "fp16")


def test_float32_is_rounded_to_fp16_as_by_hardware() -> None:
    table = reference.decode_table("fp16")[:0x7C01]
    table[0x7C00] = 65536.0
    midpoints = ((table[:-1] + table[1:]) / 2).to(torch.float32)
    below, above = (torch.nextafter(midpoints, torch.tensor(end)) for end in (-math.inf, math.inf))
    x = torch.cat((midpoints, below, above, torch.tensor([math.inf, 0.0])))
    x = torch.cat((x, -x))
    reference.compare_bitwise(reference.round_to_fp16(x), x.to(torch.float16), "fp16")


@pytest.mark.parametrize("count", [1, 7, 64])
def test_nan_signs_survive_whatever_the_tensor_size(count: int) -> None:
    # torch's float16 -> float32 conversion drops the sign of a NaN in short tensors but not in long ones.
    nan = torch.tensor([0xFE01]).to(torch.int16).view(torch.float16).expand(count)
    for fmt, code in (("e4m3", 0xFF), ("e5m2", 0xFE)):
        assert reference.quantize(nan, 0.3, fmt).tolist() == count * [code]
        stored = torch.full((count,), code, dtype=torch.uint8)
        for read in (reference.dequantize_fp16(stored, 0.3, fmt), reference.quantize(nan, 0.3, "fp16")):
            assert read.view(torch.int16).tolist() == count * [0xFE00 - 0x10000]


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, 1e-50, 1e39, torch.ones(2)])
def test_scales_must_be_positive_finite_fp32_numbers(scale: float | torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"^scale: got .*; wanted "):
        reference.quantize(torch.ones(1, dtype=torch.float16), scale, "e4m3")
    with pytest.raises(ValueError, match=r"^scale: got .*; wanted "):
        reference.dequantize_fp16(torch.ones(1, dtype=torch.uint8), scale, "e4m3")


def test_a_scale_may_be_a_one_element_tensor_and_is_rounded_to_fp32() -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    expected = reference.dequantize(codes, 0.1, "e4m3")
    as_tensor = reference.dequantize(codes, torch.tensor([0.1]), "e4m3")
    torch.testing.assert_close(as_tensor, expected, rtol=0, atol=0, equal_nan=True)
    assert expected[0x38].item() == float(np.float32(0.1))


@pytest.mark.parametrize("fmt", ["int8", "auto", "E4M3", "bf16", ""])
def test_only_the_three_names_are_formats(fmt: str) -> None:
    with pytest.raises(ValueError, match=r"kv_format: got .*'e4m3', 'e5m2', 'fp16'"):
        reference.decode(torch.zeros(1, dtype=torch.uint8), fmt)


def test_storage_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match=r"stored: got dtype torch.float8_e5m2; wanted .*e4m3"):
        reference.decode(torch.zeros(1, dtype=torch.uint8).view(torch.float8_e5m2), "e4m3")
    with pytest.raises(ValueError, match=r"x: got dtype torch.int32"):
        reference.encode(torch.zeros(1, dtype=torch.int32), "e4m3")
    with pytest.raises(ValueError, match="round_to_fp16"):
        reference.encode(torch.zeros(1), "fp16")
    with pytest.raises(ValueError, match="code: got 256"):
        reference.decode_code(256, "e4m3")


def test_strided_storage_decodes_in_place() -> None:
    base = torch.arange(256, dtype=torch.uint8).reshape(4, 2, 32)
    for view in (base.transpose(0, 2), base[:, 1, ::3], base.view(torch.float8_e4m3fn)[:, 0, 5:]):
        expected = reference.decode(view.contiguous(), "e4m3")
        torch.testing.assert_close(reference.decode(view, "e4m3"), expected, rtol=0, atol=0, equal_nan=True)
