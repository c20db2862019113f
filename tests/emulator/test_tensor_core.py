"""HMMA: lane maps of all layouts, and the arithmetic published for Volta."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from sm70_kernels import _emulator

from .rounding import round_fraction

LAYOUTS = ["row_col", "row_row", "col_col", "col_row"]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(884)


# The lane maps of the PTX manual for mma.m8n8k4, for one quad-pair: local lane i = 0..7, element e.


def quad_pair_lanes(q: int) -> list[int]:
    return [4 * q + i for i in range(4)] + [16 + 4 * q + i for i in range(4)]


def a_place(layout: str, i: int, e: int) -> tuple[int, int]:
    """(row, k) that element e of local lane i holds."""
    return (i, e) if layout == "row" else (e + (i & 4), i & 3)


def b_place(layout: str, i: int, e: int) -> tuple[int, int]:
    """(k, column)"""
    return (e, i) if layout == "col" else (i & 3, e + (i & 4))


def c_place_single(i: int, e: int) -> tuple[int, int]:
    return (i & 1) + (e & 2) + (i & 4), (e & 4) + (i & 2) + (e & 1)


def c_place_half(i: int, e: int) -> tuple[int, int]:
    return i, e


def fragments(matrices: np.ndarray, place, elements: int) -> np.ndarray:
    """[4 quad-pairs, rows, columns] to [32 lanes, elements]"""
    out = np.zeros((32, elements), matrices.dtype)
    for q in range(4):
        for i, lane in enumerate(quad_pair_lanes(q)):
            for e in range(elements):
                out[lane, e] = matrices[(q, *place(i, e))]
    return out


def matrices(lanes: np.ndarray, place) -> np.ndarray:
    out = np.zeros((4, 8, 8), lanes.dtype)
    for q in range(4):
        for i, lane in enumerate(quad_pair_lanes(q)):
            for e in range(lanes.shape[1]):
                out[(q, *place(i, e))] = lanes[lane, e]
    return out


def small_integers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Halves whose products and sums are exact in every accumulator, so that only the lane maps matter."""
    return rng.integers(-8, 9, shape).astype(np.float16)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lane_maps_single_precision(compiled, rng, layout):
    la, lb = layout.split("_")
    a, b, c = (
        small_integers(rng, 4, 8, 4),
        small_integers(rng, 4, 4, 8),
        small_integers(rng, 4, 8, 8).astype(np.float32),
    )
    fa, fb = fragments(a, lambda i, e: a_place(la, i, e), 4), fragments(b, lambda i, e: b_place(lb, i, e), 4)
    d = fragments(c, c_place_single, 8)
    compiled("tensor").kernel(f"single_{layout}").launch(1, 32, [fa, fb, d], outputs=(2,))
    assert np.array_equal(matrices(d, c_place_single), a.astype(np.float32) @ b.astype(np.float32) + c)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lane_maps_half_precision(compiled, rng, layout):
    la, lb = layout.split("_")
    a, b, c = small_integers(rng, 4, 8, 4), small_integers(rng, 4, 4, 8), small_integers(rng, 4, 8, 8)
    fa, fb = fragments(a, lambda i, e: a_place(la, i, e), 4), fragments(b, lambda i, e: b_place(lb, i, e), 4)
    d = fragments(c, c_place_half, 8)
    compiled("tensor").kernel(f"half_{layout}").launch(1, 32, [fa, fb, d], outputs=(2,))
    assert np.array_equal(matrices(d, c_place_half), a.astype(np.float32) @ b.astype(np.float32) + c)


def test_lane_maps_half_accumulator_to_single(compiled, rng):
    a, b, c = small_integers(rng, 4, 8, 4), small_integers(rng, 4, 4, 8), small_integers(rng, 4, 8, 8)
    fa, fb = fragments(a, lambda i, e: a_place("row", i, e), 4), fragments(b, lambda i, e: b_place("col", i, e), 4)
    fc, d = fragments(c, c_place_half, 8), np.zeros((32, 8), np.float32)
    compiled("tensor").kernel("mixed_row_col").launch(1, 32, [fa, fb, fc, d], outputs=(3,))
    assert np.array_equal(matrices(d, c_place_single), a.astype(np.float32) @ b.astype(np.float32) + c)


