"""Contexts that switch the emulator on with an instrument."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from sm70_kernels.lab import emulator
from sm70_kernels.lab.inspect.records import KernelStatistics
from sm70_kernels.lab.instruments import Instruments


def read_report(report: Any) -> dict[str, KernelStatistics]:
    """Kernel -> statistics, from what ``Instruments.report("statistics")`` returns."""
    return msgspec.convert(report, dict[str, KernelStatistics])


@dataclass
class Watched:
    """What ran inside a context; complete when the context is left."""

    emulation: emulator.Emulation
    kernels: dict[str, KernelStatistics] = field(default_factory=dict)
    """By name, those that were launched."""
    files: list[str] = field(default_factory=list)
    """Names of the traces in their folder."""


@contextmanager
def statistics(**options: Any) -> Iterator[Watched]:
    """Run operators on the emulated V100 and count what they do.

    Args:
        options: of :func:`sm70_kernels.lab.emulator.enabled`, ``max_blocks`` for instance.

    Raises:
        ValueError: an option is out of range.
    """
    with (
        Instruments("statistics") as instruments,
        emulator.enabled(instruments=instruments, **options) as emulation,
    ):
        watched = Watched(emulation)
        yield watched
        watched.kernels = read_report(instruments.report("statistics"))


def trace_options(folder: Path | str, *, blocks: int, registers: str, addresses: str, lineinfo: bool) -> dict[str, Any]:
    """Options of the instrument ``trace``."""
    return {
        "folder": folder,
        "blocks": blocks,
        "registers": registers,
        "addresses": addresses,
        "lineinfo": int(lineinfo),
    }


@contextmanager
def trace(
    folder: Path | str,
    *,
    blocks: int = 0,
    registers: Literal["all", "first"] = "all",
    addresses: Literal["compressed", "list"] = "compressed",
    lineinfo: bool = False,
    **options: Any,
) -> Iterator[Watched]:
    """Run operators on the emulated V100 and write Accel-Sim's SASS traces into a new folder.

    Args:
        folder: gets ``kernel-1.traceg``, ... and ``kernelslist.g``.
        blocks: of each launch, at most so many; 0 all. The rest still runs.
        registers: ``all`` of a wide operand; or the ``first``, as the NVBit tracer has it and an unmodified Accel-Sim
            takes it.
        addresses: ``compressed`` with a stride or differences, or one by one.
        lineinfo: put the source line before each instruction.
        options: of :func:`sm70_kernels.lab.emulator.enabled`.

    Raises:
        InstrumentError: the folder holds traces already, or can't be made.
    """
    settings = trace_options(folder, blocks=blocks, registers=registers, addresses=addresses, lineinfo=lineinfo)
    with (
        Instruments(trace=settings) as instruments,
        emulator.enabled(instruments=instruments, **options) as emulation,
    ):
        watched = Watched(emulation)
        yield watched
        watched.files = list(instruments.report("trace"))
