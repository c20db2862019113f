"""Comparisons that branches take: ptxas does not turn them round as it does for a selection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.corpus.line_comparisons import FLOAT_RELATIONS, JOINTS, RELATIONS, SIDES, compared
from tests.corpus.lines import A, B, C, F, K, L, Lines, Q, Take, W, X, Y, Z, after, number
from tests.random_programs.integer_operations import signed

#: A loop of up to three turns, which can't be predicated, past which the branch goes.
GUARDED = (
    " mov.u32 {d}, {c}; WAY{s0} bra SKIP; mov.u32 {t0}, 0; "
    "LOOP: mad.lo.u32 {d}, {d}, 77, {t0}; add.u32 {t0}, {t0}, 1; and.b32 {t1}, {b}, 3; "
    "setp.lt.u32 {s1}, {t0}, {t1}; @{s1} bra LOOP; SKIP:"
)


def _grown(c: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What the loop makes of c: at least one turn."""
    for turn in range(3):
        c = np.where((turn == 0) | (turn < (b & 3)), c * np.uint32(77) + np.uint32(turn), c)
    return c


class Branches(Lines):
    """Lines with the branch that a predicate takes, and the one that its opposite takes."""

    def both(self, text: str, condition: Callable[..., np.ndarray], *takes: Take) -> None:
        """The text gives {s0}."""
        for way, sense in (("@", True), ("@!", False)):
            place = len(self.lines)
            guarded = GUARDED.replace("WAY", way).replace("SKIP", f"SKIP{place}").replace("LOOP", f"LOOP{place}")
            self.add(text + guarded, self._past(condition, sense=sense), B, C, *takes)

    @staticmethod
    def _past(condition: Callable[..., np.ndarray], *, sense: bool) -> Callable[..., np.ndarray]:
        return lambda b, c, *taken: np.where(condition(*taken) == sense, c, _grown(c, b))


def _is(relation: str) -> Callable[[np.ndarray], np.ndarray]:
    return np.isnan if relation == "nan" else lambda x: ~np.isnan(x)


def branches() -> Lines:
    """Integer and float comparisons before a branch, either way."""
    lines = Branches("branches")
    for kind in ("s32", "u32"):
        first, second, left, right = SIDES[kind][1]
        for relation in ("lt", "le", "gt", "ge"):
            lines.both(f"setp.{relation}.{kind} {{s0}}, {first}, {second};", RELATIONS[relation], left, right)
    for relation, compare in RELATIONS.items():  # uniform, of two operands of which one must be moved
        lines.both(f"setp.{relation}.s32 {{s0}}, {{k}}, 1;", compare, after(signed, K), number(np.int32(1)))
        lines.both(f"setp.{relation}.u32 {{s0}}, {{k}}, 1;", compare, K, number(np.uint32(1)))
    for relation in ("num", "nan"):
        lines.both(
            f"setp.{relation}.f32 {{s1}}, {{x}}, {{x}}; setp.eq.s32 {{s0}}, {{a}}, -1; "
            "and.pred {s0}, {s0}, {s1};",
            lambda r, a: r & (a == 0xFFFFFFFF), after(_is(relation), X), A,
        )  # fmt: skip
        lines.both(
            f"setp.{relation}.f32 {{s1}}, {{z}}, {{z}}; setp.lt.u32 {{s0}}, {{a}}, {{b}}; "
            "and.pred {s2}, {q}, {s1}; and.pred {s0}, {s0}, {s1}; or.pred {s0}, {s0}, {s2};",
            lambda r, a, b, q: r & ((a < b) | q), after(_is(relation), Z), A, B, Q,
        )  # fmt: skip
    for relation in ("num", "nan", "lt", "geu"):
        lines.both(f"setp.{relation}.f32 {{s0}}, {{x}}, {{x}};", FLOAT_RELATIONS[relation], X, X)
        lines.both(f"setp.{relation}.f32 {{s0}}, {{x}}, {{y}};", FLOAT_RELATIONS[relation], X, Y)
    for bound in (-1, 31):
        for joint, other, join in JOINTS[1:5]:
            for relation in ("gt", "lt"):
                lines.both(
                    f"setp.{relation}{joint}.s64 {{s0}}, {{w}}, {bound}{other};",
                    compared(RELATIONS[relation], join, lambda r, a, c: r),
                    after(signed, W), number(np.int64(bound)), Q, A, C,
                )  # fmt: skip
    wide, end = after(signed, W), after(signed, L)
    lines.both(
        "setp.ge.s64 {s1}, {w}, {l}; setp.gt.s64 {s0}, {w}, -1; not.pred {s1}, {s1}; and.pred {s0}, {s0}, {s1};",
        lambda w, l: (w > -1) & (w < l), wide, end,  # noqa: E741 - the names of the operands
    )  # fmt: skip
    lines.both(
        "setp.lt.s64 {s0}, {w}, 0; setp.ge.or.s64 {s0}, {w}, {l}, {s0};",
        lambda w, l: (w < 0) | (w >= l), wide, end,  # noqa: E741
    )  # fmt: skip
    return lines


def equalities() -> Lines:
    """Before a branch, with immediates and constants."""
    lines = Branches("equal_branches")
    one_and_a_half = number(np.float32(1.5))
    for relation in ("eq", "ne"):
        compare = RELATIONS[relation]
        lines.both(f"setp.{relation}.s32 {{s0}}, {{a}}, -7;", compare, after(signed, A), number(np.int32(-7)))
        wide = number(np.uint64(0x7FFF0000000F))
        lines.both(f"setp.{relation}.s64 {{s0}}, {{w}}, 31;", compare, W, number(np.uint64(31)))
        lines.both(f"setp.{relation}.s64 {{s0}}, {{w}}, 0x7fff0000000f;", compare, W, wide)
        lines.both(f"setp.{relation}.s64 {{s0}}, {{w}}, {{l}};", compare, W, L)
    for relation in ("eq", "neu", "lt", "geu"):
        lines.both(f"setp.{relation}.f32 {{s0}}, {{x}}, {{f}};", FLOAT_RELATIONS[relation], X, F)
        lines.both(f"setp.{relation}.f32 {{s0}}, {{x}}, 0f3FC00000;", FLOAT_RELATIONS[relation], X, one_and_a_half)
    return lines


def all_lines() -> list[Lines]:
    """Every list."""
    return [branches(), equalities()]
