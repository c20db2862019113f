"""Integer operations of 32 and 64 bits, exact in numpy."""

from __future__ import annotations

import numpy as np

from tests.random_programs.operations import Table
from tests.random_programs.values import BOOL, U32, U64, select

ONES = np.uint32(0xFFFFFFFF)


def signed(x: np.ndarray) -> np.ndarray:
    """The same bits as a signed integer."""
    return x.view(np.int32 if x.dtype == np.uint32 else np.int64)


def unsigned(x: np.ndarray) -> np.ndarray:
    """The same bits as an unsigned integer."""
    return x.view(np.uint32 if x.dtype == np.int32 else np.uint64)


def u32(x: np.ndarray) -> np.ndarray:
    """The lower 32 bits."""
    return x.astype(np.uint32)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.uint64)


def signed_wide(x: np.ndarray) -> np.ndarray:
    return signed(x).astype(np.int64)


def shift_left(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    """Zero from a shift by the width on."""
    width = x.dtype.type(8 * x.itemsize)
    n = n.astype(x.dtype)
    return np.where(n < width, x << np.minimum(n, width - x.dtype.type(1)), x.dtype.type(0))


def shift_right(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    width = x.dtype.type(8 * x.itemsize)
    n = n.astype(x.dtype)
    return np.where(n < width, x >> np.minimum(n, width - x.dtype.type(1)), x.dtype.type(0))


def shift_right_signed(x: np.ndarray, n: np.ndarray) -> np.ndarray:
    most = 8 * x.itemsize - 1
    return unsigned(signed(x) >> np.minimum(n.astype(np.int64), most).astype(signed(x).dtype))


def logic3(x: np.ndarray, y: np.ndarray, z: np.ndarray, table: int) -> np.ndarray:
    """Bit by bit what the table holds at x y z."""
    result = np.zeros_like(x)
    for index in range(8):
        if table >> index & 1:
            a, b, c = (v if index >> place & 1 else ~v for v, place in ((x, 2), (y, 1), (z, 0)))
            result |= a & b & c
    return result


def bytes_of(x: np.ndarray) -> np.ndarray:
    """[..., 4], the lowest first."""
    return (x[:, None] >> (np.uint32(8) * np.arange(4, dtype=np.uint32))) & np.uint32(255)


def from_bytes(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << (np.uint32(8) * np.arange(4, dtype=np.uint32))).sum(1, dtype=np.uint32)


def permute(x: np.ndarray, y: np.ndarray, selector: np.ndarray | int) -> np.ndarray:
    """PTX prmt: four times one byte of eight, or its sign eight times."""
    pool = np.concatenate([bytes_of(x), bytes_of(y)], 1)
    selector = np.broadcast_to(np.asarray(selector, np.uint32), x.shape)
    nibbles = selector[:, None] >> (np.uint32(4) * np.arange(4, dtype=np.uint32)) & np.uint32(15)
    chosen = np.take_along_axis(pool, (nibbles & np.uint32(7)).astype(np.int64), 1)
    sign = np.where(chosen & np.uint32(128), np.uint32(255), np.uint32(0))
    return from_bytes(np.where(nibbles & np.uint32(8), sign, chosen))


#: Modes of prmt: the bytes that the two lower bits of the selector choose.
PERMUTE_MODES = {
    "f4e": ((0, 1, 2, 3), (1, 2, 3, 4), (2, 3, 4, 5), (3, 4, 5, 6)),
    "b4e": ((0, 7, 6, 5), (1, 0, 7, 6), (2, 1, 0, 7), (3, 2, 1, 0)),
    "rc8": ((0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)),
    "ecl": ((0, 1, 2, 3), (1, 1, 2, 3), (2, 2, 2, 3), (3, 3, 3, 3)),
    "ecr": ((0, 0, 0, 0), (0, 1, 1, 1), (0, 1, 2, 2), (0, 1, 2, 3)),
    "rc16": ((0, 1, 0, 1), (2, 3, 2, 3), (0, 1, 0, 1), (2, 3, 2, 3)),
}


def permute_mode(x: np.ndarray, y: np.ndarray, selector: np.ndarray, mode: str) -> np.ndarray:
    pool = np.concatenate([bytes_of(x), bytes_of(y)], 1)
    places = np.array(PERMUTE_MODES[mode])[(selector & np.uint32(3)).astype(np.int64)]
    return from_bytes(np.take_along_axis(pool, places, 1))


def field(x: np.ndarray, start: np.ndarray, length: np.ndarray, *, extend: bool) -> np.ndarray:
    """PTX bfe: bits past the word are its upper bit if signed, as are those past the field."""
    start, length = ((v & np.uint32(255)).astype(np.int64) for v in (start, length))
    value = signed_wide(x) if extend else wide(x).astype(np.int64)
    shifted = value >> np.minimum(start, 63)
    kept = np.minimum(length, 32)
    part = shifted & ((np.int64(1) << kept) - 1)
    if extend:
        top = part >> np.maximum(kept - 1, 0) & 1
        part = np.where((top == 1) & (kept > 0), part - (np.int64(1) << kept), part)
    return part.astype(np.uint64).astype(np.uint32)


def insert_field(x: np.ndarray, y: np.ndarray, start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """PTX bfi: the lower bits of x over those of y from `start` on."""
    start, length = ((v & np.uint32(255)).astype(np.uint64) for v in (start, length))
    one = np.uint64(1)
    mask = shift_left((one << np.minimum(length, np.uint64(32))) - one, start)
    return u32((wide(y) & ~mask) | (shift_left(wide(x), start) & mask))


def ones(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """So many ones from a bit on."""
    return u32((np.uint64(1) << wide(length)) - np.uint64(1) << wide(start))


def leading_zeros(x: np.ndarray) -> np.ndarray:
    """Of 32 or 64 bits."""
    width = 8 * x.itemsize
    return np.array([width - int(v).bit_length() for v in x], np.uint32)


def reverse(x: np.ndarray) -> np.ndarray:
    width = 8 * x.itemsize
    return np.array([int(f"{int(v):0{width}b}"[::-1], 2) for v in x], x.dtype)


def leading_one(x: np.ndarray) -> np.ndarray:
    """Its place, or all ones in a zero."""
    return np.where(x == 0, ONES, np.uint32(31) - leading_zeros(x))


def leading_difference(x: np.ndarray) -> np.ndarray:
    """The place of the upper bit that is not the sign."""
    return leading_one(np.where(signed(x) < 0, ~x, x))


def product_high(x: np.ndarray, y: np.ndarray, *, as_signed: bool) -> np.ndarray:
    """The upper half of the product."""
    width = 8 * x.itemsize
    a, b = (signed(v) if as_signed else v for v in (x, y))
    if width == 32:
        return (
            a.astype(np.int64 if as_signed else np.uint64) * b >> (np.int64 if as_signed else np.uint64)(32)
        ).astype(np.uint32)
    return np.array([(int(p) * int(q) >> 64) & (2**64 - 1) for p, q in zip(a, b, strict=True)], np.uint64)


def dot(x: np.ndarray, y: np.ndarray, z: np.ndarray, *, as_signed: bool) -> np.ndarray:
    a, b = bytes_of(x).astype(np.int64), bytes_of(y).astype(np.int64)
    if as_signed:
        a, b = (a ^ 128) - 128, (b ^ 128) - 128
    return u32(wide(z) + (a * b).sum(1).astype(np.uint64))


def carries(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    first = wide(x) + wide(y) >> np.uint64(32)
    second = wide(y) + wide(z) + first >> np.uint64(32)
    return u32(wide(z) + wide(x) + second)


def borrows(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    first = (x < y).astype(np.int64)
    second = (y.astype(np.int64) - z.astype(np.int64) - first < 0).astype(np.int64)
    return (z.astype(np.int64) - x.astype(np.int64) - second).astype(np.uint64).astype(np.uint32)


def divide_signed(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quotient toward zero and the rest, by a positive divisor."""
    a, b = signed(x).astype(np.int64), signed(y).astype(np.int64)
    quotient = np.abs(a) // b * np.sign(a)
    return quotient.astype(np.uint64).astype(np.uint32), (a - quotient * b).astype(np.uint64).astype(np.uint32)


def arithmetic(t: Table) -> None:
    two, three = (U32, U32), (U32, U32, U32)
    t.add("integer", U32, two, "{0} + {1}", lambda a, b: a + b)
    t.add("integer", U32, two, "{0} - {1}", lambda a, b: a - b)
    t.add("integer", U32, two, "{0} * {1}", lambda a, b: a * b)
    t.add("integer", U32, three, "{0} * {1} + {2}", lambda a, b, c: a * b + c)
    t.add("integer", U32, three, "{2} - {0} * {1}", lambda a, b, c: c - a * b)
    t.add("integer", U32, three, "{0} + {1} - {2}", lambda a, b, c: a + b - c)
    t.add("integer", U32, three, "{0} - {1} - {2}", lambda a, b, c: a - b - c)
    t.add("integer", U32, U32, "0u - {0}", lambda a: np.uint32(0) - a)
    t.add("integer", U32, two, "({0} << {n}) + {1}", lambda a, b, n: (a << np.uint32(n)) + b, fixed=(1, 2, 3, 5, 12))
    t.add("integer", U32, two, "{1} - ({0} << {n})", lambda a, b, n: b - (a << np.uint32(n)), fixed=(1, 4))
    t.add("integer", U32, U32, "{0} * {n}u", lambda a, n: a * np.uint32(n), fixed=(3, 5, 10, 31, 2654435761))
    for name, as_signed in (("__umulhi({0}, {1})", False), ("(unsigned)__mulhi((int){0}, (int){1})", True)):
        t.add("integer", U32, two, name, lambda a, b, s=as_signed: product_high(a, b, as_signed=s))
    for name, as_signed in (("multiply_high_add", False), ("multiply_high_add_signed", True)):
        text = name + "({0}, {1}, {2})"
        t.add("integer", U32, three, text, lambda a, b, c, s=as_signed: product_high(a, b, as_signed=s) + c)
    t.add("integer", U32, two, "min({0}, {1})", np.minimum)
    t.add("integer", U32, two, "max({0}, {1})", np.maximum)
    for name, function in (("min", np.minimum), ("max", np.maximum)):
        text = "(unsigned)" + name + "((int){0}, (int){1})"
        t.add("integer", U32, two, text, lambda a, b, f=function: unsigned(f(signed(a), signed(b))))
    t.add("integer", U32, U32, "absolute({0})", lambda a: np.where(signed(a) < 0, np.uint32(0) - a, a))
    t.add(
        "integer", U32, three, "difference_sum({0}, {1}, {2})", lambda a, b, c: c + np.maximum(a, b) - np.minimum(a, b)
    )
    t.add(
        "integer", U32, three, "difference_sum_signed({0}, {1}, {2})",
        lambda a, b, c: c + np.where(signed(a) < signed(b), b - a, a - b),
    )  # fmt: skip
    t.add("integer", U32, three, "__dp4a({0}, {1}, {2})", lambda a, b, c: dot(a, b, c, as_signed=False))
    text = "(unsigned)__dp4a((int){0}, (int){1}, (int){2})"
    t.add("integer", U32, three, text, lambda a, b, c: dot(a, b, c, as_signed=True))
    low24 = np.uint32(0xFFFFFF)
    t.add("integer", U32, two, "__umul24({0}, {1})", lambda a, b: (a & low24) * (b & low24))
    t.add("integer", U32, three, "carry_chain({0}, {1}, {2})", carries)
    t.add("integer", U32, three, "borrow_chain({0}, {1}, {2})", borrows)
    t.add("integer", U32, (BOOL, U32, U32), "({0} ? {1} : {2})", select, name="select u32")
    t.add("divide", U32, two, "{0} / ({1} | 1u)", lambda a, b: a // (b | np.uint32(1)))
    t.add("divide", U32, two, "{0} % ({1} & 0xffffu | 1u)", lambda a, b: a % (b & np.uint32(0xFFFF) | np.uint32(1)))
    divisor = "(int)({1} & 0x7fffu | 1u)"
    for place, sign in enumerate("/%"):
        t.add(
            "divide", U32, two, f"(unsigned)((int){{0}} {sign} {divisor})",
            lambda a, b, i=place: divide_signed(a, b & np.uint32(0x7FFF) | np.uint32(1))[i],
        )  # fmt: skip
    by = (3, 7, 10, 641, 1000003)
    t.add("divide", U32, U32, "{0} / {n}u", lambda a, n: a // np.uint32(n), fixed=by)
    t.add("divide", U32, U32, "{0} % {n}u", lambda a, n: a % np.uint32(n), fixed=by)
    t.add(
        "divide", U32, U32, "(unsigned)((int){0} / {n})", lambda a, n: divide_signed(a, np.full_like(a, n))[0], fixed=by
    )


def logic_and_bits(t: Table) -> None:
    two, three = (U32, U32), (U32, U32, U32)
    t.add("bits", U32, two, "({0} & {1})", lambda a, b: a & b)
    t.add("bits", U32, two, "({0} | {1})", lambda a, b: a | b)
    t.add("bits", U32, two, "({0} ^ {1})", lambda a, b: a ^ b)
    t.add("bits", U32, U32, "~{0}", lambda a: ~a)
    t.add("bits", U32, three, "logic3<{n}>({0}, {1}, {2})", logic3, fixed=tuple(range(256)))
    for amount, name in (("({1} & 31u)", "masked"), ("({1} & 63u)", "clamped")):
        mask = np.uint32(31 if name == "masked" else 63)
        left, right, arithmetic_right = (
            ("({0} << " + amount + ")", "({0} >> " + amount + ")", "(unsigned)((int){0} >> " + amount + ")")
            if name == "masked"
            else (f"shift_{way}_clamped{kind}({{0}}, {amount})" for way, kind in _CLAMPED)
        )
        t.add("bits", U32, two, left, lambda a, b, m=mask: shift_left(a, b & m))
        t.add("bits", U32, two, right, lambda a, b, m=mask: shift_right(a, b & m))
        t.add("bits", U32, two, arithmetic_right, lambda a, b, m=mask: shift_right_signed(a, b & m))
    t.add("bits", U32, U32, "({0} << {n})", lambda a, n: a << np.uint32(n), fixed=(1, 7, 16, 31))
    t.add("bits", U32, U32, "({0} >> {n})", lambda a, n: a >> np.uint32(n), fixed=(1, 7, 16, 31))
    t.add(
        "bits",
        U32,
        U32,
        "(unsigned)((int){0} >> {n})",
        lambda a, n: unsigned(signed(a) >> np.int32(n)),
        fixed=(1, 8, 31),
    )

    def joined(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        return wide(high) << np.uint64(32) | wide(low)

    for way, mode, most in (("l", "", 31), ("r", "", 31), ("l", "c", 32), ("r", "c", 32)):

        def funnel(a: np.ndarray, b: np.ndarray, c: np.ndarray, way: str = way, most: int = most) -> np.ndarray:
            n = c & np.uint32(31) if most == 31 else np.minimum(c, np.uint32(32))
            if way == "l":
                return u32(shift_left(joined(a, b), n) >> np.uint64(32))
            return u32(shift_right(joined(a, b), n))

        amount = "{2}" if most == 31 else "({2} & 63u)"
        compute = funnel if most == 31 else lambda a, b, c, f=funnel: f(a, b, c & np.uint32(63))
        t.add("bits", U32, three, f"__funnelshift_{way}{mode}({{0}}, {{1}}, {amount})", compute)
    selectors = (0x5410, 0x7632, 0x3210, 0x0123, 0x7531, 0x9180, 0xB3A2, 0x4444, 0xFEDC)
    t.add("bits", U32, two, "permute_fixed<{n}>({0}, {1})", permute, fixed=selectors)
    t.add("bits", U32, three, "permute({0}, {1}, {2})", permute)
    for mode in PERMUTE_MODES:
        text = "permute_" + mode + "({0}, {1}, {2})"
        t.add("bits", U32, three, text, lambda a, b, c, m=mode: permute_mode(a, b, c, m))
    # A field starts within the word: ptxas 12.8 takes a signed one that is known to lie outside for all ones.
    for name, extend in (("field_unsigned", False), ("field_signed", True)):
        text = name + "({0}, {1} & 31u, {2} & 63u)"
        t.add(
            "bits", U32, three, text,
            lambda a, b, c, e=extend: field(a, b & np.uint32(31), c & np.uint32(63), extend=e),
        )  # fmt: skip
        text = name + "({0}, {n}, 9u)"
        t.add(
            "bits", U32, U32, text,
            lambda a, n, e=extend: field(a, np.full_like(a, n), np.full_like(a, 9), extend=e), fixed=(0, 5, 23, 28),
        )  # fmt: skip
    t.add(
        "bits", U32, three, "insert_field({0}, {1}, {2} & 31u, {2} >> 8 & 31u)",
        lambda a, b, c: insert_field(a, b, c & np.uint32(31), c >> np.uint32(8) & np.uint32(31)),
    )  # fmt: skip
    # The length never is a parameter of the kernel itself: ptxas 12.8 takes SGXT's operand from another constant then.
    for mode, most in (("clamped", np.uint32(63)), ("wrapped", np.uint32(31))):

        def within(a: np.ndarray, most: np.uint32 = most) -> np.ndarray:
            return np.minimum(a & most, np.uint32(32))

        text = mode + f"({{0}} & {most}u, {{1}} & {most}u)"
        t.add("bits", U32, two, "ones_" + text, lambda a, b, f=within: ones(f(a), f(b)))
        for suffix, extend in (("", False), ("_signed", True)):
            text = f"extended_{mode}{suffix}({{0}}, {{1}} & {most}u)"
            t.add("bits", U32, two, text, lambda a, b, f=within, e=extend: field(a, np.zeros_like(a), f(b), extend=e))
    t.add("bits", U32, U32, "(unsigned)__popc({0})", lambda a: np.bitwise_count(a).astype(np.uint32))
    t.add("bits", U32, U32, "(unsigned)__clz((int){0})", leading_zeros)
    t.add(
        "bits", U32, U32, "(unsigned)__ffs((int){0})", lambda a: np.uint32(32) - leading_zeros(a & (np.uint32(0) - a))
    )
    t.add("bits", U32, U32, "__brev({0})", reverse)
    t.add("bits", U32, U32, "leading_one({0})", leading_one)
    t.add("bits", U32, U32, "leading_difference({0})", leading_difference)
    t.add(
        "bits", U32, U32, "leading_one_shift({0})", lambda a: np.where(a == 0, ONES, leading_zeros(a))
    )  # the shift that brings the leading one to the top
    for kind, dtype in (("signed char", np.int8), ("short", np.int16), ("unsigned char", np.uint8)):
        text = f"(unsigned)(int)({kind}){{0}}"
        t.add("bits", U32, U32, text, lambda a, d=dtype: unsigned(a.astype(d).astype(np.int32)))


_CLAMPED = (("left", ""), ("right", ""), ("right", "_signed"))


def wide_arithmetic(t: Table) -> None:
    two = (U64, U64)
    t.add("wide", U64, two, "({0} + {1})", lambda a, b: a + b, name="add u64")
    t.add("wide", U64, two, "({0} - {1})", lambda a, b: a - b, name="subtract u64")
    t.add("wide", U64, two, "({0} * {1})", lambda a, b: a * b, name="multiply u64")
    t.add("wide", U64, two, "({0} ^ ~{1})", lambda a, b: a ^ ~b, name="xor not u64")
    t.add("wide", U64, two, "({0} & {1})", lambda a, b: a & b, name="and u64")
    t.add("wide", U64, U64, "(0ull - {0})", lambda a: np.uint64(0) - a)
    t.add("wide", U64, two, "__umul64hi({0}, {1})", lambda a, b: product_high(a, b, as_signed=False))
    t.add("wide", U64, two, "(wide)__mul64hi((long long){0}, (long long){1})",
          lambda a, b: product_high(a, b, as_signed=True))  # fmt: skip
    t.add("wide", U64, two, "min({0}, {1})", np.minimum, name="minimum u64")
    t.add("wide", U64, two, "(wide)max((long long){0}, (long long){1})",
          lambda a, b: unsigned(np.maximum(signed(a), signed(b))))  # fmt: skip
    mask = np.uint64(63)
    t.add("wide", U64, (U64, U32), "({0} << ({1} & 63u))", lambda a, b: shift_left(a, wide(b) & mask), name="shl u64")
    t.add("wide", U64, (U64, U32), "({0} >> ({1} & 63u))", lambda a, b: shift_right(a, wide(b) & mask), name="shr u64")
    t.add("wide", U64, (U64, U32), "(wide)((long long){0} >> ({1} & 63u))",
          lambda a, b: shift_right_signed(a, wide(b) & mask))  # fmt: skip
    t.add("wide", U64, U64, "({0} >> {n})", lambda a, n: a >> np.uint64(n), fixed=(3, 17, 33), name="shr fixed u64")
    t.add("wide", U64, (U64, U64), "({0} << {n}) + {1}", lambda a, b, n: (a << np.uint64(n)) + b, fixed=(2, 7),
          name="scaled add u64")  # fmt: skip
    t.add("wide", U64, (BOOL, U64, U64), "({0} ? {1} : {2})", select, name="select u64")
    t.add("wide", U64, (U32, U32), "((wide){1} << 32 | {0})", lambda a, b: wide(b) << np.uint64(32) | wide(a))
    t.add("wide", U64, U32, "(wide)(long long)(int){0}", lambda a: unsigned(signed_wide(a)))
    t.add("wide", U64, (U32, U32), "multiply_wide({0}, {1})", lambda a, b: wide(a) * wide(b))
    t.add("wide", U64, (U32, U32), "multiply_wide_signed({0}, {1})",
          lambda a, b: unsigned(signed_wide(a) * signed_wide(b)))  # fmt: skip
    t.add("wide", U64, (U32, U32, U64), "(multiply_wide({0}, {1}) + {2})", lambda a, b, c: wide(a) * wide(b) + c)
    t.add("wide", U64, (U32, U32, U64), "(multiply_wide_signed({0}, {1}) + {2})",
          lambda a, b, c: unsigned(signed_wide(a) * signed_wide(b)) + c)  # fmt: skip
    t.add("wide", U64, U64, "__brevll({0})", reverse)
    t.add("wide", U32, U64, "(unsigned){0}", u32, name="low word")
    t.add("wide", U32, U64, "(unsigned)({0} >> 32)", lambda a: u32(a >> np.uint64(32)), name="high word")
    t.add("wide", U32, U64, "(unsigned)__popcll({0})", lambda a: np.bitwise_count(a).astype(np.uint32))
    t.add("wide", U32, U64, "(unsigned)__clzll((long long){0})", leading_zeros)
    t.add(
        "divide", U64, (U64, U64), "({0} / ({1} >> 20 | 1ull))", lambda a, b: a // (b >> np.uint64(20) | np.uint64(1))
    )
    t.add("divide", U64, (U64, U64), "({0} % ({1} | 1ull))", lambda a, b: a % (b | np.uint64(1)))


def comparisons(t: Table) -> None:
    for sign, function in (
        ("<", np.less), ("<=", np.less_equal), ("==", np.equal), ("!=", np.not_equal), (">", np.greater),
        (">=", np.greater_equal),
    ):  # fmt: skip
        t.add("compare", BOOL, (U32, U32), f"({{0}} {sign} {{1}})", function, name=f"u32 {sign}")
        t.add("compare", BOOL, (U64, U64), f"({{0}} {sign} {{1}})", function, name=f"u64 {sign}")
        if sign in "<=>=":
            for type_, cuda in ((U32, "int"), (U64, "long long")):
                text = f"(({cuda}){{0}} {sign} ({cuda}){{1}})"
                t.add("compare", BOOL, (type_, type_), text, lambda a, b, f=function: f(signed(a), signed(b)))
    t.add("compare", BOOL, U32, "(({0} >> {n} & 1u) != 0u)", lambda a, n: (a >> np.uint32(n) & np.uint32(1)) != 0,
          fixed=(0, 1, 3, 7, 13))  # fmt: skip
    t.add("compare", BOOL, U32, "(({0} & {n}u) == 0u)", lambda a, n: (a & np.uint32(n)) == 0, fixed=(3, 5, 12))
    t.add("compare", BOOL, (BOOL, BOOL), "({0} && {1})", lambda a, b: a & b)
    t.add("compare", BOOL, (BOOL, BOOL), "({0} || {1})", lambda a, b: a | b)
    t.add("compare", BOOL, (BOOL, BOOL), "({0} != {1})", lambda a, b: a ^ b)
    t.add("compare", BOOL, BOOL, "!{0}", lambda a: ~a)
    t.add("compare", BOOL, (U32, U32, BOOL), "equal_xor({0}, {1}, {2})", lambda a, b, c: (a == b) ^ c)
    t.add("compare", U32, BOOL, "(unsigned){0}", lambda a: a.astype(np.uint32), name="bool to u32")
    t.add("compare", U32, BOOL, "(0u - (unsigned){0})", lambda a: np.uint32(0) - a.astype(np.uint32))


def add_all(t: Table) -> None:
    """Every integer operation."""
    arithmetic(t)
    logic_and_bits(t)
    wide_arithmetic(t)
    comparisons(t)