def as_published(a: np.ndarray, b: np.ndarray, c: float, dtype: type) -> float:
    """The arithmetic of Fasi, Higham, Mikaitis, Pranesh, in exact rationals: four products and an addend, cut to 23
    bits below the largest exponent, where that of a product is the sum of its factors'; the sum cut to single
    precision, or rounded to half."""

    def exponent(x: float, least: int) -> int:
        return max(int(np.frexp(x)[1]) - 1, least)

    terms = [
        (Fraction(float(p)) * Fraction(float(q)), exponent(p, -14) + exponent(q, -14))
        for p, q in zip(a, b, strict=True)
        if p and q
    ]
    if c:
        terms.append((Fraction(float(c)), exponent(c, -14 if dtype is np.float16 else -126)))
    if not terms:
        return 0.0
    unit = Fraction(2) ** (max(e for _, e in terms) - 23)
    total = sum(int(term / unit) for term, _ in terms) * unit  # int() cuts toward zero
    return float(round_fraction(total, np.dtype(dtype)) if dtype is np.float16 else cut(total))


def cut(x: Fraction) -> Fraction:
    """The 24 upper bits, within the normal range."""
    if x == 0:
        return x
    magnitude = abs(x)
    place = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    place -= magnitude < Fraction(2) ** place
    unit = Fraction(2) ** (place - 23)
    return int(x / unit) * unit


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("accumulator", ["single", "half"])
def test_every_layout_as_published(compiled, rng, layout, accumulator):
    """Ordinary numbers of different sizes, bit for bit, and within the bound that truncation implies."""
    la, lb = layout.split("_")
    dtype, c_place = (np.float32, c_place_single) if accumulator == "single" else (np.float16, c_place_half)
    a, b, c = (
        (rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 3, shape)).astype(kind)
        for shape, kind in (((4, 8, 4), np.float16), ((4, 4, 8), np.float16), ((4, 8, 8), dtype))
    )
    fa, fb = fragments(a, lambda i, e: a_place(la, i, e), 4), fragments(b, lambda i, e: b_place(lb, i, e), 4)
    d = fragments(c, c_place, 8)
    compiled("tensor").kernel(f"{accumulator}_{layout}").launch(1, 32, [fa, fb, d], outputs=(2,))
    result = matrices(d, c_place)
    for q, row, column in np.ndindex(4, 8, 8):
        want = as_published(a[q, row], b[q, :, column], c[q, row, column], dtype)
        assert result[q, row, column] == want, (q, row, column)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c
    largest = np.maximum(np.abs(a[:, :, None, :] * b.transpose(0, 2, 1)[:, None]).max(-1).astype(np.float64), np.abs(c))
    unit = 6 * 2.0**-22 * largest if accumulator == "single" else 2.0**-11 * np.abs(exact) + 5 * 2.0**-22 * largest
    assert (np.abs(result - exact) <= unit).all()


