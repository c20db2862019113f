"""An estimate as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sm70_kernels.lab.cycle_model.model import Estimate, KernelEstimate

#: SASS lines shown of a kernel: those where its warps spend most cycles.
LINES = 16


def _columns(rows: Sequence[Sequence[str]], indent: str = "  ") -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def label(machine: dict[str, Any]) -> str:
    """What every estimate says about where it comes from."""
    changed = "".join(f", {name}={value:g}" for name, value in machine["changed"].items())
    return (
        f"estimated (emulated V100): board {machine['board']}, {machine['sms']:g} SMs, {machine['dram_gbps']:g} GB/s, "
        f"machine table revision {machine['revision']}{changed}"
    )


def _shares(values: dict[str, float], least: float) -> str:
    total = sum(values.values()) or 1.0
    parts = sorted(((value / total, name) for name, value in values.items()), reverse=True)
    return ", ".join(f"{name} {share:.1%}" for share, name in parts if share >= least)


def _lines(kernel: KernelEstimate) -> list[str]:
    """The SASS lines with most warp cycles."""
    instructions: list[dict[str, Any]] = kernel.details["instructions"]
    total = sum(kernel.warp_cycles.values()) or 1.0
    busiest = sorted(instructions, key=lambda entry: -sum(entry["warp_cycles"].values()))[:LINES]
    rows = [["offset", "warp cycles", "issued", "SASS", "mostly"]]
    for entry in sorted(busiest, key=lambda e: float(e["offset"])):
        cycles = entry["warp_cycles"]
        rows.append(
            [
                f"{int(entry['offset']):#06x}",
                f"{sum(cycles.values()) / total:.1%}",
                f"{entry['issued']:.0f}",
                entry["text"][:60],
                _shares(cycles, 0.15),
            ]
        )
    return _columns(rows)


def _kernel(kernel: KernelEstimate) -> list[str]:
    details = kernel.details
    out = [
        f"{kernel.kernel}",
        f"  grid {'x'.join(f'{n:g}' for n in kernel.grid)}, block {'x'.join(f'{n:g}' for n in kernel.block)}, "
        f"{kernel.blocks_per_sm} blocks an SM (bound by {kernel.occupancy_limit}), {kernel.waves:g} waves; "
        f"{details['registers']:g} registers, {details['shared_bytes']:g} bytes of shared memory",
    ]
    moved = kernel.dram_read_bytes + kernel.dram_write_bytes
    rows = [["SM clock", "cycles", "ms", "DRAM GB/s", "tensor TFLOP/s"]]
    for entry in kernel.at:
        rows.append(
            [
                f"{entry.clock_mhz:g} MHz",
                f"{entry.cycles:.0f}",
                f"{entry.ms:.4f}",
                f"{moved / entry.ms / 1e6:.0f}",
                f"{kernel.tensor_flops / entry.ms / 1e9:.1f}" if kernel.tensor_flops else "-",
            ]
        )
    out += _columns(rows)
    out.append(
        f"  {kernel.share_of_roof:.1%} of the roof ({kernel.roof_ms:.4f} ms); bound by {kernel.bound}; "
        f"sampling and extrapolation +-{kernel.error:.1%}"
    )
    out.append(
        f"  DRAM {kernel.dram_read_bytes / 1e6:.1f} MB read, {kernel.dram_write_bytes / 1e6:.1f} MB written; "
        f"hits: L1 {details['l1_load_hit_rate']:.1%}, L2 {details['l2_load_hit_rate']:.1%} of loads"
    )
    busy = ", ".join(f"{name} {share:.1%}" for name, share in kernel.utilisation.items() if share >= 0.005)
    out.append(f"  busy at {kernel.at[0].clock_mhz:g} MHz: {busy}")
    out.append(f"  warp cycles: {_shares(kernel.warp_cycles, 0.005)}")
    return out + _lines(kernel)


def report(estimate: Estimate) -> str:
    """The estimate for a person to read."""
    out = [label(estimate.machine)]
    if len(estimate.kernels) > 1:
        times = ", ".join(f"{entry.ms:.4f} ms at {entry.clock_mhz:g} MHz" for entry in estimate.at)
        out.append(f"{len(estimate.kernels)} launches: {times}; {estimate.share_of_roof:.1%} of the roof")
    for kernel in estimate.kernels:
        out += ["", *_kernel(kernel)]
    return "\n".join(out) + "\n"
