"""One launch: its extents checked, its arguments packed, and the memory that it starts from kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from sm70_kernels.lab import emulator
from sm70_kernels.lab.arguments import Packed
from sm70_kernels.lab.errors import LabError
from sm70_kernels.lab.instruments import Instruments

if TYPE_CHECKING:
    from sm70_kernels.lab.module import Module

Extent: TypeAlias = int | Sequence[int]
Rounding: TypeAlias = Literal["truncate", "nearest"]

#: Limits of compute capability 7.0, x, y and z (CUDA C++ programming guide, "Compute Capabilities").
_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_BLOCK_THREADS = 1024
_MAX_SHARED_BYTES = 96 * 1024


def _extent(name: str, value: Extent, most: tuple[int, int, int]) -> tuple[int, int, int]:
    """A grid or block as three numbers. Raises LabError."""
    numbers = tuple(value) if isinstance(value, Sequence) else (value,)
    whole = all(isinstance(number, int | np.integer) for number in numbers)
    if not (1 <= len(numbers) <= 3 and whole and all(1 <= n <= limit for n, limit in zip(numbers, most, strict=False))):
        limits = ", ".join(map(str, most))
        raise LabError(
            f"launch: argument {name!r}: got {value!r}, want one to three whole numbers from 1 to {limits}. "
            "Pass a number or a tuple"
        )
    x, y, z = (*map(int, numbers), 1, 1)[:3]
    return x, y, z


def grid_and_block(grid: Extent, block: Extent) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Both as three numbers. Raises LabError."""
    return _extent("grid", grid, _MAX_GRID), _extent("block", block, _MAX_BLOCK)


def check_settings(*, tensor_rounding: str, **numbers: int | None) -> None:
    """Raise LabError if a setting of the emulator is out of range."""
    try:
        emulator.check_settings("launch", tensor_rounding=tensor_rounding, **numbers)
    except ValueError as error:
        raise LabError(str(error)) from None


def check_block(block: tuple[int, int, int], most_threads: int) -> None:
    """Raise LabError if a block has more threads than it, or the kernel's launch bound, can have."""
    threads = block[0] * block[1] * block[2]
    limit = min(most_threads or _MAX_BLOCK_THREADS, _MAX_BLOCK_THREADS)
    if threads > limit:
        whose = "the kernel's launch bound" if limit < _MAX_BLOCK_THREADS else "the limit of compute capability 7.0"
        raise LabError(
            f"launch: argument 'block': got {block}, which is {threads} threads, want at most {limit}, {whose}. "
            "Use smaller blocks and a larger grid"
        )


def check_shared(static_bytes: int, dynamic_bytes: int) -> None:
    """Raise LabError if a block can't have this much shared memory."""
    most = _MAX_SHARED_BYTES - static_bytes
    if not 0 <= dynamic_bytes <= most:
        raise LabError(
            f"launch: argument 'dynamic_shared_bytes': got {dynamic_bytes}, want 0 to {most}: a block has "
            f"{_MAX_SHARED_BYTES} bytes, and the kernel declares {static_bytes} of them itself. Use smaller tiles"
        )


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch that passed the checks and can run any number of times."""

    module: Module
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    packed: Packed
    dynamic_shared_bytes: int
    blocks: tuple[int, ...] | None
    seed: int
    threads: int
    tensor_rounding: Rounding
    instruction_limit: int

    def run(self, instruments: Instruments | None = None) -> dict[str, Any]:
        """Run it. Raises EmulatorError at the first fault."""
        done: dict[str, Any] = self.module.code.launch(
            self.kernel,
            self.grid,
            self.block,
            self.packed.parameters,
            self.packed.for_emulator(),
            dynamic_shared_bytes=self.dynamic_shared_bytes,
            blocks=self.blocks,
            seed=self.seed,
            threads=self.threads,
            tensor_rounding=self.tensor_rounding,
            instruction_limit=self.instruction_limit,
            instruments=instruments.handle if instruments is not None else 0,
        )
        return done

    def of_whole_grid(self) -> PreparedLaunch:
        """The same without a choice of blocks."""
        return replace(self, blocks=None)


class Inputs:
    """What a launch may write, as it was before: writable arrays and the module's variables."""

    def __init__(self, launch: PreparedLaunch) -> None:
        memory = [buffer.view() for buffer in launch.packed.buffers if buffer.writable]
        memory += [launch.module.variable(name) for name in launch.module.variables]
        self._saved = [(view, view.copy()) for view in memory]

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Inside, memory is as it was before the launch; afterwards it is as it is now."""
        now = [view.copy() for view, _ in self._saved]
        try:
            for view, before in self._saved:
                view[...] = before
            yield
        finally:
            for (view, _), after in zip(self._saved, now, strict=True):
                view[...] = after
