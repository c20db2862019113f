"""Benchmark rows without a GPU: estimates of the cycle model, recorded beside measured rows and never as one.

    row = EstimatedRow(row="decode-B1-256K", operator="decode", function="decode", bytes_moved=kv_bytes)
    estimate, facts = estimate_row(row, lambda: decode.decode(...))  # CPU tensors; torch.empty is enough
    record(benchmark, facts)

``facts`` are the row's ``extra_info``: ``estimated_ms``, ``estimated_gbps`` and ``estimated_tflops`` at 1.38 GHz, and
what they rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sm70_kernels.bench.replay import replay
from sm70_kernels.bench.roofs import rate
from sm70_kernels.lab.cycle_model import Estimate, KernelEstimate, estimate

#: ``time_label`` of these rows; what reads them tells measured from estimated by its first word.
LABEL = "estimated (emulated V100)"
_TIMELINE_POINTS = 96
#: Units whose activity over time is recorded.
_TIMELINE_UNITS = ("tensor", "lsu", "fma", "alu", "xu")
_SUB_CORES = 4


@dataclass(frozen=True)
class EstimatedRow:
    """What a row is about."""

    row: str
    """Unique name of the row; the same as the measured one's."""
    operator: str
    """The operator's folder and library."""
    function: str
    bytes_moved: int | None = None
    """Bytes that the call must read plus bytes it must write; without it the rate is that of DRAM traffic."""
    flops: float | None = None
    """Operations that the call must do; without it the rate is that of the tensor cores."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Operator facts (shape, page, format, ...), recorded as they are."""


def timeline(kernel: KernelEstimate) -> dict[str, Any]:
    """Activity of the SM that decides over time, as parts of what is possible, in at most 96 points."""
    recorded = kernel.details["timeline"]
    width, count = float(recorded["bucket_cycles"]), len(recorded["issued"])
    step = max(1, -(-count // _TIMELINE_POINTS))

    def shares(values: Sequence[float], capacity: float) -> list[float]:
        sums = [sum(values[i : i + step]) for i in range(0, count, step)]
        sizes = [len(values[i : i + step]) for i in range(0, count, step)]
        return [round(s / (n * width * capacity), 4) for s, n in zip(sums, sizes, strict=True)]

    dram = kernel.utilisation["dram"]
    moved = shares(recorded["dram_bytes"], 1.0)
    mean = sum(moved) / len(moved) if moved else 0.0
    units = {"issue": shares(recorded["issued"], _SUB_CORES)}
    for name in _TIMELINE_UNITS:
        if name in recorded["busy"]:
            units[name] = shares(recorded["busy"][name], 1 if name == "lsu" else _SUB_CORES)
    # A burst passes at the speed of the port, beyond the SM's share: that is full.
    units["dram"] = [round(min(1.0, value * dram / mean), 4) if mean else 0.0 for value in moved]
    return {"kernel": kernel.kernel, "cycles_a_point": width * step, "units": units}


def estimate_facts(row: EstimatedRow, result: Estimate) -> dict[str, Any]:
    """``extra_info`` of a row, JSON-ready."""
    first = result.at[0]
    longest = max(result.kernels, key=lambda kernel: kernel.ms)
    total = sum(longest.warp_cycles.values()) or 1.0
    flops = row.flops if row.flops is not None else sum(kernel.tensor_flops for kernel in result.kernels)
    return {
        "row": row.row,
        "operator": row.operator,
        "function": row.function,
        **row.facts,
        "arm": "operator",
        "time_label": LABEL,
        "device": f"emulated V100 ({result.machine['sms']:g} SMs)",
        "compute_capability": [7, 0],
        "image": "cubin (emulated)",
        "bytes_moved": row.bytes_moved,
        "estimated_clock_mhz": first.clock_mhz,
        "estimated_ms": first.ms,
        "estimated_gbps": rate(row.bytes_moved, first.ms) if row.bytes_moved is not None else result.dram_gbps,
        "estimated_tflops": flops / first.ms / 1e9 if flops else None,
        "estimated_by_clock": [{"clock_mhz": at.clock_mhz, "cycles": at.cycles, "ms": at.ms} for at in result.at],
        "estimated_share_of_roof": result.share_of_roof,
        "estimated_bound": result.bound,
        "estimated_error": result.error,
        "estimated_utilisation": {name: round(share, 4) for name, share in longest.utilisation.items()},
        "estimated_warp_cycles": {name: round(value / total, 4) for name, value in longest.warp_cycles.items()},
        "estimated_timeline": timeline(longest),
        "kernels": [kernel.kernel for kernel in result.kernels],
        "machine": result.machine,
    }


def estimate_row(row: EstimatedRow, call: Callable[[], object], **options: Any) -> tuple[Estimate, dict[str, Any]]:
    """Estimate a row. ``options`` go to :func:`sm70_kernels.lab.cycle_model.estimate`."""
    result = estimate(call, **options)
    return result, estimate_facts(row, result)


def record(benchmark: Any, facts: dict[str, Any]) -> None:
    """Give pytest-benchmark's fixture the estimate as its one sample. The test carries ``timer=replay_timer``."""
    benchmark.group = facts["row"]
    benchmark.extra_info.update(facts)
    replay(benchmark, [facts["estimated_ms"]])


def render_estimates(rows: Sequence[dict[str, Any]]) -> str:
    """Estimated rows as plain text."""
    cells = [("row", "ms", "GB/s", "TFLOP/s", "of roof", "bound", "+-")]
    for facts in rows:
        tflops = facts["estimated_tflops"]
        cells.append(
            (
                facts["row"],
                f"{facts['estimated_ms']:.4f}",
                f"{facts['estimated_gbps']:.0f}",
                "-" if tflops is None else f"{tflops:.1f}",
                f"{facts['estimated_share_of_roof']:.1%}",
                facts["estimated_bound"],
                f"{facts['estimated_error']:.1%}",
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in cells)
    machine, clock = rows[0]["machine"], rows[0]["estimated_clock_mhz"]
    note = (
        f"Estimated, not measured: {rows[0]['device']} at {clock:g} MHz and {machine['dram_gbps']:g} GB/s, machine "
        f"table revision {machine['revision']}. +- is sampling alone; the model's error is in docs/cycle-model.md."
    )
    return "\n".join((*lines, note)) + "\n"
