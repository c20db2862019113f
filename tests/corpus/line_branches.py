"""Comparisons that branches take: ptxas does not turn them round as it does for a selection."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.corpus.line_comparisons import JOINTS, RELATIONS, float_relations, operands
from tests.corpus.lines import Lines, Values

#: A loop of up to three turns, which can't be predicated, past which the branch goes.
GUARDED = (
    " mov.u32 {d}, {c}; {way}{s0} bra {skip}; mov.u32 {t0}, 0; "
    "{loop}: mad.lo.u32 {d}, {d}, 77, {t0}; add.u32 {t0}, {t0}, 1; and.b32 {t1}, {b}, 3; "
    "setp.lt.u32 {s1}, {t0}, {t1}; @{s1} bra {loop}; {skip}:"
)


def _grown(v: Values) -> np.ndarray:
    """What the loop makes of c: at least one turn."""
    d, trips = v.c.copy(), v.b & 3
    for turn in range(3):
        d = np.where((turn == 0) | (turn < trips), d * np.uint32(77) + np.uint32(turn), d)
    return d


def branches() -> Lines:
    """Integer and float comparisons before a branch, either way."""
    lines = Lines("branches")

    def add(text: str, condition: Callable[[Values], np.ndarray]) -> None:
        for way, sense in (("@", True), ("@!", False)):
            number = len(lines.lines)
            labels = {"way": way, "skip": f"SKIP{number}", "loop": f"LOOP{number}"}
            # Operands are named later.
            guarded = GUARDED
            for name, label in labels.items():
                guarded = guarded.replace(f"{{{name}}}", label)
            lines.add(text + guarded, lambda v, s=sense: np.where(condition(v) == s, v.c, _grown(v)))

    for kind in ("s32", "u32"):
        first, second, take = list(operands(kind))[1]
        for relation in ("lt", "le", "gt", "ge"):
            compare = RELATIONS[relation]
            add(f"setp.{relation}.{kind} {{s0}}, {first}, {second};", lambda v, t=take, f=compare: f(*t(v)))
    for relation, compare in RELATIONS.items():  # uniform, and with two operands that can't be registers
        add(f"setp.{relation}.s32 {{s0}}, {{k}}, 1;", lambda v, f=compare: f(v.k.view(np.int32), 1))
        add(f"setp.{relation}.u32 {{s0}}, {{k}}, 1;", lambda v, f=compare: f(v.k, 1))
    for relation in ("num", "nan"):
        add(
            f"setp.{relation}.f32 {{s1}}, {{x}}, {{x}}; setp.eq.s32 {{s0}}, {{a}}, -1; and.pred {{s0}}, {{s0}}, {{s1}};",
            lambda v, r=relation: (np.isnan(v.x) ^ (r == "num")) & (v.a == 0xFFFFFFFF),
        )
        add(
            f"setp.{relation}.f32 {{s1}}, {{z}}, {{z}}; setp.lt.u32 {{s0}}, {{a}}, {{b}}; and.pred {{s2}}, {{q}}, {{s1}}; "
            "and.pred {s0}, {s0}, {s1}; or.pred {s0}, {s0}, {s2};",
            lambda v, r=relation: (np.isnan(v.z) ^ (r == "num")) & ((v.a < v.b) | v.q),
        )
    for relation in ("num", "nan", "lt", "geu"):
        compare = float_relations()[relation]
        add(f"setp.{relation}.f32 {{s0}}, {{x}}, {{x}};", lambda v, f=compare: f(v.x, v.x))
        add(f"setp.{relation}.f32 {{s0}}, {{x}}, {{y}};", lambda v, f=compare: f(v.x, v.y))
    for second, bound in (("-1", np.int64(-1)), ("31", np.int64(31))):
        for joint, other, join in JOINTS[1:5]:
            for relation in ("gt", "lt"):
                add(
                    f"setp.{relation}{joint}.s64 {{s0}}, {{w}}, {second}{other};",
                    lambda v, b=bound, r=RELATIONS[relation], j=join: j(r(v.w.view(np.int64), b), v),
                )
    # A range: two comparisons of 64 bits, joined.
    add(
        "setp.ge.s64 {s1}, {w}, {l}; setp.gt.s64 {s0}, {w}, -1; not.pred {s1}, {s1}; and.pred {s0}, {s0}, {s1};",
        lambda v: (v.w.view(np.int64) > -1) & (v.w.view(np.int64) < v.l.view(np.int64)),
    )
    add(
        "setp.lt.s64 {s0}, {w}, 0; setp.ge.or.s64 {s0}, {w}, {l}, {s0};",
        lambda v: (v.w.view(np.int64) < 0) | (v.w.view(np.int64) >= v.l.view(np.int64)),
    )
    return lines


def all_lines() -> list[Lines]:
    """Every list."""
    return [branches()]
