"""The arithmetic that random programs are judged by, against exact rationals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.random_programs import exact

COUNT = 400


def exactly_rounded(value: Fraction, dtype: type, rounding: str) -> float:
    """The number of the format that the rounding asks for, by search from the definition."""
    info = np.finfo(dtype)
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    exponent -= magnitude < Fraction(2) ** exponent
    quantum = Fraction(2) ** max(exponent - info.nmant, int(info.minexp) - info.nmant)
    below = value // quantum * quantum
    above = below if below == value else below + quantum
    toward_zero = below if value > 0 else above
    if rounding == "rn":
        chosen = round(value / quantum) * quantum  # Python rounds ties to even
    else:
        chosen = {"rm": below, "rp": above, "rz": toward_zero}[rounding]
    largest = Fraction(float(info.max))
    if abs(chosen) > largest:
        outward = rounding == "rn" or (rounding == "rp" and value > 0) or (rounding == "rm" and value < 0)
        return float(np.copysign(np.inf if outward else float(info.max), float(chosen > 0) - 0.5))
    return float(chosen)


def operands(dtype: type, seed: int) -> tuple[np.ndarray, ...]:
    """Any finite bits, numbers that cancel, and numbers near each other."""
    rng = np.random.default_rng(seed)
    bits = np.uint16 if dtype is np.float16 else np.uint32
    found = []
    for _ in range(3):
        x = rng.integers(0, 2 ** (8 * np.dtype(bits).itemsize), COUNT, bits).view(dtype)
        x = np.where(np.isfinite(x), x, dtype(1))
        x[COUNT // 2 :] = (rng.standard_normal(COUNT // 2) * 2.0 ** rng.integers(-12, 4, COUNT // 2)).astype(dtype)
        found.append(x)
    a, b, c = found
    c[-40:] = -(a[-40:].astype(np.float64) * b[-40:].astype(np.float64)).astype(dtype)  # fma leaves the rounding error
    return a, b, c


@pytest.mark.parametrize("rounding", exact.ROUNDINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_one_rounding(dtype, rounding):
    a, b, c = operands(dtype, 1)
    with np.errstate(all="ignore"):
        got = [exact.add(a, b, rounding), exact.multiply(a, b, rounding), exact.fused(a, b, c, rounding)]
    for i in range(COUNT):
        x, y, z = (Fraction(float(v[i])) for v in (a, b, c))
        for result, value in zip(got, (x + y, x * y, x * y + z), strict=True):
            assert float(result[i]) == exactly_rounded(value, dtype, rounding), (a[i], b[i], c[i], rounding)


def test_signs_of_zero():
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    for rounding in exact.ROUNDINGS:
        assert np.signbit(exact.add(one, -one, rounding))[0] == (rounding == "rm")
        assert not np.signbit(exact.add(zero, zero, rounding))[0]
        assert np.signbit(exact.add(-zero, -zero, rounding))[0]
        assert np.signbit(exact.multiply(-zero, one, rounding))[0]


@pytest.mark.parametrize("rounding", exact.ROUNDINGS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_integers_from_floats_saturate(dtype, rounding):
    info = np.iinfo(dtype)
    x = np.concatenate(
        [
            operands(np.float32, 2)[0],
            np.array([2.0**31, -(2.0**31), 2.0**63, -(2.0**63), 2.0**64, 0.5, 1.5, -0.5], np.float32),
        ]
    )
    x = np.concatenate([x, np.nextafter(x[-8:], np.float32(0)), np.array([np.inf, -np.inf], np.float32)])
    got = exact.to_integer(x, dtype, rounding)
    for value, result in zip(x, got, strict=True):
        if np.isinf(value):
            whole = info.max if value > 0 else info.min
        else:
            fraction = Fraction(float(value))
            whole = {"rn": round, "rm": lambda v: v // 1, "rp": lambda v: -(-v // 1), "rz": int}[rounding](fraction)
        assert int(result) == min(max(int(whole), info.min), info.max), (value, rounding)
    nan = exact.to_integer(np.array([np.nan], np.float32), dtype, rounding)
    assert int(nan.view(np.uint32 if info.bits == 32 else np.uint64)[0]) == (0 if info.bits == 32 else 1 << 63)


@pytest.mark.parametrize("rounding", exact.ROUNDINGS)
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_floats_from_integers(dtype, rounding):
    info = np.iinfo(dtype)
    rng = np.random.default_rng(3)
    x = rng.integers(info.min, info.max, COUNT, dtype, endpoint=True) >> rng.integers(0, info.bits - 1, COUNT).astype(
        dtype
    )
    x[:3] = info.min, info.max, 2**24 + 1
    got = exact.from_integer(x, np.float32, rounding)
    for value, result in zip(x, got, strict=True):
        assert float(result) == exactly_rounded(Fraction(int(value)), np.float32, rounding), (value, rounding)
