"""Runs the corpus in the emulator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.corpus import kernels, line_branches, line_comparisons, line_floats, line_integers, lines, patched
from tests.emulator import toolchain


@functools.cache
def line_lists() -> dict[str, lines.Lines]:
    """Every list of lines, by name."""
    modules = (line_branches, line_comparisons, line_floats, line_integers)
    return {found.name: found for module in modules for found in module.all_lines()}


@functools.cache
def ptx(name: str) -> bytes:
    """PTX of a list of lines, or of the CUDA kernels."""
    if name == KERNELS:
        return toolchain.to_ptx(kernels.source())
    return lines.module([line_lists()[name]]).encode()


#: The name of the file of CUDA kernels among the lists of lines.
KERNELS = "kernels"


@dataclass
class Loader:
    """Compiles and loads each file once."""

    folder: Path

    def __post_init__(self) -> None:
        self.load = functools.cache(self._load)

    def _load(self, name: str) -> toolchain.Program:
        cubin = toolchain.to_cubin(ptx(name), self.folder, name)
        return toolchain.Program.load(cubin, toolchain.listing_of(cubin, self.folder, name))


def run_lines(loader: Loader, name: str, **options: Any) -> list[str]:
    """What lines of a list give other words than numpy, in words."""
    wrong = []
    for kernel, part in lines.kernels(line_lists()[name]).items():
        arguments = lines.arguments(part)
        loader.load(name).run(kernel, 1, lines.THREADS, *arguments, outputs=(1,), **options)
        expected = lines.expected(part)
        for line, got, want in zip(part, arguments[1], expected, strict=True):  # type: ignore[call-overload]
            different = np.flatnonzero(got != want)
            if different.size:
                at = different[0]
                wrong.append(
                    f"{line.text}: {different.size} differ, thread {at}: {got[at]:#010x}, not {want[at]:#010x}"
                )
    return wrong


def run_patched(loader: Loader, name: str, **options: Any) -> list[str]:
    """What a patched line gives other than numpy, in words."""
    found = patched_lines()[name]
    part = [found.line]
    arguments = lines.arguments(part)
    program = patched.load(found, loader.folder)
    program.run(patched.KERNEL, 1, lines.THREADS, *arguments, outputs=(1,), **options)
    different = np.flatnonzero(arguments[1] != lines.expected(part))
    return [f"{different.size} differ, the first of thread {different[0]}"] if different.size else []


def patched_lines() -> dict[str, patched.Patched]:
    """By form."""
    return {found.form: found for found in patched.PATCHED}


def run_kernel(loader: Loader, name: str, **options: Any) -> list[str]:
    """What a kernel's outputs are other than numpy says, in words."""
    launch = kernels.launch(name)
    arguments = launch.arguments()
    run: Callable[..., Any] = loader.load(KERNELS).run
    try:
        run(name, launch.blocks, launch.threads, *arguments, outputs=launch.written, **options)
    except toolchain.EmulatorError as error:
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
