"""Random programs as cases of a recording: the first seeds, and every operation alone.

Nothing here needs torch, a GPU or the emulator.
"""

from __future__ import annotations

import functools

from tests.random_programs import generate, inputs, one_each
from tests.random_programs.program import Program
from tests.recorded.kernel_cases import Case, Check

SEEDS = 96
#: Programs of a PTX file.
UNIT = 12


@functools.cache
def units() -> dict[str, list[Program]]:
    """The programs of each PTX file, by its name."""
    found = {"operations": one_each.programs()}
    for start in range(0, SEEDS, UNIT):
        found[f"random_{start:03}"] = [generate.program(seed, stack=False) for seed in range(start, start + UNIT)]
    return found


def names() -> list[str]:
    """The names of all cases, without drawing the programs."""
    return [program.name for program in one_each.programs()] + [generate.name(seed) for seed in range(SEEDS)]


def case(source: str, program: Program) -> Case:
    """A program's launch. Of each result of a few threads the number is kept, of all of them the hash."""
    every = program.threads * program.blocks // 8
    checks = {
        "results": Check(inputs.RESULTS),
        "some": Check(inputs.RESULTS, (slice(None), slice(None, None, every))),
    }
    if program.shared_bins or program.global_bins:
        checks["bins"] = Check(inputs.ALL_BINS)
    return Case(
        program.name, source, program.name, program.blocks, program.threads, inputs.arguments(program),
        (inputs.RESULTS, inputs.ALL_BINS), checks,
    )  # fmt: skip


def all_cases() -> dict[str, Case]:
    """Every case, by name."""
    return {program.name: case(source, program) for source, programs in units().items() for program in programs}


@functools.cache
def all_programs() -> dict[str, Program]:
    """Every program, by name."""
    return {program.name: program for programs in units().values() for program in programs}
