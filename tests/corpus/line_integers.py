"""Integer arithmetic, shifts and addresses, with operands in registers, constants and immediates."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from tests.corpus.lines import Lines, Values
from tests.random_programs import integer_operations as of
from tests.random_programs.integer_operations import signed, u32, unsigned, wide

Take = Callable[[Values], np.ndarray]

WORDS: dict[str, Take] = {
    "{a}": lambda v: v.a, "{b}": lambda v: v.b, "{c}": lambda v: v.c, "{k}": lambda v: v.k,
    "-77": lambda v: np.full_like(v.a, 2**32 - 77), "19": lambda v: np.full_like(v.a, 19),
    "0": lambda v: np.zeros_like(v.a),
}  # fmt: skip
WIDES: dict[str, Take] = {
    "{w}": lambda v: v.w, "{v}": lambda v: v.v, "{l}": lambda v: v.l,
    "0x7fff0000000f": lambda v: np.full_like(v.w, 0x7FFF0000000F),
}  # fmt: skip
#: Stores the two words of {x0} as one that depends on both.
MIXED = " mov.b64 {{{t2}, {t3}}}, {x0}; shf.l.wrap.b32 {t2}, {t2}, {t2}, 7; xor.b32 {d}, {t2}, {t3};"


def mixed(x: np.ndarray) -> np.ndarray:
    low, high = u32(x), u32(x >> np.uint64(32))
    return (low << np.uint32(7) | low >> np.uint32(25)) ^ high


def sums() -> Lines:
    """IADD3 with all signs, and of 64 bits, where carries go on; IMAD."""
    lines = Lines("integer_sums")
    for second, third in (("{b}", "{c}"), ("{b}", "{k}"), ("{b}", "19"), ("{k}", "{b}")):
        for first_sign, second_sign in itertools.product(("add", "sub"), repeat=2):
            lines.add(
                f"{first_sign}.s32 {{t0}}, {{a}}, {second}; {second_sign}.s32 {{d}}, {{t0}}, {third};",
                lambda v, s=WORDS[second], t=WORDS[third], f=first_sign, g=second_sign: _plus(
                    _plus(v.a, s(v), f), t(v), g
                ),
            )
    lines.add("neg.s32 {d}, {k};", lambda v: np.uint32(0) - v.k)
    lines.add("neg.s32 {d}, {a};", lambda v: np.uint32(0) - v.a)
    lines.add("sub.s32 {d}, 19, {a};", lambda v: np.uint32(19) - v.a)
    lines.add("sub.s32 {d}, {k}, {a};", lambda v: v.k - v.a)
    for second in WIDES:
        for sign in ("add", "sub"):
            lines.add(f"{sign}.s64 {{x0}}, {{w}}, {second};" + MIXED, lambda v, t=WIDES[second], s=sign: mixed(_plus(v.w, t(v), s)))
            for third in ("{l}", "{v}", "0x7fff0000000f"):
                if third == second:
                    continue
                for other in ("add", "sub"):
                    lines.add(
                        f"{sign}.s64 {{x0}}, {{w}}, {second}; {other}.s64 {{x0}}, {{x0}}, {third};" + MIXED,
                        lambda v, s=WIDES[second], t=WIDES[third], f=sign, g=other: mixed(
                            _plus(_plus(v.w, s(v), f), t(v), g)
                        ),
                    )
    for second in ("{b}", "{k}", "-77", "19"):
        for third in ("{c}", "{k}", "19"):
            lines.add(
                f"mad.lo.s32 {{d}}, {{a}}, {second}, {third};",
                lambda v, s=WORDS[second], t=WORDS[third]: v.a * s(v) + t(v),
            )
        for sign in "us":
            lines.add(
                f"mul.hi.{sign}32 {{d}}, {{a}}, {second};",
                lambda v, s=WORDS[second], g=sign: of.product_high(v.a, s(v), as_signed=g == "s"),
            )
            for third in ("{v}", "{l}"):
                lines.add(
                    f"mad.wide.{sign}32 {{x0}}, {{a}}, {second}, {third};" + MIXED,
                    lambda v, s=WORDS[second], t=WIDES[third], g=sign: mixed(_wide_product(v.a, s(v), g) + t(v)),
                )
            lines.add(
                f"mul.wide.{sign}32 {{x0}}, {{a}}, {second};" + MIXED,
                lambda v, s=WORDS[second], g=sign: mixed(_wide_product(v.a, s(v), g)),
            )
    lines.add("mul.lo.s32 {t0}, {a}, {b}; sub.s32 {d}, {c}, {t0};", lambda v: v.c - v.a * v.b)
    lines.add("mul.lo.s32 {t0}, {a}, {b}; sub.s32 {d}, {t0}, {c};", lambda v: v.a * v.b - v.c)
    for name, function in (("min", np.minimum), ("max", np.maximum)):
        for second in ("{b}", "{k}", "19"):
            lines.add(f"{name}.u32 {{d}}, {{a}}, {second};", lambda v, f=function, t=WORDS[second]: f(v.a, t(v)))
            lines.add(
                f"{name}.s32 {{d}}, {{a}}, {second};",
                lambda v, f=function, t=WORDS[second]: unsigned(f(signed(v.a), signed(t(v)))),
            )
    return lines


def _plus(x: np.ndarray, y: np.ndarray, sign: str) -> np.ndarray:
    return x + y if sign == "add" else x - y


def _wide_product(x: np.ndarray, y: np.ndarray, sign: str) -> np.ndarray:
    if sign == "u":
        return wide(x) * wide(y)
    return unsigned(signed(x).astype(np.int64) * signed(y).astype(np.int64))


def addresses() -> Lines:
    """LEA: an index scaled and added, in 32 and 64 bits. Each line has an index of its own, so that none is shared."""
    lines = Lines("scaled_indices")

    def index() -> tuple[str, Take]:
        number = np.uint32(0x1001 * (len(lines.lines) + 1))
        return f"xor.b32 {{t0}}, {{a}}, {number}; ", lambda v: v.a ^ number

    def signed_wide(x: np.ndarray) -> np.ndarray:
        return unsigned(signed(x).astype(np.int64))

    for shift in (0, 1, 2, 3, 16, 31):
        n, wide_n = np.uint32(shift), np.uint64(shift)
        for base in ("{b}", "{k}", "19", "0"):
            text, i = index()
            scaled = text + f"shl.b32 {{t0}}, {{t0}}, {shift}; "
            lines.add(scaled + f"add.s32 {{d}}, {{t0}}, {base};", lambda v, i=i, n=n, t=WORDS[base]: (i(v) << n) + t(v))
            text, i = index()
            scaled = text + f"shl.b32 {{t0}}, {{t0}}, {shift}; "
            lines.add(scaled + f"sub.s32 {{d}}, {{t0}}, {base};", lambda v, i=i, n=n, t=WORDS[base]: (i(v) << n) - t(v))
            text, i = index()
            scaled = text + f"shl.b32 {{t0}}, {{t0}}, {shift}; "
            lines.add(scaled + f"sub.s32 {{d}}, {base}, {{t0}};", lambda v, i=i, n=n, t=WORDS[base]: t(v) - (i(v) << n))
        text, i = index()
        lines.add(
            text + f"neg.s32 {{t0}}, {{t0}}; shl.b32 {{d}}, {{t0}}, {shift};",
            lambda v, i=i, n=n: (np.uint32(0) - i(v)) << n,
        )
        for base in ("{v}", "{l}"):
            for extend, grown in (("u64.u32", wide), ("s64.s32", signed_wide)):
                text, i = index()
                lines.add(
                    text + f"cvt.{extend} {{x0}}, {{t0}}; shl.b64 {{x0}}, {{x0}}, {shift}; "
                    f"add.s64 {{x0}}, {{x0}}, {base};" + MIXED,
                    lambda v, i=i, n=wide_n, t=WIDES[base], g=grown: mixed((g(i(v)) << n) + t(v)),
                )
            lines.add(
                f"shl.b64 {{x0}}, {{w}}, {shift}; add.s64 {{x0}}, {{x0}}, {base};" + MIXED,
                lambda v, n=wide_n, t=WIDES[base]: mixed((v.w << n) + t(v)),
            )
    return lines


def addresses_among_products() -> Lines:
    """Where the multipliers are busy already, ptxas scales and negates by LEA, not by IMAD."""
    lines = Lines("scaled_indices_among_products")
    for shift in (1, 3, 4):
        n = np.uint32(shift)
        for first, second, third in (("{a}", "{b}", "{c}"), ("{b}", "{c}", "{a}"), ("{c}", "{a}", "{b}")):
            x, y, z = (WORDS[text] for text in (first, second, third))
            for added in ("{k}", second):
                lines.add(
                    f"neg.s32 {{t0}}, {first}; mad.lo.s32 {{t1}}, {{t0}}, {second}, {third}; "
                    f"shl.b32 {{t1}}, {{t1}}, {shift}; mad.lo.s32 {{t2}}, {first}, {third}, {second}; "
                    f"mad.lo.s32 {{t3}}, {{t0}}, {third}, {{t2}}; shl.b32 {{t3}}, {{t3}}, {shift}; "
                    f"add.s32 {{t1}}, {{t1}}, {added}; xor.b32 {{d}}, {{t1}}, {{t3}};",
                    lambda v, x=x, y=y, z=z, n=n, k=WORDS[added]: ((z(v) - x(v) * y(v) << n) + k(v)) ^ (y(v) << n),
                )
    for n in range(24):
        m = np.uint32(0x10001 * n + 3)
        text = f"mad.lo.s32 {{t0}}, {{a}}, {m}, {{b}}; mad.lo.s32 {{t1}}, {{t0}}, {{k}}, {{c}}; "
        text += "mad.lo.s32 {t2}, {t1}, {t0}, {b}; mad.lo.s32 {t3}, {t2}, {t1}, {a}; "

        def products(v: Values, m: np.uint32 = m) -> tuple[np.ndarray, np.ndarray]:
            t0 = v.a * m + v.b
            t1 = t0 * v.k + v.c
            t2 = t1 * t0 + v.b
            return t1, t2 * t1 + v.a

        three = np.uint32(3)
        if n % 2:
            text += "shl.b32 {t1}, {t1}, 3; sub.s32 {t1}, {t1}, {t3}; mad.lo.s32 {d}, {t1}, {t3}, {a};"
            lines.add(text, lambda v, f=products: ((f(v)[0] << three) - f(v)[1]) * f(v)[1] + v.a)
        else:
            text += "neg.s32 {t1}, {t1}; shl.b32 {t1}, {t1}, 3; mad.lo.s32 {d}, {t1}, {t3}, {t1};"
            lines.add(
                text, lambda v, f=products: (np.uint32(0) - (f(v)[0] << three)) * (f(v)[1] + np.uint32(1))
            )
    return lines


def shifts() -> Lines:
    """SHF in 32 and 64 bits, by registers, constants and immediates; the constant is as large as a shift may be."""
    lines = Lines("shifts")
    amounts = {"{b}": lambda v: v.b, "{k}": lambda v: v.k, "5": lambda v: np.full_like(v.a, 5), "37": lambda v: np.full_like(v.a, 37)}
    for amount, take in amounts.items():
        for text, function in (("shl.b", of.shift_left), ("shr.u", of.shift_right), ("shr.s", of.shift_right_signed)):
            lines.add(
                f"{text}32 {{d}}, {{a}}, {amount};", lambda v, f=function, t=take: f(v.a, np.minimum(t(v), np.uint32(32)))
            )
            lines.add(
                f"{text}64 {{x0}}, {{w}}, {amount};" + MIXED,
                lambda v, f=function, t=take: mixed(f(v.w, np.minimum(t(v), np.uint32(64)))),
            )
        lines.add(
            f"and.b32 {{t0}}, {amount}, 31; shr.u32 {{d}}, {{a}}, {{t0}};",
            lambda v, t=take: of.shift_right(v.a, t(v) & np.uint32(31)),
        )
        for way in "lr":
            lines.add(
                f"shf.{way}.wrap.b32 {{d}}, {{a}}, {{c}}, {amount};",
                lambda v, w=way, t=take: _funnel(v.a, v.c, t(v) & np.uint32(31), w),
            )
            lines.add(
                f"shf.{way}.clamp.b32 {{d}}, {{a}}, {{c}}, {amount};",
                lambda v, w=way, t=take: _funnel(v.a, v.c, np.minimum(t(v), np.uint32(32)), w),
            )
    for amount in (1, 10, 31):
        lines.add(f"shl.b64 {{x0}}, {{l}}, {amount};" + MIXED, lambda v, n=np.uint64(amount): mixed(v.l << n))
        lines.add(f"shr.u64 {{x0}}, {{l}}, {amount};" + MIXED, lambda v, n=np.uint64(amount): mixed(v.l >> n))
    for amount in ("{b}", "5", "{a}"):
        lines.add(f"shr.u32 {{d}}, {{k}}, {amount};", lambda v, t=(amounts | WORDS)[amount]: of.shift_right(v.k, np.minimum(t(v), np.uint32(32))))
        lines.add(f"shl.b32 {{d}}, {{k}}, {amount};", lambda v, t=(amounts | WORDS)[amount]: of.shift_left(v.k, np.minimum(t(v), np.uint32(32))))
    return lines


def _funnel(low: np.ndarray, high: np.ndarray, amount: np.ndarray, way: str) -> np.ndarray:
    joined = wide(high) << np.uint64(32) | wide(low)
    if way == "l":
        return u32(of.shift_left(joined, amount) >> np.uint64(32))
    return u32(of.shift_right(joined, amount))


def logic() -> Lines:
    """Every table of LOP3, and its operands in constants and immediates; PRMT; SEL."""
    lines = Lines("logic")
    for table in range(256):
        lines.add(f"lop3.b32 {{d}}, {{a}}, {{b}}, {{c}}, {table};", lambda v, t=table: of.logic3(v.a, v.b, v.c, t))
    for table in (0xC0, 0xFC, 0x3C, 0xF8, 0x96, 0xCA, 0xE4, 0x0C, 0x6A):
        for second, third in (("{k}", "{c}"), ("19", "{c}"), ("{b}", "{k}"), ("{b}", "19")):
            lines.add(
                f"lop3.b32 {{d}}, {{a}}, {second}, {third}, {table};",
                lambda v, s=WORDS[second], t=WORDS[third], n=table: of.logic3(v.a, s(v), t(v), n),
            )
    for selector in ("{c}", "{k}", "0x5410", "0xba98"):
        number = np.uint32(int(selector, 16)) if selector.startswith("0x") else None
        for second in ("{b}", "{k}", "19"):
            lines.add(
                f"prmt.b32 {{d}}, {{a}}, {second}, {selector};",
                lambda v, s=WORDS[second], n=number, t=selector: of.permute(
                    v.a, s(v), n if n is not None else WORDS[t](v)
                ),
            )
    for second in ("{b}", "{k}", "19", "-77"):
        for sign in ("{p}", "!"):
            text = f"selp.b32 {{d}}, {{a}}, {second}, {{p}};"
            if sign == "!":
                text = f"not.pred {{s0}}, {{p}}; selp.b32 {{d}}, {{a}}, {second}, {{s0}};"
            lines.add(text, lambda v, t=WORDS[second], s=sign: np.where(v.p ^ (s == "!"), v.a, t(v)))
    for name, function in (("popc", lambda x: np.bitwise_count(x).astype(np.uint32)), ("brev", of.reverse), ("not", np.invert)):
        for operand in ("{a}", "{k}"):
            lines.add(f"{name}.b32 {{d}}, {operand};", lambda v, f=function, t=WORDS[operand]: f(t(v)))
        lines.add(f"not.b32 {{t0}}, {{a}}; {name}.b32 {{d}}, {{t0}};", lambda v, f=function: f(~v.a))
    return lines


def all_lines() -> list[Lines]:
    """Every list."""
    return [sums(), addresses(), addresses_among_products(), shifts(), logic()]
