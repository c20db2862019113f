"""Forms that ptxas writes only in surroundings that nobody can ask for: a compiled line with bits of one instruction
changed, so that nvdisasm reads the form that is wanted. The line's function says what the changed line computes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from sm70_kernels import lab
from sm70_kernels.lab.toolchain import assemble
from tests.corpus import lines
from tests.corpus.forms import form
from tests.corpus.line_comparisons import USES
from tests.corpus.lines import A, B, C, F, K, Line, Lines, X


@dataclass(frozen=True)
class Patched:
    """`find` matches the text of the one instruction whose words are changed by exclusive OR."""

    form: str
    line: Line
    find: str
    low: int
    high: int


#: Bits of the upper word: the relation of ISETP (LT 1, EQ 2, LE 3, GT 4, NE 5, GE 6) and of FSETP (also NUM 7, and with
#: 7 more of each: NAN, LTU, EQU, LEU, GTU, NEU, GEU), and the sign of LEA's index; of the lower: the sign of its base.
RELATION_BIT = 12
INDEX_NEGATED = 1 << 8
BASE_NEGATED = 1 << 63

_SCALED_SUM = "shl.b32 {t0}, {a}, 3; add.s32 {d}, {t0}, {b};"


def _less_or_equal(x: np.ndarray, y: np.ndarray, c: np.ndarray) -> np.ndarray:
    return np.where(x.view(np.int32) <= y.view(np.int32), x, c)


PATCHED = [
    Patched(
        form="ISETP.LE.AND P, PT, R, c0, PT",
        line=Line("setp.gt.s32 {s0}, {a}, {k};" + USES[1][0], _less_or_equal, (A, K, C)),
        find=r"ISETP\.GT\.AND P\d, PT, R\d+, c",
        low=0,
        high=(4 ^ 3) << RELATION_BIT,
    ),
    Patched(
        form="ISETP.EQ.AND P, PT, R, I, PT",
        line=Line("setp.ne.s32 {s0}, {a}, -7;" + USES[1][0], lambda x, c: np.where(x == 0xFFFFFFF9, x, c), (A, C)),
        find=r"ISETP\.NE\.AND P\d, PT, R\d+, -0x7, PT",
        low=0,
        high=(5 ^ 2) << RELATION_BIT,
    ),
    Patched(
        form="FSETP.EQ.AND P, PT, R, c0, PT",
        line=Line("setp.neu.f32 {s0}, {x}, {f};" + USES[1][0], lambda x, y, a, c: np.where(x == y, a, c), (X, F, A, C)),
        find=r"FSETP\.NEU\.AND P\d, PT, R\d+, c",
        low=0,
        high=(13 ^ 2) << RELATION_BIT,
    ),
    Patched(
        form="LEA R, -R, R, I",
        line=Line(_SCALED_SUM, lambda index, base: base - (index << np.uint32(3)), (A, B)),
        find=r"LEA R\d+, R\d+, R\d+, 0x3",
        low=0,
        high=INDEX_NEGATED,
    ),
    Patched(
        form="LEA R, R, -R, I",
        line=Line(_SCALED_SUM, lambda index, base: (index << np.uint32(3)) - base, (A, B)),
        find=r"LEA R\d+, R\d+, R\d+, 0x3",
        low=BASE_NEGATED,
        high=0,
    ),
]
#: The kernel of each of them.
KERNEL = "patched_0"


def load(patched: Patched) -> lab.Module:
    """The changed program."""
    cubin = assemble(lines.module([Lines("patched", [patched.line])]))
    program = lab.load(cubin)
    (found,) = [i for i in program.code.instructions(KERNEL) if re.search(patched.find, i["text"])]
    old = found["low"].to_bytes(8, "little") + found["high"].to_bytes(8, "little")
    assert cubin.count(old) == 1
    new = (found["low"] ^ patched.low).to_bytes(8, "little") + (found["high"] ^ patched.high).to_bytes(8, "little")
    cubin = cubin.replace(old, new)
    changed = lab.load(cubin)
    got = form(changed.code.decode(KERNEL, found["offset"])["text"])
    assert got == patched.form, f"the changed instruction is {got}"
    return changed
