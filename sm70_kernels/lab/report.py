"""What a launch did, and every further look at it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sm70_kernels.lab.checkers import Finding
from sm70_kernels.lab.cycle_model.model import CLOCKS_MHZ, Estimate, from_report, timing_options
from sm70_kernels.lab.errors import EmulatorError, LabError
from sm70_kernels.lab.inspect.records import InstructionStatistics, KernelStatistics
from sm70_kernels.lab.inspect.watching import read_report, trace_options
from sm70_kernels.lab.instruments import Instruments
from sm70_kernels.lab.launch import Inputs, PreparedLaunch


@dataclass(frozen=True)
class HotSpot:
    """A source line, or all code that has none."""

    place: str
    """``file:line``; empty where the cubin has no lines."""
    share: float
    """Of the kernel's warp instructions."""
    warp_instructions: int
    sectors: int
    """Of 32 bytes, that its global accesses touched."""
    bank_conflicts: int
    """Wavefronts of shared memory beyond those that its accesses needed."""
    instructions: tuple[InstructionStatistics, ...] = field(repr=False)
    """Its executed SASS, the most issued first."""


@dataclass
class Report:
    """A launch that ran. Every look at it runs the launch again, on the arrays as they were before it."""

    launch: PreparedLaunch = field(repr=False)
    inputs: Inputs | None = field(repr=False)
    findings: tuple[Finding, ...] = ()
    """What checkers found, the fault that stopped the launch included. Each prints as a sentence."""
    stopped: str | None = None
    """The fault that stopped the launch; None if it ran to its end."""
    warp_instructions: int = 0
    blocks_run: int = 0
    blocks_total: int = 0
    seconds: float = 0.0
    """That the emulation took: it says nothing about a V100."""

    def raise_if_found(self) -> None:
        """Raise EmulatorError with all findings, if there are any."""
        if self.findings:
            raise EmulatorError("\n".join(map(str, self.findings)))

    def _again(self, launch: PreparedLaunch, instruments: Instruments) -> None:
        if self.inputs is None:
            raise LabError(
                "report: the launch was made with keep_inputs=False, so it can't run again on its inputs. "
                "Launch with keep_inputs=True"
            )
        with self.inputs.restored():
            launch.run(instruments)

    @functools.cached_property
    def statistics(self) -> KernelStatistics:
        """Counts of every instruction, and totals by pipe, opcode, kind of memory and source line.

        Raises EmulatorError if a fault stops the launch.
        """
        with Instruments("statistics") as instruments:
            self._again(self.launch, instruments)
            return read_report(instruments.report("statistics"))[self.launch.kernel]

    def hot_spots(self, top: int = 10) -> list[HotSpot]:
        """The source lines whose instructions warps issue most, the first ``top`` of them."""
        found = []
        for place, instructions in list(self.statistics.by_line().items())[:top]:
            warps = sum(i.warps for i in instructions)
            found.append(
                HotSpot(
                    place=place,
                    share=warps / self.statistics.issued,
                    warp_instructions=warps,
                    sectors=sum(i.sectors for i in instructions),
                    bank_conflicts=sum(i.bank_conflicts for i in instructions),
                    instructions=tuple(sorted(instructions, key=lambda i: -i.warps)),
                )
            )
        return found

    def estimate(
        self,
        *,
        board: str = "v100-sxm2",
        clocks_mhz: Sequence[float] = CLOCKS_MHZ,
        whole_blocks: int | None = None,
        **changes: float,
    ) -> Estimate:
        """What the launch would take on a V100, by the cycle model: an estimate, never a measurement.

        Arguments are those of :func:`sm70_kernels.lab.cycle_model.estimate`.

        Raises:
            sm70_kernels.lab.instruments.InstrumentError: no such board or parameter.
        """
        return estimate_launch(
            self.launch.of_whole_grid(),
            board=board,
            clocks_mhz=clocks_mhz,
            whole_blocks=whole_blocks,
            changes=changes,
            run=self._again,
        )

    def export_accel_sim(
        self,
        folder: Path | str,
        *,
        blocks: int = 0,
        registers: Literal["all", "first"] = "all",
        addresses: Literal["compressed", "list"] = "compressed",
        lineinfo: bool = False,
    ) -> list[Path]:
        """Write the launch as an Accel-Sim SASS trace into a new folder, and return the files.

        Arguments are those of :func:`sm70_kernels.lab.inspect.trace`; ``registers="first"`` is what an unmodified
        Accel-Sim reads.

        Raises:
            sm70_kernels.lab.instruments.InstrumentError: the folder holds traces already, or can't be made.
        """
        options = trace_options(folder, blocks=blocks, registers=registers, addresses=addresses, lineinfo=lineinfo)
        with Instruments(trace=options) as instruments:
            self._again(self.launch, instruments)
            return [Path(folder, name) for name in instruments.report("trace")]


def _run_once(launch: PreparedLaunch, instruments: Instruments) -> None:
    launch.run(instruments)


def estimate_launch(
    launch: PreparedLaunch,
    *,
    board: str,
    clocks_mhz: Sequence[float],
    whole_blocks: int | None,
    changes: Mapping[str, float],
    run: Any = _run_once,
) -> Estimate:
    """Run a launch under the instrument ``timing``. Raises InstrumentError: no such board or parameter."""
    with Instruments(timing=timing_options(board, clocks_mhz, whole_blocks, changes)) as instruments:
        run(launch, instruments)
        return from_report(instruments.report("timing"))
