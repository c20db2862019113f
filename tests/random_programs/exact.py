"""Arithmetic with one rounding, in numpy: what IEEE 754 and the PTX manual say of single and half precision.

Sums are formed in double precision and rounded to odd: where the double is not exact, the neighbour with an odd last
bit is taken. A double rounded so still tells on which side of every number of a narrower format, and of every tie
between two of them, the exact value lies, so that narrowing it rounds the exact value once, in any direction.
"""

from __future__ import annotations

import numpy as np

#: How a result is rounded: to nearest even, toward minus infinity, plus infinity, zero.
ROUNDINGS = ("rn", "rm", "rp", "rz")


def _sum_to_odd(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y of doubles, rounded to odd."""
    total = x + y
    with np.errstate(invalid="ignore"):
        part = total - x
        rest = (x - (total - part)) + (y - part)  # Knuth's: total + rest is the exact sum
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (rest != 0) & (bits & 1 == 0)
    return np.where(inexact, bits + np.where((rest > 0) == (total > 0), 1, -1), bits).view(np.float64)


def narrow(x: np.ndarray, dtype: type, rounding: str = "rn") -> np.ndarray:
    """Doubles, exact or rounded to odd, in a narrower format."""
    nearest = x.astype(dtype)
    back = nearest.astype(np.float64)
    if rounding == "rm":
        return np.where(back > x, np.nextafter(nearest, dtype(-np.inf)), nearest)
    if rounding == "rp":
        return np.where(back < x, np.nextafter(nearest, dtype(np.inf)), nearest)
    if rounding == "rz":
        return np.where(np.abs(back) > np.abs(x), np.nextafter(nearest, dtype(0)), nearest)
    return nearest


def add(x: np.ndarray, y: np.ndarray, rounding: str = "rn") -> np.ndarray:
    """x + y."""
    return _add_wide(x.astype(np.float64), y.astype(np.float64), x.dtype.type, rounding)


def multiply(x: np.ndarray, y: np.ndarray, rounding: str = "rn") -> np.ndarray:
    """x y."""
    return narrow(x.astype(np.float64) * y.astype(np.float64), x.dtype.type, rounding)


def fused(x: np.ndarray, y: np.ndarray, z: np.ndarray, rounding: str = "rn") -> np.ndarray:
    """x y + z, rounded once; the product of two singles is exact in double precision."""
    return _add_wide(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64), x.dtype.type, rounding)


def _add_wide(x: np.ndarray, y: np.ndarray, dtype: type, rounding: str) -> np.ndarray:
    total = _sum_to_odd(x, y)
    if rounding == "rm":  # an exact zero is negative then, unless both terms are positive zeros
        positive = ~np.signbit(x) & ~np.signbit(y)
        total = np.where((total == 0) & ~positive, -0.0, total)
    return narrow(total, dtype, rounding)


def flush(x: np.ndarray) -> np.ndarray:
    """Subnormal numbers as zeros of their sign."""
    return np.where(np.abs(x) < np.finfo(x.dtype).smallest_normal, np.copysign(x.dtype.type(0), x), x)


def saturate(x: np.ndarray) -> np.ndarray:
    """Between 0 and 1; NaN and -0 become +0."""
    return np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0))


def minimum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The lesser: a number rather than NaN, and -0 rather than +0."""
    return np.where(x == y, np.where(np.signbit(x), x, y), np.fmin(x, y))


def maximum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The greater: a number rather than NaN, and +0 rather than -0."""
    return np.where(x == y, np.where(np.signbit(x), y, x), np.fmax(x, y))


def to_whole(x: np.ndarray, rounding: str) -> np.ndarray:
    """A whole number in the same format."""
    return {"rn": np.rint, "rm": np.floor, "rp": np.ceil, "rz": np.trunc}[rounding](x)


def to_integer(x: np.ndarray, dtype: type, rounding: str) -> np.ndarray:
    """An integer, saturating. NaN gives 0 in 32 bits and the upper bit alone in 64 (PTX manual, cvt)."""
    whole = to_whole(x.astype(np.float64), rounding)
    info = np.iinfo(dtype)
    end = float(info.max) + 1  # a power of two, also where the largest integer is no double
    inside = np.clip(np.where(np.isnan(whole), 0, whole), info.min, np.nextafter(end, 0))
    result = np.where(whole >= end, info.max, inside.astype(dtype))
    nan = dtype(0) if info.bits == 32 else np.uint64(1 << 63).astype(dtype)
    return np.where(np.isnan(whole), nan, result)


def from_integer(x: np.ndarray, dtype: type, rounding: str = "rn") -> np.ndarray:
    """An integer of up to 64 bits as a float."""
    if x.dtype.itemsize < 8:
        return narrow(x.astype(np.float64), dtype, rounding)
    upper = (x >> x.dtype.type(32)).astype(np.float64) * 2.0**32
    lower = (x & x.dtype.type(0xFFFFFFFF)).astype(np.float64)
    return narrow(_sum_to_odd(upper, lower), dtype, rounding)
