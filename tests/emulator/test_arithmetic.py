"""Arithmetic and conversions against numpy, bit for bit where the operation is exactly rounded."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from .rounding import round_fraction

SPECIAL_FLOATS = np.array(
    [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-45,
        -1e-40,
        1.17549435e-38,
        3.4028235e38,
        -3.4028235e38,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
    ],
    np.float32,
)
BLOCK = 128


def grid(n: int) -> int:
    return -(-n // BLOCK)


def float_operands(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs of every special value, then random bit patterns and ordinary numbers."""
    k = len(SPECIAL_FLOATS)
    a, b, c = (rng.integers(0, 2**32, n, np.uint32).view(np.float32) for _ in range(3))
    half = n // 2
    for x in (a, b, c):
        x[half:] = rng.standard_normal(n - half).astype(np.float32) * 10
    a[: k * k], b[: k * k] = np.repeat(SPECIAL_FLOATS, k), np.tile(SPECIAL_FLOATS, k)
    c[: k * k] = rng.choice(SPECIAL_FLOATS, k * k)
    return a, b, c


def assert_same_floats(got: np.ndarray, expected: np.ndarray, what: str) -> None:
    """Equal bits, with every NaN the canonical one."""
    bits = np.dtype(f"u{got.itemsize}")
    canonical = {2: 0x7FFF, 4: 0x7FFFFFFF, 8: 0xFFF8000000000000}[got.itemsize]
    want = np.where(np.isnan(expected), bits.type(canonical), expected.view(bits))
    different = np.flatnonzero(got.view(bits) != want)
    assert different.size == 0, (
        f"{what}: {different.size} differ, first at {different[0]}: {got[different[0]]!r} != {expected[different[0]]!r}"
    )


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c rounded once, through exact rationals."""
    out = np.empty_like(a)
    for i, (x, y, z) in enumerate(zip(a, b, c, strict=True)):
        if not (np.isfinite(x) and np.isfinite(y) and np.isfinite(z)):
            out[i] = np.float64(x) * np.float64(y) + np.float64(z)
            continue
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        if exact == 0:
            out[i] = np.float64(x) * np.float64(y) + np.float64(z)
        else:
            out[i] = round_fraction(exact, a.dtype)
    return out


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(70)


def test_single_precision(compiled, rng):
    n = 2048
    a, b, c = float_operands(rng, n)
    d = np.zeros((12, n), np.float32)
    compiled("arithmetic").kernel("float_basic").launch(grid(n), BLOCK, [a, b, c, d, np.int32(n)], outputs=(3,))
    with np.errstate(all="ignore"):
        assert_same_floats(d[0], a + b, "add")
        assert_same_floats(d[1], a * b, "multiply")
        assert_same_floats(d[2], fused(a, b, c), "fused multiply-add")
        assert_same_floats(d[3], a / b, "divide")
        assert_same_floats(d[4], np.sqrt(np.abs(a)), "square root")
        # A NaN operand loses to a number; -0 is below +0.
        low = np.where(a == b, np.where(np.signbit(a), a, b), np.fmin(a, b))
        high = np.where(a == b, np.where(np.signbit(a), b, a), np.fmax(a, b))
        assert_same_floats(d[5], low, "minimum")
        assert_same_floats(d[6], high, "maximum")
        assert_same_floats(d[7], np.where(a > 0, np.minimum(a, 1), 0).astype(np.float32), "saturate")
        finite = np.isfinite(a)
        assert_same_floats(d[8][finite], np.rint(a)[finite], "round")
        assert_same_floats(d[9][finite], np.floor(a)[finite], "floor")
        assert_same_floats(d[10][finite], np.trunc(a)[finite], "truncate")
        ordered = ~np.isnan(a) & ~np.isnan(c)
        assert_same_floats(d[11][ordered], np.where(a < b, a, -c)[ordered], "select")


def test_flush_to_zero(compiled, rng):
    """Subnormal inputs and results become zeros of their sign; everything else is as without .ftz."""
    n = 2048
    a, b, c = float_operands(rng, n)
    for x in (a, b, c):  # many small numbers, so that results are subnormal too
        x[1024:] = (rng.standard_normal(n - 1024) * 2.0 ** rng.integers(-80, -50, n - 1024)).astype(np.float32)
    a[1500:1800], b[1500:1800] = (rng.integers(0, 2**24, 300, np.uint32).view(np.float32) for _ in range(2))
    d = np.zeros((8, n), np.float32)
    compiled("arithmetic").kernel("float_flushed").launch(grid(n), BLOCK, [a, b, c, d, np.int32(n)], outputs=(3,))

    def flush(x: np.ndarray) -> np.ndarray:
        return np.where(np.abs(x) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), x), x).astype(np.float32)

    x, y, z = flush(a), flush(b), flush(c)
    with np.errstate(all="ignore"):
        assert_same_floats(d[0], flush(x + y), "add")
        assert_same_floats(d[1], flush(x * y), "multiply")
        fma = flush(fused(x, y, z))
        assert_same_floats(d[2], fma, "fused multiply-add")
        finite = np.isfinite(x + y) & np.isfinite(x) & np.isfinite(y)
        assert (np.abs(d[3][finite]) <= np.abs(x.astype(np.float64) + y)[finite]).all()
        low = np.where(x == y, np.where(np.signbit(x), x, y), np.fmin(x, y))
        assert_same_floats(d[4], low, "minimum")
        assert_same_floats(d[5], np.where(fma > 0, np.minimum(fma, 1), 0).astype(np.float32), "saturated")
        assert np.array_equal(d[6], x < y) and np.array_equal(d[7], ~(x <= y))


def test_directed_rounding(compiled, rng):
    n = 512
    a, b, c = (
        rng.standard_normal(n).astype(np.float32) * np.float32(2.0) ** rng.integers(-20, 20, n).astype(np.float32)
        for _ in range(3)
    )
    d = np.zeros((9, n), np.float32)
    compiled("arithmetic").kernel("float_directed").launch(grid(n), BLOCK, [a, b, c, d, np.int32(n)], outputs=(3,))
    for i in range(n):
        x, y, z = (Fraction(float(v[i])) for v in (a, b, c))
        for group, exact in enumerate((x + y, x * y, x * y + z)):
            down, up, zero = (d[3 * group + j, i] for j in range(3))
            assert Fraction(float(down)) <= exact <= Fraction(float(up))
            assert up in (down, np.nextafter(down, np.float32(np.inf)))
            assert zero == (down if exact > 0 else up)


def test_special_functions(compiled, rng):
    """Within 2 units in the last place of the correctly rounded value; sine and cosine within 2^-20.5 absolute."""
    n = 4096
    a = (rng.standard_normal(n) * 8).astype(np.float32)
    a[:8] = [0, 1, -1, 0.5, 2, -126, 64, 3]
    d = np.zeros((12, n), np.float32)
    compiled("arithmetic").kernel("special").launch(grid(n), BLOCK, [a, d, np.int32(n)], outputs=(1,))
    x = a.astype(np.float64)
    with np.errstate(all="ignore"):
        expected = [np.exp2(x), np.log2(np.abs(x)), 1 / x, 1 / np.sqrt(np.abs(x)), np.sin(x), np.cos(x)]
        expected += [np.exp(x), np.log(np.abs(x)), np.tanh(x), np.sin(x), np.exp2(x), 1 / np.sqrt(np.abs(x))]
    for i, want in enumerate(expected):
        got = d[i].astype(np.float64)
        if i in (4, 5):
            # the argument is scaled by 1/2pi in single precision before the unit sees it
            assert np.nanmax(np.abs(got - want)) < np.abs(a).max() * 2.0**-22, i
            continue
        finite = np.isfinite(want) & (want != 0) & (np.abs(want) > 1.2e-38)
        ulp = np.spacing(np.abs(want[finite]).astype(np.float32)).astype(np.float64)
        # lg2 near 1 is specified absolutely
        error = np.abs(got[finite] - want[finite]) / (np.maximum(ulp, 2.0**-22) if i == 1 else ulp)
        assert error.max() <= 2.5, (i, error.max(), a[finite][error.argmax()])
        zero = want == 0
        assert np.array_equal(got[zero], want[zero]) and np.array_equal(
            np.isinf(got), np.isinf(want.astype(np.float32))
        )


def signed(x: np.ndarray) -> np.ndarray:
    return x.astype(np.uint32).view(np.int32)


def test_integers(compiled, rng):
    n = 2048
    edge = np.array([0, 1, -1, 2**31 - 1, -(2**31), 31, 32, 255, 65535, -7], np.int64)
    a, b, c = (rng.integers(-(2**31), 2**31, n) for _ in range(3))
    k = len(edge)
    a[: k * k], b[: k * k], c[: k * k] = np.repeat(edge, k), np.tile(edge, k), rng.choice(edge, k * k)
    b[k * k : k * k + 500] = rng.integers(-20, 20, 500)
    a32, b32, c32 = (x.astype(np.int32) for x in (a, b, c))
    d = np.zeros((23, n), np.int32)
    compiled("arithmetic").kernel("integer").launch(grid(n), BLOCK, [a32, b32, c32, d, np.int32(n)], outputs=(3,))
    m = 0xFFFFFFFF
    ua, ub, uc = a & m, b & m, c & m
    ints = lambda f, *xs: np.array([f(*map(int, v)) & m for v in zip(*xs, strict=True)], np.uint32).view(np.int32)  # noqa: E731
    truncated = lambda p, q: abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1)  # noqa: E731
    byte = lambda v, i: v >> 8 * i & 255  # noqa: E731
    sbyte = lambda v, i: (byte(v, i) ^ 128) - 128  # noqa: E731

    def permute(p: int, q: int, selector: int) -> int:
        pool = p | q << 32
        return sum(byte(pool, selector >> 4 * i & 7) << 8 * i for i in range(4))

    expected = [
        ints(lambda p, q, r: p + q - r, a, b, c),
        ints(lambda p, q, r: p * q + r, a, b, c),
        ints(lambda p, q: p * q >> 32, a, b),
        ints(lambda p, q: p * q >> 32, ua, ub),
        ints(lambda p, q: truncated(p, q or 1), a, b),
        ints(lambda p, q: p % (q or 1), ua, ub),
        np.minimum(a32, b32),
        signed(np.maximum(ua, ub)),
        (a32 & b32) | (~a32 & c32),
        a32 ^ b32 ^ c32,
        ints(lambda p, q: p << (q & 31), ua, ub),
        ints(lambda p, q: p >> (q & 31), a, ub),
        ints(lambda p, q, r: (q << 32 | p) << (r & 31) >> 32, ua, ub, uc),
        ints(lambda p, q, r: (q << 32 | p) >> min(r, 32), ua, ub, uc),
        ints(lambda p: p.bit_count(), ua),
        ints(lambda p: 32 - p.bit_length(), ua),
        ints(lambda p: (p & -p).bit_length(), ua),
        ints(lambda p: int(f"{p:032b}"[::-1], 2), ua),
        ints(permute, ua, ub, uc),
        ints(abs, a),
        ints(lambda p, q, r: r + sum(sbyte(p, i) * sbyte(q, i) for i in range(4)), ua, ub, c),
        ints(lambda p, q, r: (p < q) + 2 * (p & m < q & m) + 4 * (p == r), a, b, c),
        ints(lambda p, q, r: r + sum(byte(p, i) * byte(q, i) for i in range(4)), ua, ub, uc),
    ]
    overflow = (a == -(2**31)) & (b == -1)  # undefined in C
    for i, want in enumerate(expected):
        keep = ~overflow if i == 4 else slice(None)
        assert np.array_equal(d[i][keep], want[keep]), (i, np.flatnonzero(d[i] != want)[:5])


def test_wide_integers(compiled, rng):
    n = 1024
    a, b = (rng.integers(-(2**63), 2**63 - 1, n, np.int64) for _ in range(2))
    a[:200] >>= 40
    b[100:400] >>= 45
    b[400:500] = a[400:500]
    b[500:520] = 0
    d = np.zeros((12, n), np.int64)
    compiled("arithmetic").kernel("wide").launch(grid(n), BLOCK, [a, b, d, np.int32(n)], outputs=(2,))
    m = 2**64 - 1
    for i in range(n):
        p, q = int(a[i]), int(b[i])
        up, uq = p & m, q & m
        quotient = abs(p) // abs(q or 1) * (1 if (p < 0) == ((q or 1) < 0) else -1)
        expected = [
            p + q, p - q, p * q, quotient, up % (uq or 1), up << (uq & 63), p >> (uq & 63), up >> (uq & 63), min(p, q),
            up * uq >> 64, (p < q) + 2 * (up < uq) + 4 * (p >= q) + 8 * (p == q), p * q >> 64,
        ]  # fmt: skip
        got = [int(v) & m for v in d[:, i]]
        assert got == [v & m for v in expected], (i, p, q)


def test_half_pairs(compiled, rng):
    n = 4096
    a, b, c = (rng.integers(0, 2**16, 2 * n, np.uint16).view(np.float16) for _ in range(3))
    for x in (a, b, c):
        x[n:] = rng.standard_normal(n).astype(np.float16)
    d, flags = np.zeros((7, 2 * n), np.float16), np.zeros(n, np.uint32)
    compiled("arithmetic").kernel("half_pairs").launch(grid(n), BLOCK, [a, b, c, d, flags, np.int32(n)], outputs=(3, 4))
    swapped = a.reshape(-1, 2)[:, ::-1].reshape(-1)
    low_b = np.repeat(b[::2], 2)
    with np.errstate(all="ignore"):
        assert_same_floats(d[0], a + b, "add")
        assert_same_floats(d[1], a - b, "subtract")
        assert_same_floats(d[2], a * b, "multiply")
        assert_same_floats(d[3], fused(a, b, c), "fused multiply-add")
        assert_same_floats(d[4], a * low_b, "multiply by the lower half")
        assert_same_floats(d[5], swapped + b, "swapped add")
        assert_same_floats(d[6], fused(a, np.full_like(a, 0.5), c), "fused with a constant")
        al, ah, bl, bh = a[::2], a[1::2], b[::2], b[1::2]
        assert np.array_equal(flags, (al < bl) + 2 * (ah == bh) + 4 * ((al >= bl) & (ah >= bh)))


def test_double_precision(compiled, rng):
    n = 512
    a, b, c = (rng.standard_normal(n) * 10.0 ** rng.integers(-5, 5, n) for _ in range(3))
    d = np.zeros((8, n))
    compiled("arithmetic").kernel("doubles").launch(grid(n), BLOCK, [a, b, c, d, np.int32(n)], outputs=(3,))
    assert np.array_equal(d[0], a + b)
    assert np.array_equal(d[1], a * b)
    assert np.array_equal(
        d[2], [float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in zip(a, b, c, strict=True)]
    )
    assert np.array_equal(d[3], a / b)
    assert np.array_equal(d[4], np.sqrt(np.abs(a)))
    assert np.array_equal(d[5], np.where(a < b, a, c))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(d[6], np.exp(a), rtol=3e-16 * 2)
    assert np.array_equal(d[7], np.fmin(a, b))


def saturate(x: np.ndarray, low: int, high: int) -> np.ndarray:
    x = np.where(np.isnan(x), 0, x)
    return np.array(
        [min(max(int(v), low), high) if np.isfinite(v) else (high if v > 0 else low) for v in x.astype(np.float64)],
        object,
    )


def test_float_conversions(compiled, rng):
    n = 2048
    a = float_operands(rng, n)[0]
    a[300:600] = rng.standard_normal(300) * 1e9
    a[600:900] = rng.standard_normal(300) * 1e-6
    i32, i64 = np.zeros((5, n), np.int32), np.zeros((2, n), np.int64)
    h, f64 = np.zeros((4, n), np.uint16), np.zeros(n)
    compiled("conversion").kernel("floats").launch(
        grid(n), BLOCK, [a, i32, i64, h, f64, np.int32(n)], outputs=(1, 2, 3, 4)
    )
    with np.errstate(all="ignore"):
        rounded = [np.trunc(a), np.trunc(a), np.rint(a), np.floor(a), np.ceil(a)]
    for i, x in enumerate(rounded):
        low, high = (0, 2**32 - 1) if i == 1 else (-(2**31), 2**31 - 1)
        want = saturate(x, low, high)
        assert [int(v) & 0xFFFFFFFF for v in i32[i]] == [int(v) & 0xFFFFFFFF for v in want], i
    number = ~np.isnan(a)
    for i, x in enumerate((np.trunc(a), np.rint(a))):
        assert np.array_equal(i64[i][number], saturate(x[number], -(2**63), 2**63 - 1).astype(np.int64)), i
        assert (i64[i][~number] == -(2**63)).all()
    with np.errstate(all="ignore"):
        assert_same_floats(h[0].view(np.float16), a.astype(np.float16), "nearest")
    values = h.view(np.float16).astype(np.float64)
    finite = np.isfinite(a)
    x = a[finite].astype(np.float64)
    zero, down, up = (values[i][finite] for i in (1, 2, 3))
    assert (down <= x).all() and (up >= x).all()
    assert np.array_equal(zero, np.where(np.signbit(x), up, down))
    with np.errstate(over="ignore"):
        exact = a.astype(np.float16).astype(np.float32) == a
    assert np.array_equal(down[exact[finite]], up[exact[finite]])
    assert_same_floats(f64, a.astype(np.float64), "widen")


def test_integer_conversions(compiled, rng):
    n = 1024
    a, b = rng.integers(-(2**31), 2**31, n).astype(np.int32), rng.integers(-(2**63), 2**63 - 1, n, np.int64)
    a[:100] >>= 20
    b[:300] >>= 30
    f, d = np.zeros((8, n), np.float32), np.zeros((2, n))
    compiled("conversion").kernel("integers").launch(grid(n), BLOCK, [a, b, f, d, np.int32(n)], outputs=(2, 3))
    assert np.array_equal(f[0], a.astype(np.float32))
    assert np.array_equal(f[1], a.view(np.uint32).astype(np.float32))
    assert (np.abs(f[2].astype(np.float64)) <= np.abs(a.astype(np.float64))).all()
    assert (f[3].astype(np.float64) >= a).all()
    assert np.array_equal(f[4], b.astype(np.float32))
    assert np.array_equal(f[5], b.view(np.uint64).astype(np.float32))
    assert np.array_equal(f[6], a.astype(np.int8).astype(np.float32))
    assert np.array_equal(f[7], a.astype(np.uint16).astype(np.float32))
    assert np.array_equal(d[0], b.astype(np.float64)) and np.array_equal(d[1], a)


def test_every_half_widens_exactly(compiled):
    a = np.arange(2**16, dtype=np.uint16).view(np.float16)
    f = np.zeros(2**16, np.float32)
    compiled("conversion").kernel("halves").launch(512, BLOCK, [a, f, np.int32(2**16)], outputs=(1,))
    assert_same_floats(f, a.astype(np.float32), "half to float")


def test_double_narrowing(compiled, rng):
    n = 1024
    a = rng.standard_normal(n) * 10.0 ** rng.integers(-50, 50, n)
    a[:5] = [0.0, -0.0, np.inf, 2**31, -(2.0**63)]
    f, i32, i64 = np.zeros(n, np.float32), np.zeros(n, np.int32), np.zeros(n, np.int64)
    compiled("conversion").kernel("narrowing").launch(grid(n), BLOCK, [a, f, i32, i64, np.int32(n)], outputs=(1, 2, 3))
    with np.errstate(all="ignore"):
        assert_same_floats(f, a.astype(np.float32), "double to float")
    assert np.array_equal(i32, saturate(np.trunc(a), -(2**31), 2**31 - 1).astype(np.int32))
    assert np.array_equal(i64, saturate(np.trunc(a), -(2**63), 2**63 - 1).astype(np.int64))


def test_every_e4m3_byte_by_bit_moves(compiled):
    """The widening without arithmetic: value times 2^-8 for all finite bytes."""
    packed = np.arange(256, dtype=np.uint8)
    halves = np.zeros(256, np.float16)
    compiled("conversion").kernel("e4m3").launch(1, 64, [packed, halves, np.int32(64)], outputs=(1,))
    for byte in range(256):
        if byte & 0x7F == 0x7F:
            continue  # NaN has no place in this move
        exponent, mantissa = byte >> 3 & 15, byte & 7
        magnitude = (8 + mantissa) * 2.0 ** (exponent - 10) if exponent else mantissa * 2.0**-9
        assert float(halves[byte]) == (-magnitude if byte & 0x80 else magnitude) * 2.0**-8, byte
        assert np.signbit(halves[byte]) == bool(byte & 0x80)