def test_gemm(compiled, rng):
    m, n, k = 128, 48, 96
    a, b = rng.standard_normal((m, k)).astype(np.float16), rng.standard_normal((n, k)).astype(np.float16)
    c = np.zeros((m, n), np.float32)
    compiled("tensor").kernel("gemm").launch(
        (n // 16, m // 64), 128, [a, b, c, np.int32(m), np.int32(n), np.int32(k)], outputs=(2,)
    )
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    # Each of k/4 steps truncates five terms to 23 bits below the largest of them.
    largest = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert (np.abs(c - exact) <= (k / 4) * 6 * 2.0**-23 * largest).all()
    near = np.zeros_like(c)
    compiled("tensor").kernel("gemm").launch(
        (n // 16, m // 64),
        128,
        [a, b, near, np.int32(m), np.int32(n), np.int32(k)],
        outputs=(2,),
        tensor_rounding="nearest",
    )
    assert np.abs(near - exact).mean() < np.abs(c - exact).mean()


# --- Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330 (2021)


def dot(a, b, c, rounding="truncate") -> float:
    return _emulator.tensor_accumulate([float(x) for x in a], [float(x) for x in b], float(c), 1, rounding)


def dot_half(a, b, c) -> float:
    bits = _emulator.tensor_accumulate_half([float(x) for x in a], [float(x) for x in b], float(c))
    return float(np.array([bits], np.uint16).view(np.float16)[0])


ONES = [1, 1, 1, 1]


def test_subnormals_go_in_and_come_out():
    tiny = 2.0**-24  # smallest subnormal half
    assert dot([tiny, 0, 0, 0], [1, 0, 0, 0], 0) == tiny
    assert dot([tiny, 0, 0, 0], [tiny, 0, 0, 0], 0) == 2.0**-48
    assert dot([0, 0, 0, 0], ONES, 2.0**-149) == 2.0**-149
    assert dot_half([tiny, 0, 0, 0], [1, 0, 0, 0], 0) == tiny
    assert dot_half([2.0**-12, 0, 0, 0], [2.0**-12, 0, 0, 0], 0) == tiny


def test_products_are_exact():
    x = 2047 / 1024  # eleven significant bits, all set
    assert dot([x, 0, 0, 0], [x, 0, 0, 0], 0) == x * x
    assert dot([2 - 2.0**-10, 2.0**-11, 0, 0], [2 - 2.0**-10, 2.0**-11, 0, 0], 0) == (2 - 2.0**-10) ** 2 + 2.0**-22


def test_sum_starts_from_the_largest_and_truncates():
    """Four terms of half a unit in the last place of the fifth vanish, wherever the large one stands."""
    u = 2.0**-24
    assert dot([u] * 4, ONES, 1) == 1
    assert dot([1, 0, 0, 0], ONES, u) == 1
    for where in range(4):
        a = [2.0**-12] * 4
        b = [2.0**-12] * 4
        a[where], b[where] = 1, 1
        assert dot(a, b, u) == 1
    # nothing vanishes among equals
    assert dot([u] * 4, ONES, u) == 5 * u


def test_rounding_toward_zero_on_both_sides():
    ulp = 2.0**-23
    for sign in (1, -1):
        # 2 + ulp lies halfway between 2 and 2 + 2 ulp, 2 + 3 ulp halfway between the next two
        assert dot([sign * 1, sign * ulp, 0, 0], ONES, sign * 1) == sign * 2
        assert dot([sign * 1, sign * 1.5 * ulp, 0, 0], [1, 1, 0, 0], sign * (1 + ulp)) == sign * (2 + 2 * ulp)
        assert dot([sign * 2, 0, 0, 0], [1, 0, 0, 0], sign * ulp * 3) == sign * (2 + 2 * ulp)


def test_half_result_rounds_to_nearest():
    assert dot_half([1, 2.0**-11, 2.0**-12, 0], ONES, 0) == 1 + 2.0**-10  # above the tie
    assert dot_half([1, 2.0**-11, 0, 0], ONES, 0) == 1  # the tie goes to even
    assert dot_half([1, 2.0**-10, 2.0**-11, 0], ONES, 0) == 1 + 2.0**-9  # also to even
    assert dot_half([-1, -(2.0**-11), -(2.0**-12), 0], ONES, 0) == -(1 + 2.0**-10)


def test_no_guard_bits():
    """The difference of 1 and a value just below keeps only what survives the alignment to 1."""
    assert dot([1, 0, 0, 0], [1, 0, 0, 0], -(1 - 2.0**-24)) == 2.0**-23  # exact would be 2^-24


def test_no_normalisation_inside_the_sum():
    """A carry does not move the point: units below that of the largest term count until the end."""
    ulp = 2.0**-23
    # 1 + 1 would drop a single ulp(1) if it were normalised at once; two of them make one ulp(2).
    assert dot([1, ulp, ulp, 0], [1, 1, 1, 0], 1) == 2 + 2 * ulp


def test_carry_bits_on_the_left():
    assert dot([1.5] * 4, [1.5] * 4, 3.0) == 12.0
    big = 65504.0
    assert dot([big] * 4, [big] * 4, big * big) == 5 * big * big - 5 * big * big % 2.0**11  # 24 bits, toward zero


def test_sum_is_not_monotonic():
    """A larger accumulator can give a smaller sum, because it truncates the others more."""
    u = 2.0**-24
    below, above = dot([u] * 4, ONES, 1 - u), dot([u] * 4, ONES, 1)
    assert below == 1 + 2.0**-23 and above == 1


def test_specials():
    inf, nan = np.inf, np.nan
    assert dot([inf, 0, 0, 0], ONES, 0) == inf
    assert np.isnan(dot([inf, -inf, 0, 0], ONES, 0))
    assert np.isnan(dot([inf, 0, 0, 0], [0, 0, 0, 0], 0))
    assert np.isnan(dot([nan, 0, 0, 0], ONES, 0)) and np.isnan(dot([0] * 4, ONES, nan))
    assert dot_half([65504, 0, 0, 0], [2, 0, 0, 0], 0) == inf


@pytest.mark.parametrize(("products", "low", "high"), [(1, 0.9e-3, 1.4e-3), (4, 4.0e-3, 5.3e-3)])
def test_drift_of_a_long_accumulation(products, low, high):
    """One accumulator fed 65536 times with terms of one sign. Each truncation loses half a unit of the last place; the
    unit averages 2/3 of its final value while the sum grows to a power of two, so one product a step loses up to
    65536 * 1/2 * 2/3 * 2^-24 = 1.3e-3 of the sum, a little less because halves are multiples of 2^-11 already. Each
    product is truncated on its own, so four a step lose nearly four times as much."""
    rng = np.random.default_rng(1)
    truncated, nearest, exact = np.float32(0), np.float32(0), 0.0
    for _ in range(65536):
        a = np.zeros(4, np.float16)
        a[:products] = rng.random(products) + 0.5
        truncated, nearest = dot(a, ONES, truncated), dot(a, ONES, nearest, "nearest")
        exact += float(a.astype(np.float64).sum())
    assert low < 1 - truncated / exact < high
    assert abs(1 - nearest / exact) < 1e-5


@pytest.mark.parametrize("kind", ["single", "half", "mixed"])
def test_vector_and_scalar_forms_agree(rng, kind):
    """Random bit patterns in every operand, all layouts and steps."""
    for trial in range(60):
        words = [rng.integers(0, 2**32, (2, 32), np.uint32) for _ in range(3)]
        if trial % 3 == 0:  # ordinary numbers, so that sums are not all dominated by one term
            words[:2] = [rng.standard_normal((2, 64)).astype(np.float16).view(np.uint32) for _ in range(2)]
            words[2] = (
                rng.standard_normal((2, 32)).astype(np.float32).view(np.uint32)
                if kind == "single"
                else rng.standard_normal((2, 64)).astype(np.float16).view(np.uint32)
            )
        if trial % 3 == 1:  # subnormals and zeros
            words[:2] = [w & np.uint32(0x87FF83FF) for w in words[:2]]
            words[2] &= np.uint32(0x80000000 if trial % 2 else 0xA0FFFFFF)
        for a_column in (False, True):
            for b_row in (False, True):
                for step in range(2 if kind == "half" else 4):
                    form = {"step": step, "a_column": a_column, "b_row": b_row}
                    form |= {"d_half": kind == "half", "c_half": kind != "single"}
                    fast, slow = (_emulator.hmma_step(*words, **form, scalar=scalar) for scalar in (False, True))
                    assert np.array_equal(fast, slow), (trial, form)
