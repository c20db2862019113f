"""Exact fractions, rounded to a floating-point format."""

from __future__ import annotations

from fractions import Fraction

import numpy as np


def round_fraction(value: Fraction, dtype: np.dtype) -> np.floating:
    """The nearest number of the format, ties to even."""
    info = np.finfo(dtype)
    bits, smallest = info.nmant + 1, int(info.minexp) - info.nmant
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** max(exponent - bits + 1, smallest)
    units = round(magnitude / quantum)  # Python rounds halves to even
    scaled = units * quantum
    result = np.array(np.inf if scaled >= Fraction(2) ** int(info.maxexp) else float(scaled)).astype(dtype)
    return dtype.type(-result if value < 0 else result)
