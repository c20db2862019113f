"""Runs the corpus in the emulator."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from sm70_kernels import lab
from sm70_kernels.lab.toolchain import compile_to_ptx
from tests.corpus import kernels, line_branches, line_comparisons, line_floats, line_integers, lines, patched


@functools.cache
def line_lists() -> dict[str, lines.Lines]:
    """Every list of lines, by name."""
    modules = (line_branches, line_comparisons, line_floats, line_integers)
    return {found.name: found for module in modules for found in module.all_lines()}


@functools.cache
def ptx(name: str) -> str:
    """PTX of a list of lines, or of the CUDA kernels."""
    if name == KERNELS:
        return compile_to_ptx(kernels.source())[0]
    return lines.module([line_lists()[name]])


#: The name of the file of CUDA kernels among the lists of lines.
KERNELS = "kernels"


@functools.cache
def load(name: str) -> lab.Module:
    """A list of lines, or the CUDA kernels, assembled and loaded once."""
    return lab.from_ptx(ptx(name))


def run_lines(name: str, **options: Any) -> list[str]:
    """What lines of a list give other words than numpy, in words."""
    wrong = []
    for kernel, part in lines.kernels(line_lists()[name]).items():
        arguments = lines.arguments(part)
        load(name).kernel(kernel).launch(1, lines.THREADS, arguments, outputs=(1,), **options)
        expected = lines.expected(part)
        for line, got, want in zip(part, arguments[1], expected, strict=True):  # type: ignore[call-overload]
            different = np.flatnonzero(got != want)
            if different.size:
                at = different[0]
                wrong.append(
                    f"{line.text}: {different.size} differ, thread {at}: {got[at]:#010x}, not {want[at]:#010x}"
                )
    return wrong


def run_patched(name: str, **options: Any) -> list[str]:
    """What a patched line gives other than numpy, in words."""
    found = patched_lines()[name]
    part = [found.line]
    arguments = lines.arguments(part)
    program = patched.load(found)
    program.kernel(patched.KERNEL).launch(1, lines.THREADS, arguments, outputs=(1,), **options)
    different = np.flatnonzero(arguments[1] != lines.expected(part))
    return [f"{different.size} differ, the first of thread {different[0]}"] if different.size else []


def patched_lines() -> dict[str, patched.Patched]:
    """By form."""
    return {found.form: found for found in patched.PATCHED}


def run_kernel(name: str, **options: Any) -> list[str]:
    """What a kernel's outputs are other than numpy says, in words."""
    launch = kernels.launch(name)
    arguments = launch.arguments()
    kernel = load(KERNELS).kernel(name)
    try:
        kernel.launch(launch.blocks, launch.threads, arguments, outputs=launch.written, **options)
    except lab.EmulatorError as error:
        return [] if launch.fails and launch.fails in str(error) else [str(error)]
    if launch.fails:
        return [f"it does not stop with {launch.fails}"]
    wrong = []
    for place, expected in zip(launch.written, launch.expected, strict=True):
        different = np.flatnonzero(arguments[place] != expected)
        if different.size:
            at = different[0]
            got, want = arguments[place].reshape(-1)[at], expected.reshape(-1)[at]
            wrong.append(f"argument {place}: {different.size} differ, the first at {at}: {got}, not {want}")
    return wrong
