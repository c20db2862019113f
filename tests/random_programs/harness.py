"""Compiles random programs, runs them in the emulator, and compares with what numpy says."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from sm70_kernels import lab
from tests.random_programs import cuda, inputs, interpret
from tests.random_programs.program import Program

#: More than any program executes in a block, by far: a fault that makes one endless is found soon.
INSTRUCTION_LIMIT = 3_000_000


@dataclass
class Unit:
    """Programs that were compiled together."""

    programs: list[Program]
    ptx: str
    loaded: lab.Module


def compile_unit(programs: list[Program], *, trace: bool = False) -> Unit:
    """Through NVRTC, ptxas and nvdisasm."""
    ptx, cubin, listing = _compiled(cuda.source(programs, trace=trace))
    return Unit(programs, ptx, lab.Module(cubin, listing))


@functools.lru_cache(maxsize=32)
def _compiled(source: str) -> tuple[str, bytes, str]:
    """Several test modules use the same programs."""
    module = lab.compile_source(source)
    return module.ptx, module.cubin, module.listing


def any_problem(loaded: lab.Module, program: Program) -> str | None:
    """The same of a run in order, one under a shuffled schedule, and one with code that any x86-64 machine runs."""
    return problem(loaded, program) or problem(loaded, program, seed=7) or problem(portable(loaded), program)


@functools.lru_cache(maxsize=4)
def _portable_module(cubin: bytes, listing: str) -> lab.Module:
    return lab.Module(cubin, listing, portable=True)


def portable(loaded: lab.Module) -> lab.Module:
    """The same program on code that any x86-64 machine runs."""
    return _portable_module(loaded.cubin, loaded.listing)


def emulate(loaded: lab.Module, program: Program, *extra: np.ndarray, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """Results and bins."""
    arguments = inputs.arguments(program)
    outputs = (inputs.RESULTS, inputs.ALL_BINS, *range(len(arguments), len(arguments) + len(extra)))
    options.setdefault("instruction_limit", INSTRUCTION_LIMIT)
    loaded.kernel(program.name).launch(
        program.blocks, program.threads, [*arguments, *extra], outputs=outputs, **options
    )
    return arguments[inputs.RESULTS], arguments[inputs.ALL_BINS]  # type: ignore[return-value]


def difference(program: Program, got: tuple[np.ndarray, np.ndarray]) -> str | None:
    """Where results differ from numpy's, in words."""
    expected_rows, expected_bins, _ = interpret.run(program)
    rows, bins = got
    for name, row, expected in zip(inputs.result_rows(program), rows, expected_rows, strict=True):
        wrong = np.flatnonzero(row != expected)
        if wrong.size:
            at = wrong[0]
            return (
                f"{name} of {wrong.size} threads, first of thread {at}: {row[at]:#010x}, expected {expected[at]:#010x}"
            )
    wrong = np.flatnonzero(bins != expected_bins)
    if wrong.size:
        return f"bin {wrong[0]}: {bins[wrong[0]]:#010x}, expected {expected_bins[wrong[0]]:#010x}"
    return None


def problem(loaded: lab.Module, program: Program, **options: Any) -> str | None:
    """What is wrong with a program's run in the emulator, if anything."""
    try:
        got = emulate(loaded, program, **options)
    except lab.EmulatorError as error:
        return f"the emulator stopped: {error}"
    return difference(program, got)
