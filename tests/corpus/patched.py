"""Forms that ptxas writes only in surroundings that nobody can ask for: a compiled line with bits of one instruction
changed, so that nvdisasm reads the form that is wanted. `compute` says what the changed line computes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.corpus import lines
from tests.corpus.forms import form
from tests.corpus.line_comparisons import USES
from tests.corpus.lines import Line, Lines, Values
from tests.emulator import toolchain


@dataclass(frozen=True)
class Patched:
    """`find` matches the text of the one instruction whose words are changed by exclusive OR."""

    form: str
    text: str
    find: str
    low: int
    high: int
    compute: Callable[[Values], np.ndarray]


#: The relation of ISETP: LT 1, EQ 2, LE 3, GT 4, NE 5, GE 6.
RELATION_BIT = 12
#: The sign of LEA's first operand, in the upper word.
LEA_NEGATES = 1 << 8

PATCHED = [
    Patched(
        "ISETP.LE.AND P, PT, R, c0, PT", "setp.gt.s32 {s0}, {a}, {k};" + USES[1][0], r"ISETP\.GT\.AND P\d, PT, R\d+, c",
        0, (4 ^ 3) << RELATION_BIT,
        lambda v: np.where(v.a.view(np.int32) <= v.k.view(np.int32), v.a, v.c),
    ),
    Patched(
        "LEA R, -R, R, I", "shl.b32 {t0}, {a}, 3; add.s32 {d}, {t0}, {b};", r"LEA R\d+, R\d+, R\d+, 0x3",
        0, LEA_NEGATES, lambda v: v.b - (v.a << np.uint32(3)),
    ),
]  # fmt: skip


def load(patched: Patched, folder: Path) -> toolchain.Program:
    """The changed program."""
    cubin = toolchain.to_cubin(lines.module([_lines(patched)]).encode(), folder, "patched")
    program = toolchain.Program.load(cubin, toolchain.listing_of(cubin, folder, "patched"))
    (found,) = [i for i in program.module.instructions(KERNEL) if re.search(patched.find, i["text"])]
    old = found["low"].to_bytes(8, "little") + found["high"].to_bytes(8, "little")
    assert cubin.count(old) == 1
    new = (found["low"] ^ patched.low).to_bytes(8, "little") + (found["high"] ^ patched.high).to_bytes(8, "little")
    cubin = cubin.replace(old, new)
    changed = toolchain.Program.load(cubin, toolchain.listing_of(cubin, folder, "patched"))
    got = form(changed.module.decode(KERNEL, found["offset"])["text"])
    assert got == patched.form, f"the changed instruction is {got}"
    return changed


KERNEL = "patched_0"


def _lines(patched: Patched) -> Lines:
    return Lines("patched", [Line(patched.text, patched.compute)])
