"""Comparisons: every relation of every type, with registers, constants and immediates, joined with a predicate."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import numpy as np

from tests.corpus.lines import INTEGER, WIDE, A, B, C, F, K, L, Lines, P, Q, Take, V, W, X, Y, after, number
from tests.random_programs.exact import flush
from tests.random_programs.integer_operations import signed

Compare = Callable[[np.ndarray, np.ndarray], np.ndarray]

RELATIONS: dict[str, Compare] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def unordered(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """One of them is no number."""
    return np.isnan(x) | np.isnan(y)


def both_numbers(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ~unordered(x, y)


def ordered_only(compare: Compare) -> Compare:
    return lambda x, y: compare(x, y) & ~unordered(x, y)


def or_unordered(compare: Compare) -> Compare:
    return lambda x, y: compare(x, y) | unordered(x, y)


FLOAT_RELATIONS: dict[str, Compare] = {
    **{name: ordered_only(compare) for name, compare in RELATIONS.items()},
    **{name + "u": or_unordered(compare) for name, compare in RELATIONS.items()},
    "num": both_numbers, "nan": unordered,
}  # fmt: skip

Join = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _with_inverse(join: Join) -> Join:
    return lambda r, q: join(r, ~q)


#: How a comparison is joined with the predicate q: modifier and operand in PTX, and what it gives.
JOINTS: list[tuple[str, str, Join]] = [("", "", lambda r, q: r)]
for _name, _join in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
    JOINTS += [(f".{_name}", ", {q}", _join), (f".{_name}", ", !{q}", _with_inverse(_join))]

Use = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
#: How the result is used, and what it makes of it. Of one and zero ptxas rather selects with the opposite predicate.
USES: list[tuple[str, Use]] = [
    (" selp.u32 {d}, 1, 0, {s0};", lambda r, a, c: r.astype(np.uint32)),
    (" selp.b32 {d}, {a}, {c}, {s0};", np.where),
]


def compared(compare: Compare, join: Join, use: Use) -> Callable[..., np.ndarray]:
    """The function of the two sides, q, a and c."""
    return lambda x, y, q, a, c: use(join(compare(x, y), q), a, c)


#: Operands of each type, in PTX and as taken. With the constant first, ptxas changes sides and the relation.
SIDES: dict[str, list[tuple[str, str, Take, Take]]] = {
    "s32": [
        ("{a}", "{b}", after(signed, A), after(signed, B)), ("{a}", "{k}", after(signed, A), after(signed, K)),
        ("{a}", "-7", after(signed, A), number(np.int32(-7))), ("{k}", "{a}", after(signed, K), after(signed, A)),
    ],
    "u32": [("{a}", "{b}", A, B), ("{a}", "{k}", A, K), ("{a}", "32", A, number(np.uint32(32))), ("{k}", "{a}", K, A)],
    "s64": [
        ("{w}", "{v}", after(signed, W), after(signed, V)), ("{w}", "{l}", after(signed, W), after(signed, L)),
        ("{w}", "31", after(signed, W), number(np.int64(31))), ("{l}", "{w}", after(signed, L), after(signed, W)),
    ],
    "u64": [("{w}", "{v}", W, V), ("{w}", "{l}", W, L), ("{w}", "31", W, number(np.uint64(31))), ("{l}", "{w}", L, W)],
    "f32": [
        ("{x}", "{y}", X, Y), ("{x}", "{f}", X, F), ("{f}", "{x}", F, X),
        ("{x}", "0f3FC00000", X, number(np.float32(1.5))),
    ],
}  # fmt: skip


def integers() -> Lines:
    """ISETP in 32 and 64 bits."""
    lines = Lines("integer_comparisons")
    for kind in ("s32", "u32", "s64", "u64"):
        for first, second, left, right in SIDES[kind]:
            for relation, (joint, other, join), (use, used) in itertools.product(RELATIONS, JOINTS, USES):
                lines.add(
                    f"setp.{relation}{joint}.{kind} {{s0}}, {first}, {second}{other};" + use,
                    compared(RELATIONS[relation], join, used), left, right, Q, A, C,
                )  # fmt: skip
    return lines


def floats() -> Lines:
    """FSETP, and with magnitudes and signs."""
    lines = Lines("float_comparisons")
    for ftz, (first, second, x, y) in itertools.product(("", ".ftz"), SIDES["f32"]):
        left, right = (after(flush, x), after(flush, y)) if ftz else (x, y)
        for relation, (joint, other, join), (use, used) in itertools.product(FLOAT_RELATIONS, JOINTS, USES):
            lines.add(
                f"setp.{relation}{joint}{ftz}.f32 {{s0}}, {first}, {second}{other};" + use,
                compared(FLOAT_RELATIONS[relation], join, used), left, right, Q, A, C,
            )  # fmt: skip
        for relation, (sign, change) in itertools.product(
            ("gt", "geu", "neu"), (("abs", np.abs), ("neg", np.negative))
        ):
            lines.add(
                f"{sign}.f32 {{t0}}, {first}; setp.{relation}{ftz}.f32 {{s0}}, {{t0}}, {second};" + USES[0][0],
                compared(FLOAT_RELATIONS[relation], JOINTS[0][2], USES[0][1]), after(change, left), right, Q, A, C,
            )  # fmt: skip
    for relation in ("num", "nan"):  # of a number and itself
        for use, used in USES:
            lines.add(
                f"setp.{relation}.f32 {{s0}}, {{x}}, {{x}};" + use,
                compared(FLOAT_RELATIONS[relation], JOINTS[0][2], used), X, X, Q, A, C,
            )  # fmt: skip
    return lines


def bit_tests() -> Lines:
    """LOP3 that gives a predicate, joined with another."""
    lines = Lines("bit_tests")
    operations = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    narrow = [("{b}", B), ("{k}", K), ("0x10001", number(np.uint32(0x10001)))]
    for (second, take), name, relation, (joint, other, join) in itertools.product(
        narrow, operations, ("eq", "ne"), JOINTS
    ):
        lines.add(
            f"{name}.b32 {{t0}}, {{a}}, {second}; setp.{relation}{joint}.u32 {{s0}}, {{t0}}, 0{other};" + USES[0][0],
            compared(_of_bits(operations[name], RELATIONS[relation]), join, USES[0][1]), A, take, Q, A, C,
        )  # fmt: skip
    for (second, take), name, relation, (use, used) in itertools.product(
        [("{v}", V), ("{l}", L)], ("and", "or"), ("eq", "ne"), USES
    ):
        lines.add(
            f"{name}.b64 {{x0}}, {{w}}, {second}; setp.{relation}.s64 {{s0}}, {{x0}}, 0;" + use,
            compared(_of_bits(operations[name], RELATIONS[relation]), JOINTS[0][2], used), W, take, Q, A, C,
        )  # fmt: skip
    return lines


def predicates() -> Lines:
    """PLOP3: three predicates joined."""
    lines = Lines("predicates")
    operations = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    for first, second, inverted in itertools.product(operations, operations, ("", "p", "q", "s1")):
        text = "setp.lt.u32 {s1}, {a}, {b}; "
        names = {"p": "{p}", "q": "{q}", "s1": "{s1}"}
        if inverted:
            text += f"not.pred {{s2}}, {names[inverted]}; "
            names[inverted] = "{s2}"
        text += f"{first}.pred {{s0}}, {names['p']}, {names['q']}; {second}.pred {{s0}}, {{s0}}, {names['s1']};"
        takes = [after(operator.invert, take) if name == inverted else take for name, take in (("p", P), ("q", Q))]
        lines.add(text + USES[1][0], _joined(operations[first], operations[second], inverted == "s1"), *takes, A, B, C)
    return lines


def differences_of_signs() -> Lines:
    """FSETP of a number and its negative."""
    lines = Lines("differences_of_signs")
    for relation in ("gt", "lt", "geu", "neu"):
        lines.add(
            f"neg.f32 {{t0}}, {{x}}; setp.{relation}.f32 {{s0}}, {{x}}, {{t0}};" + USES[1][0],
            compared(FLOAT_RELATIONS[relation], JOINTS[0][2], USES[1][1]), X, after(np.negative, X), Q, A, C,
        )  # fmt: skip
    return lines


def _joined(first: Compare, second: Compare, less_inverted: bool) -> Callable[..., np.ndarray]:
    return lambda p, q, a, b, c: np.where(second(first(p, q), (a < b) ^ less_inverted), a, c)


def _of_bits(operation: Compare, compare: Compare) -> Compare:
    return lambda x, y: compare(operation(x, y), 0)


def bits_to_predicates() -> Lines:
    """Neighbouring bits of one word, each a predicate: R2P."""
    lines = Lines("bits_to_predicates")
    for first in range(4):
        bits = range(first, 4)
        tests = (f"and.b32 {{t0}}, {{a}}, {1 << bit}; setp.ne.u32 {{s{bit}}}, {{t0}}, 0; " for bit in bits)
        sums = (f"@{{s{bit}}} add.u32 {{d}}, {{d}}, {3 ** (bit + 1)}; " for bit in bits)
        lines.add("".join((*tests, "mov.b32 {d}, {b}; ", *sums)), _add_powers_of(bits), A, B)
    return lines


def _add_powers_of(bits: range) -> Compare:
    return lambda a, b: b + sum(((a >> np.uint32(bit)) & 1) * np.uint32(3 ** (bit + 1)) for bit in bits)


def all_lines() -> list[Lines]:
    """Every list."""
    assert INTEGER > 0 and WIDE > 0  # constants that differ in sign from some of the inputs
    return [integers(), floats(), bit_tests(), predicates(), bits_to_predicates(), differences_of_signs()]
