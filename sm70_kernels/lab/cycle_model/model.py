"""Runs a call under the instrument ``timing`` and reads its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: The first is the one whose details are reported, and the one of benchmark rows. A V100-SXM2 boosts to 1530 MHz and
#: falls to about 1270 where tensor cores meet the power cap.
CLOCKS_MHZ = (1380, 1270, 1530)

#: Multiply-adds of a tensor core a cycle (two a sub-core, four sub-cores an SM): NVIDIA's architecture paper.
_TENSOR_FLOPS_PER_CYCLE = 4 * 2 * 64 * 2


@dataclass(frozen=True)
class AtClock:
    """A kernel, or a call of several, at one SM clock."""

    clock_mhz: float
    cycles: float
    """Without the launches' fixed cost."""
    ms: float
    """With it."""


@dataclass(frozen=True)
class KernelEstimate:
    """One launch."""

    kernel: str
    at: tuple[AtClock, ...]
    """By clock, in the order asked for."""
    grid: tuple[int, ...]
    block: tuple[int, ...]
    blocks_per_sm: int
    occupancy_limit: str
    """What bounds ``blocks_per_sm``: registers, shared memory, warps or blocks."""
    waves: int
    warp_instructions: float
    dram_read_bytes: float
    dram_write_bytes: float
    tensor_flops: float
    roof_ms: float
    """What the busier of DRAM and tensor cores needs at the first clock."""
    utilisation: dict[str, float]
    """Of issue slots, pipes, L2 and DRAM while the SM that decides is at work, at the first clock."""
    warp_cycles: dict[str, float]
    """What the warps of that SM did with their cycles, by Nsight Compute's names."""
    error: float
    """Relative, from sampling, extrapolation and how blocks fall into step. The model's own error comes on top."""
    details: dict[str, Any]
    """The launch's whole report: SASS lines, timeline, hit rates, what was simulated."""

    @property
    def ms(self) -> float:
        """Milliseconds at the first clock."""
        return self.at[0].ms

    @property
    def share_of_roof(self) -> float:
        """``roof_ms`` over the time."""
        return self.roof_ms / self.ms

    @property
    def bound(self) -> str:
        """The busiest unit, or ``latency`` if none is busy for half of the time."""
        name, share = max(self.utilisation.items(), key=lambda item: item[1])
        return name if share >= 0.5 else f"latency ({name} is busiest)"


@dataclass(frozen=True)
class Estimate:
    """A call: its launches one after the other."""

    kernels: tuple[KernelEstimate, ...]
    machine: dict[str, Any]
    """Revision and digest of the machine table, the board, and what was changed for a "what if"."""

    @property
    def at(self) -> tuple[AtClock, ...]:
        """Sums over the launches, by clock."""
        columns = zip(*(kernel.at for kernel in self.kernels), strict=True)
        return tuple(
            AtClock(column[0].clock_mhz, sum(e.cycles for e in column), sum(e.ms for e in column)) for column in columns
        )

    @property
    def ms(self) -> float:
        """Milliseconds at the first clock."""
        return self.at[0].ms

    @property
    def roof_ms(self) -> float:
        """What the roofs allow, at the first clock."""
        return sum(kernel.roof_ms for kernel in self.kernels)

    @property
    def share_of_roof(self) -> float:
        """``roof_ms`` over the time."""
        return self.roof_ms / self.ms

    @property
    def dram_gbps(self) -> float:
        """DRAM traffic over the time, at the first clock."""
        return sum(k.dram_read_bytes + k.dram_write_bytes for k in self.kernels) / self.ms / 1e6

    @property
    def tflops(self) -> float:
        """Tensor-core rate, at the first clock."""
        return sum(kernel.tensor_flops for kernel in self.kernels) / self.ms / 1e9

    @property
    def bound(self) -> str:
        """Of the launch that takes longest."""
        return max(self.kernels, key=lambda kernel: kernel.ms).bound

    @property
    def error(self) -> float:
        """Relative, as of :class:`KernelEstimate`: the launches' errors weighted with their times."""
        return sum(kernel.error * kernel.ms for kernel in self.kernels) / self.ms


