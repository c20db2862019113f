"""``sm70-kernels audit``: what kernels cost by their machine code alone, against their budgets."""

from __future__ import annotations

from pathlib import Path

from sm70_kernels.cli import output
from sm70_kernels.evidence.runs.schema import SCHEMA_VERSION, Record
from sm70_kernels.lab.audit.facts import KernelFacts
from sm70_kernels.lab.audit.operators import Audit


class Report(Record, kw_only=True, frozen=True):
    """Audits of operators."""

    schema_version: int = SCHEMA_VERSION
    operators: list[Audit]

    @property
    def within(self) -> bool:
        """Whether every budget is kept."""
        return not any(audit.findings for audit in self.operators)


def _mix(kernel: KernelFacts) -> str:
    return " ".join(f"{pipe} {count}" for pipe, count in kernel.pipes.items() if pipe != "none")


def _show_kernels(audit: Audit) -> None:
    rows = [
        (
            name,
            *map(str, (kernel.registers, kernel.max_live_registers, kernel.static_shared_bytes)),
            *map(str, (kernel.local_bytes, kernel.spill_bytes)),
            ", ".join(f"{shape.threads}+{shape.dynamic_shared_bytes} B" for shape in kernel.occupancy),
            ", ".join(f"{shape.warps}/64 {shape.limiter}" for shape in kernel.occupancy),
            str(kernel.hmma),
            f"{kernel.wide_global_percent} %" if kernel.global_accesses else "",
            f"{kernel.wide_shared_percent} %" if kernel.shared_accesses else "",
            _mix(kernel),
        )
        for name, kernel in audit.kernels.items()
    ]
    columns = (
        *("kernel", "registers", "live", "static shared B", "stack B", "spill B", "block + dynamic shared"),
        *("resident warps, limited by", "HMMA", "128-bit global", "128-bit shared", "instructions by pipe"),
    )
    output.table(f"{audit.operator}: kernels", columns, rows)


def _show_loops(audit: Audit) -> None:
    rows = [
        (
            name,
            f"{loop.offset:04x}",
            str(loop.depth),
            *map(str, (loop.instructions, loop.stall_cycles)),
            " ".join(f"{pipe} {cycles}" for pipe, cycles in loop.pipes.items()),
            str(loop.global_bytes),
            f"{loop.bound_cycles} {loop.limiter}",
            loop.source,
        )
        for name, kernel in audit.kernels.items()
        for loop in kernel.loops
    ]
    columns = (
        *(
            "kernel",
            "offset",
            "depth",
            "issue slots",
            "stall cycles",
            "pipe cycles",
            "global B per warp",
            "bound per iteration",
        ),
        "source",
    )
    if rows:
        output.table(f"{audit.operator}: loops, cycles of the sub-core per iteration of a warp", columns, rows)


def show(report: Report, *, as_json: bool) -> None:
    """Print the audits."""
    if as_json:
        output.json(report)
        return
    for audit in report.operators:
        _show_kernels(audit)
        _show_loops(audit)
    for audit in report.operators:
        for finding in audit.findings:
            print(f"{audit.operator}: {finding}")
        if audit.remedy:
            print(audit.remedy)
    kernels = sum(len(audit.kernels) for audit in report.operators)
    if report.within:
        print(f"{kernels} kernels are within their budgets")


def wrote(path: Path, root: Path) -> None:
    """Say what was written."""
    print(f"written: {path.relative_to(root)}")
