"""Compiles random programs, runs them in the emulator, and compares with what numpy says."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator import toolchain
from tests.random_programs import cuda, inputs, interpret
from tests.random_programs.program import Program

#: More than any program executes in a block, by far: a fault that makes one endless is found soon.
INSTRUCTION_LIMIT = 3_000_000
_numbers = itertools.count()


@dataclass
class Unit:
    """Programs that were compiled together."""

    programs: list[Program]
    ptx: bytes
    loaded: toolchain.Program


def compile_unit(programs: list[Program], folder: Path, *, trace: bool = False) -> Unit:
    """Through NVRTC, ptxas and nvdisasm."""
    ptx = toolchain.to_ptx(cuda.source(programs, trace=trace))
    name = f"unit_{next(_numbers)}"
    cubin = toolchain.to_cubin(ptx, folder, name)
    return Unit(programs, ptx, toolchain.Program.load(cubin, toolchain.listing_of(cubin, folder, name)))


def portable(loaded: toolchain.Program) -> toolchain.Program:
    """The same program on code that any x86-64 machine runs."""
    module = toolchain._emulator.Module(loaded.cubin, loaded.listing, portable=True)
    return toolchain.Program(loaded.cubin, loaded.listing, module)


def emulate(
    loaded: toolchain.Program, program: Program, *extra: np.ndarray, **options: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Results and bins."""
    arguments = inputs.arguments(program)
    outputs = (inputs.RESULTS, inputs.ALL_BINS, *range(len(arguments), len(arguments) + len(extra)))
    options.setdefault("instruction_limit", INSTRUCTION_LIMIT)
    loaded.run(program.name, program.blocks, program.threads, *arguments, *extra, outputs=outputs, **options)
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


def problem(loaded: toolchain.Program, program: Program, **options: Any) -> str | None:
    """What is wrong with a program's run in the emulator, if anything."""
    try:
        got = emulate(loaded, program, **options)
    except toolchain.EmulatorError as error:
        return f"the emulator stopped: {error}"
    return difference(program, got)