def _kernel(launch: dict[str, Any], machine: dict[str, Any]) -> KernelEstimate:
    at = tuple(AtClock(**entry) for entry in launch["estimates"])
    tensor_peak = machine["sms"] * _TENSOR_FLOPS_PER_CYCLE * at[0].clock_mhz * 1e6
    dram_ms = (launch["dram_read_bytes"] + launch["dram_write_bytes"]) / machine["dram_gbps"] / 1e6
    return KernelEstimate(
        kernel=launch["kernel"],
        at=at,
        grid=tuple(launch["grid"]),
        block=tuple(launch["block"]),
        blocks_per_sm=launch["blocks_per_sm"],
        occupancy_limit=launch["occupancy_limit"],
        waves=launch["waves"],
        warp_instructions=launch["warp_instructions"],
        dram_read_bytes=launch["dram_read_bytes"],
        dram_write_bytes=launch["dram_write_bytes"],
        tensor_flops=launch["tensor_flops"],
        roof_ms=max(dram_ms, launch["tensor_flops"] / tensor_peak * 1e3),
        utilisation=launch["utilisation"],
        warp_cycles=launch["warp_cycles"],
        error=launch["extrapolation_error"] + launch["sampling_error"] + launch["phase_error"],
        details=launch,
    )


def from_report(report: dict[str, Any]) -> Estimate:
    """The estimate that a report of the instrument holds."""
    machine = report["machine"]
    return Estimate(tuple(_kernel(launch, machine) for launch in report["launches"]), machine)


def timing_options(
    board: str, clocks_mhz: Sequence[float], whole_blocks: int | None, changes: Mapping[str, float]
) -> dict[str, Any]:
    """Options of the instrument ``timing``."""
    return {
        "board": board,
        "clocks": ",".join(f"{clock:g}" for clock in clocks_mhz),
        **({} if whole_blocks is None else {"whole_blocks": whole_blocks}),
        **changes,
    }


def estimate(
    call: Callable[[], object],
    *,
    board: str = "v100-sxm2",
    clocks_mhz: Sequence[float] = CLOCKS_MHZ,
    whole_blocks: int | None = None,
    threads: int | None = None,
    **changes: float,
) -> Estimate:
    """Estimate a call on CPU tensors.

    Args:
        call: launches operators of this package; everything else in it costs nothing.
        board: a row of the machine table: ``v100-sxm2``, ``v100-72``, ``v100-pcie``.
        clocks_mhz: SM clocks; the first is the one whose details are reported.
        whole_blocks: blocks of each grid that are run from start to end, evenly spaced. Left out, eight, or fewer
            where they are long: see "What runs" in ``docs/cycle-model.md``.
        threads: worker threads of the emulator.
        changes: parameters of the machine table for a "what if" (``dram_gbps=425``), or budgets of the instrument
            (``emulated``, ``recorded``, ``heads``, ``instructions``). They are told in ``Estimate.machine``.

    Raises:
        ValueError: the call launched nothing.
        sm70_kernels.lab.instruments.InstrumentError: no such board or parameter.
    """
    from sm70_kernels.lab import emulator
    from sm70_kernels.lab.instruments import Instruments

    options = timing_options(board, clocks_mhz, whole_blocks, changes)
    with Instruments(timing=options) as instruments:
        sms = int(instruments.report("timing")["machine"]["sms"])
        with emulator.enabled(instruments=instruments, threads=threads, multiprocessors=sms):
            call()
        report = instruments.report("timing")
    if not report["launches"]:
        raise ValueError("estimate: argument 'call': it launched no kernel. Call an operator of this package in it")
    return from_report(report)


def machine_table() -> list[dict[str, Any]]:
    """The machine table: name, value, unit and source of every parameter."""
    from sm70_kernels.lab.instruments import Instruments

    with Instruments("timing") as instruments:
        table: list[dict[str, Any]] = instruments.report("timing")["table"]
        return table
