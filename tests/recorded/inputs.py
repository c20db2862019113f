"""Inputs that every machine builds alike, so that a recording need not hold them.

Only raw words of PCG64 and exact arithmetic: numpy promises the words for ever, but not its distributions, and the last
bits of its functions depend on the processor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike


class Source:
    """A stream of inputs, told by its seed."""

    def __init__(self, seed: int) -> None:
        self._words = np.random.PCG64(seed)

    def bits(self, count: int, dtype: DTypeLike) -> np.ndarray:
        """Random bit patterns of a type."""
        words = self._words.random_raw(-(-count * np.dtype(dtype).itemsize // 8))
        return words.view(dtype)[:count].copy()

    def integers(self, low: int, high: int, count: int, dtype: DTypeLike = np.int32) -> np.ndarray:
        """Whole numbers from low to below high."""
        offsets = self.bits(count, np.uint64) % np.uint64(high - low)
        return (offsets.astype(np.int64) + low).astype(dtype)

    def ordinary(self, count: int, dtype: DTypeLike = np.float32, exponents: tuple[int, int] = (-4, 4)) -> np.ndarray:
        """Numbers of either sign: 24 random bits between -1 and 1, times a power of two between the exponents."""
        mantissa = self.integers(-(2**23), 2**23, count, np.int64).astype(np.float64) / 2**23
        return np.ldexp(mantissa, self.integers(*exponents, count)).astype(dtype)

    def permutation(self, count: int) -> np.ndarray:
        """The numbers below count in random order."""
        return np.argsort(self.bits(count, np.uint64), kind="stable")


def canonical(array: np.ndarray) -> np.ndarray:
    """The array with every NaN of one bit pattern: PTX says when a result is NaN, not always which."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), array.dtype.type(np.nan), array)


def digest(arrays: Iterable[Any]) -> str:
    """SHA-256 of the bytes, types and shapes of arrays."""
    sha = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        sha.update(f"{array.dtype.str}{array.shape}".encode())
        sha.update(array.tobytes())
    return sha.hexdigest()
