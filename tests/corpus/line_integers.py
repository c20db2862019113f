"""Integer arithmetic, shifts and addresses, with operands in registers, constants and immediates."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np

from tests.corpus.lines import A, B, C, K, L, Lines, P, Take, V, W, after, number
from tests.random_programs import integer_operations as of
from tests.random_programs.integer_operations import signed, u32, unsigned, wide

WORDS: dict[str, Take] = {
    "{a}": A, "{b}": B, "{c}": C, "{k}": K, "-77": number(np.uint32(2**32 - 77)), "19": number(np.uint32(19)),
    "0": number(np.uint32(0)), "5": number(np.uint32(5)), "37": number(np.uint32(37)),
}  # fmt: skip
WIDES: dict[str, Take] = {"{w}": W, "{v}": V, "{l}": L, "0x7fff0000000f": number(np.uint64(0x7FFF0000000F))}
PLUS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"add": operator.add, "sub": operator.sub}

#: Makes one word of the two of {x0}.
MIXED = " mov.b64 {{{t2}, {t3}}}, {x0}; shf.l.wrap.b32 {t2}, {t2}, {t2}, 7; xor.b32 {d}, {t2}, {t3};"


def mixed(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """The same of a 64-bit result."""

    def compute(*operands: np.ndarray) -> np.ndarray:
        x = function(*operands)
        low, high = u32(x), u32(x >> np.uint64(32))
        return (low << np.uint32(7) | low >> np.uint32(25)) ^ high

    return compute


def _two(first: str, second: str) -> Callable[..., np.ndarray]:
    """Two additions or subtractions."""
    return lambda x, y, z: PLUS[second](PLUS[first](x, y), z)


def _product(sign: str) -> Callable[..., np.ndarray]:
    """All 64 bits of the product, plus a sum."""

    def compute(x: np.ndarray, y: np.ndarray, z: np.ndarray | None = None) -> np.ndarray:
        if sign == "s":
            product = unsigned(signed(x).astype(np.int64) * signed(y).astype(np.int64))
        else:
            product = wide(x) * wide(y)
        return product if z is None else product + z

    return compute


def _high_product(sign: str) -> Callable[..., np.ndarray]:
    return lambda x, y: of.product_high(x, y, as_signed=sign == "s")


def _of_signed(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    return lambda x, y: unsigned(function(signed(x), signed(y)))


def sums() -> Lines:
    """IADD3 with all signs, and of 64 bits, where carries go on; IMAD; IMNMX."""
    lines = Lines("integer_sums")
    for (second, third), first_sign, second_sign in itertools.product(
        (("{b}", "{c}"), ("{b}", "{k}"), ("{b}", "19"), ("{k}", "{b}")), PLUS, PLUS
    ):
        lines.add(
            f"{first_sign}.s32 {{t0}}, {{a}}, {second}; {second_sign}.s32 {{d}}, {{t0}}, {third};",
            _two(first_sign, second_sign), A, WORDS[second], WORDS[third],
        )  # fmt: skip
    for text, take in (("{k}", K), ("{a}", A)):
        lines.add(f"neg.s32 {{d}}, {text};", lambda x: np.uint32(0) - x, take)
    lines.add("sub.s32 {d}, 19, {a};", lambda x: np.uint32(19) - x, A)
    lines.add("sub.s32 {d}, {k}, {a};", operator.sub, K, A)
    for (second, take), sign in itertools.product(WIDES.items(), PLUS):
        lines.add(f"{sign}.s64 {{x0}}, {{w}}, {second};" + MIXED, mixed(PLUS[sign]), W, take)
        for third, other in itertools.product(("{l}", "{v}", "0x7fff0000000f"), PLUS):
            lines.add(
                f"{sign}.s64 {{x0}}, {{w}}, {second}; {other}.s64 {{x0}}, {{x0}}, {third};" + MIXED,
                mixed(_two(sign, other)), W, take, WIDES[third],
            )  # fmt: skip
    for second in ("{b}", "{k}", "-77", "19"):
        y = WORDS[second]
        for third in ("{c}", "{k}", "19"):
            lines.add(f"mad.lo.s32 {{d}}, {{a}}, {second}, {third};", lambda x, y, z: x * y + z, A, y, WORDS[third])
        for sign in "us":
            lines.add(f"mul.hi.{sign}32 {{d}}, {{a}}, {second};", _high_product(sign), A, y)
            lines.add(f"mul.wide.{sign}32 {{x0}}, {{a}}, {second};" + MIXED, mixed(_product(sign)), A, y)
            for third in ("{v}", "{l}"):
                text = f"mad.wide.{sign}32 {{x0}}, {{a}}, {second}, {third};" + MIXED
                lines.add(text, mixed(_product(sign)), A, y, WIDES[third])
        for name, function in (("min", np.minimum), ("max", np.maximum)):
            lines.add(f"{name}.u32 {{d}}, {{a}}, {second};", function, A, y)
            lines.add(f"{name}.s32 {{d}}, {{a}}, {second};", _of_signed(function), A, y)
    lines.add("mul.lo.s32 {t0}, {a}, {b}; sub.s32 {d}, {c}, {t0};", lambda x, y, z: z - x * y, A, B, C)
    lines.add("mul.lo.s32 {t0}, {a}, {b}; sub.s32 {d}, {t0}, {c};", lambda x, y, z: x * y - z, A, B, C)
    return lines


def _scaled(shift: int, sign: str) -> Callable[..., np.ndarray]:
    """An index times a power of two, with a base: their sum, or a difference."""
    return {
        "sum": lambda i, base: (i << i.dtype.type(shift)) + base,
        "less base": lambda i, base: (i << i.dtype.type(shift)) - base,
        "from base": lambda i, base: base - (i << i.dtype.type(shift)),
    }[sign]


def addresses() -> Lines:
    """LEA: an index scaled and added, in 32 and 64 bits. Each line has an index of its own, so that none is shared."""
    lines = Lines("scaled_indices")

    def index() -> tuple[str, Take]:
        key = np.uint32(0x1001 * (len(lines.lines) + 1))
        return f"xor.b32 {{t0}}, {{a}}, {key}; ", after(lambda a: a ^ key, A)

    ends = {"sum": "add.s32 {{d}}, {{t0}}, {0};", "less base": "sub.s32 {{d}}, {{t0}}, {0};",
            "from base": "sub.s32 {{d}}, {0}, {{t0}};"}  # fmt: skip
    widened = {"u64.u32": wide, "s64.s32": lambda x: unsigned(signed(x).astype(np.int64))}
    for shift in (0, 1, 2, 3, 16, 31):
        for base, (sign, end) in itertools.product(("{b}", "{k}", "19", "0"), ends.items()):
            text, i = index()
            text += f"shl.b32 {{t0}}, {{t0}}, {shift}; " + end.format(base).replace("{{", "{").replace("}}", "}")
            lines.add(text, _scaled(shift, sign), i, WORDS[base])
        text, i = index()
        text += f"neg.s32 {{t0}}, {{t0}}; shl.b32 {{d}}, {{t0}}, {shift};"
        lines.add(text, _scaled(shift, "from base"), i, WORDS["0"])
        for base in ("{v}", "{l}"):
            for extend, grown in widened.items():
                text, i = index()
                text += f"cvt.{extend} {{x0}}, {{t0}}; shl.b64 {{x0}}, {{x0}}, {shift}; "
                text += f"add.s64 {{x0}}, {{x0}}, {base};" + MIXED
                lines.add(text, mixed(_scaled(shift, "sum")), after(grown, i), WIDES[base])
            text = f"shl.b64 {{x0}}, {{w}}, {shift}; add.s64 {{x0}}, {{x0}}, {base};" + MIXED
            lines.add(text, mixed(_scaled(shift, "sum")), W, WIDES[base])
    return lines


def shifted_sums() -> Lines:
    """LEA.HI: the upper bits of 64, added to or taken from others; quotients by powers of two; IABS; IMAD.WIDE with a
    constant that has no parameter."""
    lines = Lines("shifted_sums")
    for shift in (1, 3, 12, 28, 31):
        by = number(np.uint64(shift))
        for base in ("{v}", "{l}"):
            text = f"shr.u64 {{x0}}, {{w}}, {shift}; add.s64 {{x0}}, {{x0}}, {base};" + MIXED
            lines.add(text, mixed(lambda w, n, base: (w >> n) + base), W, by, WIDES[base])
        for base in ("{b}", "{k}"):
            upper = f"shr.u64 {{x0}}, {{v}}, {shift}; cvt.u32.u64 {{t0}}, {{x0}}; "
            lines.add(upper + f"add.s32 {{d}}, {{t0}}, {base};", lambda v, n, y: u32(v >> n) + y, V, by, WORDS[base])
            lines.add(upper + f"sub.s32 {{d}}, {{t0}}, {base};", lambda v, n, y: u32(v >> n) - y, V, by, WORDS[base])
            lines.add(upper + f"sub.s32 {{d}}, {base}, {{t0}};", lambda v, n, y: y - u32(v >> n), V, by, WORDS[base])
        if shift < 31:
            power = number(np.uint32(1 << shift))
            lines.add(f"div.s32 {{d}}, {{a}}, {1 << shift};", lambda x, y: of.divide_signed(x, y)[0], A, power)
            lines.add(f"rem.s32 {{d}}, {{c}}, {1 << shift};", lambda x, y: of.divide_signed(x, y)[1], C, power)
    for text, take in (("{k}", K), ("{a}", A)):
        lines.add(f"abs.s32 {{d}}, {text};", lambda x: np.where(signed(x) < 0, np.uint32(0) - x, x), take)
    for sign, second in itertools.product("us", ("{b}", "{k}", "19")):
        constant = 0x7FFF0000000F + 0x100000001 * len(lines.lines)  # each another, or it goes to a register
        text = f"mad.wide.{sign}32 {{x0}}, {{a}}, {second}, {constant};" + MIXED
        lines.add(text, mixed(_product(sign)), A, WORDS[second], number(np.uint64(constant)))
    for shift, (x, take) in itertools.product((2, 7, 30), (("{a}", A), ("{c}", C))):
        upper = f"shr.u32 {{t0}}, {x}, {shift}; "
        by = number(np.uint32(shift))
        lines.add(upper + "sub.s32 {d}, {t0}, {b};", lambda x, n, y: (x >> n) - y, take, by, B)
        lines.add(upper + "sub.s32 {d}, {b}, {t0};", lambda x, n, y: y - (x >> n), take, by, B)
        lines.add(upper + "add.s32 {d}, {t0}, {b};", lambda x, n, y: (x >> n) + y, take, by, B)
        text = upper + "cvt.u64.u32 {x0}, {t0}; add.s64 {x0}, {x0}, {v};" + MIXED
        lines.add(text, mixed(lambda x, n, y: wide(x >> n) + y), take, by, V)
    return lines


def _clamped(function: Callable[..., np.ndarray], most: int) -> Callable[..., np.ndarray]:
    """Shifts by at most the width."""
    return lambda x, n: function(x, np.minimum(n, np.uint32(most)))


def _funnel(way: str, mode: str) -> Callable[..., np.ndarray]:
    def compute(low: np.ndarray, high: np.ndarray, amount: np.ndarray) -> np.ndarray:
        amount = amount & np.uint32(31) if mode == "wrap" else np.minimum(amount, np.uint32(32))
        joined = wide(high) << np.uint64(32) | wide(low)
        return u32(of.shift_left(joined, amount) >> np.uint64(32) if way == "l" else of.shift_right(joined, amount))

    return compute


def shifts() -> Lines:
    """SHF in 32 and 64 bits, by registers, constants and immediates; the constant is as large as a shift may be."""
    lines = Lines("shifts")
    kinds = {"shl.b": of.shift_left, "shr.u": of.shift_right, "shr.s": of.shift_right_signed}
    for amount in ("{b}", "{k}", "5", "37"):
        n = WORDS[amount]
        for text, function in kinds.items():
            lines.add(f"{text}32 {{d}}, {{a}}, {amount};", _clamped(function, 32), A, n)
            lines.add(f"{text}64 {{x0}}, {{w}}, {amount};" + MIXED, mixed(_clamped(function, 64)), W, n)
        lines.add(
            f"and.b32 {{t0}}, {amount}, 31; shr.u32 {{d}}, {{a}}, {{t0}};",
            lambda x, n: of.shift_right(x, n & np.uint32(31)), A, n,
        )  # fmt: skip
        for way, mode in itertools.product("lr", ("wrap", "clamp")):
            lines.add(f"shf.{way}.{mode}.b32 {{d}}, {{a}}, {{c}}, {amount};", _funnel(way, mode), A, C, n)
    for amount in (1, 10, 31):
        by = number(np.uint64(amount))
        lines.add(f"shl.b64 {{x0}}, {{l}}, {amount};" + MIXED, mixed(operator.lshift), L, by)
        lines.add(f"shr.u64 {{x0}}, {{l}}, {amount};" + MIXED, mixed(operator.rshift), L, by)
    for amount in ("{b}", "5", "{a}"):
        for text, function in kinds.items():
            lines.add(f"{text}32 {{d}}, {{k}}, {amount};", _clamped(function, 32), K, WORDS[amount])
    return lines


def _table(number_: int) -> Callable[..., np.ndarray]:
    return lambda x, y, z: of.logic3(x, y, z, number_)


def logic() -> Lines:
    """Every table of LOP3, and its operands in constants and immediates; PRMT; SEL; POPC, BREV."""
    lines = Lines("logic")
    for table in range(256):
        lines.add(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", _table(table), A, B, C)
    for table, (second, third) in itertools.product(
        (0xC0, 0xFC, 0x3C, 0xF8, 0x96, 0xCA, 0xE4, 0x0C, 0x6A),
        (("{k}", "{c}"), ("19", "{c}"), ("{b}", "{k}"), ("{b}", "19")),
    ):
        text = f"lop3.b32 {{d}}, {{a}}, {second}, {third}, {table};"
        lines.add(text, _table(table), A, WORDS[second], WORDS[third])
    selectors = {"{c}": C, "{k}": K, "0x5410": number(np.uint32(0x5410)), "0xba98": number(np.uint32(0xBA98))}
    for (selector, take), second in itertools.product(selectors.items(), ("{b}", "{k}", "19")):
        lines.add(f"prmt.b32 {{d}}, {{a}}, {second}, {selector};", of.permute, A, WORDS[second], take)
    for second in ("{b}", "{k}", "19", "-77"):
        lines.add(f"selp.b32 {{d}}, {{a}}, {second}, {{p}};", np.where, P, A, WORDS[second])
        lines.add(f"not.pred {{s0}}, {{p}}; selp.b32 {{d}}, {{a}}, {second}, {{s0}};", np.where, after(np.invert, P), A,
                  WORDS[second])  # fmt: skip
    singles = {"popc": lambda x: np.bitwise_count(x).astype(np.uint32), "brev": of.reverse, "not": np.invert}
    for name, function in singles.items():
        for text in ("{a}", "{k}"):
            lines.add(f"{name}.b32 {{d}}, {text};", function, WORDS[text])
        lines.add(f"not.b32 {{t0}}, {{a}}; {name}.b32 {{d}}, {{t0}};", function, after(np.invert, A))
    return lines


def differences() -> Lines:
    """IADD3 of a number less two words."""
    lines = Lines("differences")
    for first in ("19", "-77", "{k}"):
        text = f"sub.s32 {{t0}}, {first}, {{a}}; sub.s32 {{d}}, {{t0}}, {{b}};"
        lines.add(text, lambda n, x, y: n - x - y, WORDS[first], A, B)
    return lines


def all_lines() -> list[Lines]:
    """Every list."""
    return [sums(), addresses(), shifted_sums(), shifts(), logic(), differences()]
