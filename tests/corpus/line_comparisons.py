"""Comparisons: every relation of every type, with registers, constants and immediates, joined with a predicate."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator

import numpy as np

from tests.corpus.lines import Lines, Values
from tests.random_programs.exact import flush
from tests.random_programs.integer_operations import signed

Compare = Callable[[np.ndarray, np.ndarray], np.ndarray]

RELATIONS: dict[str, Compare] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def unordered(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.isnan(x) | np.isnan(y)


def float_relations() -> dict[str, Compare]:
    """Those of floats: `ne` asks for numbers, `neu` does not."""
    found: dict[str, Compare] = {}
    for name, compare in RELATIONS.items():
        found[name] = lambda x, y, f=compare: f(x, y) & ~unordered(x, y)  # type: ignore[misc]
        found[name + "u"] = lambda x, y, f=compare: f(x, y) | unordered(x, y)  # type: ignore[misc]
    return found | {"num": lambda x, y: ~unordered(x, y), "nan": unordered}


#: How a comparison is joined with a predicate: PTX, and what it gives.
JOINTS: list[tuple[str, str, Callable[[np.ndarray, Values], np.ndarray]]] = [
    ("", "", lambda r, v: r),
    *(
        (f".{name}", f", {sign}{{q}}", lambda r, v, f=function, s=sign: f(r, ~v.q if s else v.q))
        for name, function in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor))
        for sign in ("", "!")
    ),
]

#: How the result is used, and what it makes of it. Of one and zero ptxas rather selects with the opposite predicate.
USES: list[tuple[str, Callable[[np.ndarray, Values], np.ndarray]]] = [
    (" selp.u32 {d}, 1, 0, {s0};", lambda r, v: r.astype(np.uint32)),
    (" selp.b32 {d}, {a}, {c}, {s0};", lambda r, v: np.where(r, v.a, v.c)),
]
GIVE = USES[0][0]


def operands(kind: str) -> Iterator[tuple[str, str, Callable[[Values], tuple[np.ndarray, np.ndarray]]]]:
    """PTX operands of a type, and their values."""
    as_signed = signed if kind[0] == "s" else lambda x: x
    if kind in ("s32", "u32"):
        small = np.full(1, 0xFFFFFFF9 if kind == "s32" else 32, np.uint32)
        text = "-7" if kind == "s32" else "32"
        yield "{a}", "{b}", lambda v: (as_signed(v.a), as_signed(v.b))
        yield "{a}", "{k}", lambda v: (as_signed(v.a), as_signed(v.k))
        yield "{a}", text, lambda v: (as_signed(v.a), as_signed(small))
        yield "{k}", "{a}", lambda v: (as_signed(v.k), as_signed(v.a))  # ptxas changes sides, and the relation
    elif kind in ("s64", "u64"):
        yield "{w}", "{v}", lambda v: (as_signed(v.w), as_signed(v.v))
        yield "{w}", "{l}", lambda v: (as_signed(v.w), as_signed(v.l))
        yield "{w}", "31", lambda v: (as_signed(v.w), as_signed(np.full(1, 31, np.uint64)))
        yield "{l}", "{w}", lambda v: (as_signed(v.l), as_signed(v.w))
    else:
        yield "{x}", "{y}", lambda v: (v.x, v.y)
        yield "{x}", "{f}", lambda v: (v.x, v.f)
        yield "{x}", "0f3FC00000", lambda v: (v.x, np.full(1, 1.5, np.float32))
        yield "{f}", "{x}", lambda v: (v.f, v.x)


def integers() -> Lines:
    """ISETP in 32 and 64 bits."""
    lines = Lines("integer_comparisons")
    for kind in ("s32", "u32", "s64", "u64"):
        for first, second, take in operands(kind):
            for relation, compare in RELATIONS.items():
                for (joint, other, join), (use, used) in itertools.product(JOINTS, USES):
                    lines.add(
                        f"setp.{relation}{joint}.{kind} {{s0}}, {first}, {second}{other};" + use,
                        lambda v, t=take, f=compare, j=join, u=used: u(j(f(*t(v)), v), v),
                    )
    return lines


def floats() -> Lines:
    """FSETP, and with magnitudes and signs."""
    lines = Lines("float_comparisons")
    for ftz in ("", ".ftz"):
        clean = flush if ftz else lambda x: x
        for first, second, take in operands("f32"):
            for relation, compare in float_relations().items():
                for (joint, other, join), (use, used) in itertools.product(JOINTS, USES):
                    lines.add(
                        f"setp.{relation}{joint}{ftz}.f32 {{s0}}, {first}, {second}{other};" + use,
                        lambda v, t=take, f=compare, j=join, c=clean, u=used: u(j(f(*map(c, t(v))), v), v),
                    )
        for relation in ("num", "nan"):
            for use, used in USES:
                lines.add(
                    f"setp.{relation}{ftz}.f32 {{s0}}, {{x}}, {{x}};" + use,
                    lambda v, r=relation, u=used: u(np.isnan(v.x) ^ (r == "num"), v),
                )
            lines.add(  # a predicate that is used twice is not turned round
                f"setp.{relation}{ftz}.f32 {{s1}}, {{x}}, {{x}}; setp.lt.u32 {{s0}}, {{a}}, {{b}}; "
                "and.pred {s0}, {s0}, {s1}; and.pred {s2}, {q}, {s1}; selp.b32 {t0}, {a}, {c}, {s0}; "
                "selp.b32 {d}, {t0}, {b}, {s2};",
                lambda v, r=relation: _twice(np.isnan(v.x) ^ (r == "num"), v),
            )
        for relation in ("gt", "geu", "neu"):
            compare = float_relations()[relation]
            for first, second, take in operands("f32"):
                for before, change in (("abs", np.abs), ("neg", np.negative)):
                    lines.add(
                        f"{before}.f32 {{t0}}, {first}; setp.{relation}{ftz}.f32 {{s0}}, {{t0}}, {second};" + GIVE,
                        lambda v, t=take, f=compare, g=change, c=clean: f(c(g(t(v)[0])), c(t(v)[1])).astype(np.uint32),
                    )
    return lines


def _twice(r: np.ndarray, v: Values) -> np.ndarray:
    return np.where(v.q & r, np.where((v.a < v.b) & r, v.a, v.c), v.b)


def bit_tests() -> Lines:
    """LOP3 that gives a predicate, joined with another."""
    lines = Lines("bit_tests")
    for second, take in (("{b}", lambda v: v.b), ("{k}", lambda v: v.k), ("0x10001", lambda v: np.uint32(0x10001))):
        for operation, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
            for relation in ("eq", "ne"):
                for joint, other, join in JOINTS:
                    lines.add(
                        f"{operation}.b32 {{t0}}, {{a}}, {second}; "
                        f"setp.{relation}{joint}.u32 {{s0}}, {{t0}}, 0{other};" + GIVE,
                        lambda v, t=take, f=function, r=RELATIONS[relation], j=join: j(r(f(v.a, t(v)), 0), v).astype(
                            np.uint32
                        ),
                    )
    for second, take in (("{v}", lambda v: v.v), ("{l}", lambda v: v.l)):
        for operation, function in (("and", operator.and_), ("or", operator.or_)):
            for relation, (use, used) in itertools.product(("eq", "ne"), USES):
                lines.add(
                    f"{operation}.b64 {{x0}}, {{w}}, {second}; setp.{relation}.s64 {{s0}}, {{x0}}, 0;" + use,
                    lambda v, t=take, f=function, r=RELATIONS[relation], u=used: u(r(f(v.w, t(v)), 0), v),
                )
    return lines


def all_lines() -> list[Lines]:
    """Every list."""
    return [integers(), floats(), bit_tests()]
