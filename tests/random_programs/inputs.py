"""What a random program is launched with, from its seed: any machine builds the same."""

from __future__ import annotations

import struct

import numpy as np

from tests.random_programs.program import BINS, GATHERS, INPUT_FLOATS, INPUT_WORDS, Program
from tests.random_programs.values import words
from tests.recorded.inputs import Source

SPECIAL_FLOATS = np.array(
    [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x80012345, 0x00800000, 0x7F7FFFFF],
    np.uint32,
).view(np.float32)  # fmt: skip


def input_words(program: Program) -> np.ndarray:
    """Random words."""
    return Source(program.input_seed).bits(INPUT_WORDS, np.uint32)


def input_floats(program: Program) -> np.ndarray:
    """Numbers within a few powers of two of one, and here and there a special one."""
    floats = Source(program.input_seed + 1).ordinary(INPUT_FLOATS, np.float32, (-4, 5))
    floats[3::29] = SPECIAL_FLOATS
    return floats


def parameters(program: Program) -> tuple[np.uint32, np.uint32, np.float32, np.uint64]:
    """What is passed by value."""
    first, second, scale, wide = program.parameters
    return np.uint32(first), np.uint32(second), np.array([scale], np.uint32).view(np.float32)[0], np.uint64(wide)


def starting_bins(program: Program) -> np.ndarray:
    """The bins of atomic operations in global memory, then those of each block."""
    start = np.repeat(np.array([value for _, value in GATHERS.values()], np.uint32), BINS)
    return np.tile(start, program.blocks + 1)


def result_rows(program: Program) -> list[str]:
    """What each row of the results holds: a variable, or a word of it."""
    rows = []
    for name, type_ in program.variables.items():
        count = len(words(np.zeros((1, 2) if name[0] == "h" else 1, type_.dtype), type_))
        rows += [name] if count == 1 else [f"{name} low", f"{name} high"]
    return rows


def arguments(program: Program) -> tuple[object, ...]:
    """The launch's arguments: words, floats, results, bins, and the values."""
    n = program.threads * program.blocks
    out = np.zeros((len(result_rows(program)), n), np.uint32)
    first, second, scale, wide = parameters(program)
    # A later field of eight bytes is aligned by whoever packs them.
    values = (np.uint32(n), first, second, scale, wide)
    return input_words(program), input_floats(program), out, starting_bins(program), *values


#: Places of the arguments that a program writes.
RESULTS, ALL_BINS = 2, 3


def describe(program: Program) -> str:
    """The launch in words, for a report."""
    first, second, scale, wide = program.parameters
    bits = struct.unpack("<f", struct.pack("<I", scale))[0]
    return (
        f"{program.name}: {program.blocks} blocks of {program.threads} threads, parameters {first:#x}, {second:#x}, "
        f"{bits!r}, {wide:#x}, inputs of seed {program.input_seed}"
    )
