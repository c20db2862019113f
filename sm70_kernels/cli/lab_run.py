"""What ``sm70-kernels lab`` does: open a file, launch a kernel, print what it did."""

from __future__ import annotations

import linecache
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from sm70_kernels import lab
from sm70_kernels.cli import lab_arguments, output
from sm70_kernels.cli.lab_arguments import NamedArgument
from sm70_kernels.cli.statistics import Report as StatisticsReport
from sm70_kernels.cli.statistics import show_hotspots, show_statistics
from sm70_kernels.lab.checkers import CHECKERS
from sm70_kernels.lab.cycle_model import Estimate
from sm70_kernels.lab.cycle_model import report as estimate_text

#: First values of an array that are printed.
_SHOWN = 6


@dataclass(frozen=True)
class Wanted:
    """The options of ``lab run``."""

    kernel: str
    grid: str
    block: str
    args: tuple[str, ...]
    outputs: tuple[str, ...]
    shared: int
    checkers: str
    wants_statistics: bool
    hot_spots: int | None
    wants_estimate: bool
    board: str
    accel_sim: Path | None
    save: tuple[str, ...]
    data_seed: int
    seed: int
    threads: int | None
    as_json: bool

    @property
    def looks_further(self) -> bool:
        """Whether more than the launch itself is asked for."""
        return bool(self.wants_statistics or self.hot_spots or self.wants_estimate or self.accel_sim)


def open_module(
    file: Path, *, include: Sequence[Path] = (), defines: Sequence[str] = (), options: Sequence[str] = ()
) -> lab.Module:
    """A module of CUDA source, PTX or a cubin, by the file's suffix. Warnings go to standard error.

    Raises:
        LabError: there is no such file, or it is not what its suffix says.
        CompileError: it does not compile.
    """
    if file.suffix not in (".cu", ".ptx"):
        return lab.load(file)
    if file.suffix == ".ptx":
        try:
            return lab.from_ptx(file.read_text())
        except OSError as error:
            raise lab.LabError(f"FILE: got {str(file)!r} ({error.strerror}). Name a .cu, .ptx or cubin file") from error
    macros = {name: value if equals else "1" for name, equals, value in (text.partition("=") for text in defines)}
    module = lab.compile(file, include=include, defines=macros, options=options)
    if module.warnings:
        click.echo(module.warnings, err=True)
    return module


def show_kernels(module: lab.Module, *, as_json: bool) -> None:
    """Print the kernels of a module."""
    kernels = [module.kernel(name) for name in module.kernels]
    if as_json:
        output.json(
            [{"name": k.name, "signature": k.signature, "unsupported": k.unsupported, **k.facts} for k in kernels]
        )
        return
    rows = [
        (
            kernel.signature,
            str(kernel.registers),
            str(kernel.static_shared_bytes),
            str(kernel.facts["local_bytes"]),
            " ".join(str(parameter.size) for parameter in kernel.parameters),
            kernel.unsupported[0] if kernel.unsupported else "",
        )
        for kernel in kernels
    ]
    columns = ("kernel", "registers", "shared bytes", "stack bytes", "parameter bytes", "can't run")
    output.table("kernels", columns, rows)


def _checkers(text: str) -> tuple[str, ...]:
    if text in ("all", "none"):
        return CHECKERS if text == "all" else ()
    return tuple(name for name in text.split(",") if name)


def _show_launch(report: lab.Report, arguments: Sequence[NamedArgument]) -> None:
    launch = report.launch
    where = f"grid {'x'.join(map(str, launch.grid))}, block {'x'.join(map(str, launch.block))}"
    if report.stopped is None:
        ran = f"{report.blocks_run} blocks, {report.warp_instructions} warp instructions"
    else:
        ran = "stopped"
    click.echo(f"{launch.kernel}: {where}: {ran}\n")
    rows = []
    for argument in arguments:
        value = argument.value
        if isinstance(value, np.ndarray):
            values = " ".join(f"{element:g}" for element in value.reshape(-1)[:_SHOWN].tolist())
            more = " ..." if value.size > _SHOWN else ""
            rows.append((argument.name, f"{value.dtype}[{','.join(map(str, value.shape))}]", values + more))
        else:
            rows.append((argument.name, "pointer" if value is None else str(value.dtype), str(value)))
    if rows:
        output.table("arguments after the launch", ("name", "type", "values"), rows)


def _show_findings(report: lab.Report) -> None:
    click.echo(f"findings: {len(report.findings) or 'none'}")
    for finding in report.findings:
        click.echo(f"- {finding}")
    click.echo()


def source_line(place: str) -> str:
    """The text at ``file:line``; empty where the file is not here."""
    name, _, number = place.rpartition(":")
    return linecache.getline(name, int(number)).strip() if name else ""


def run(module: lab.Module, wanted: Wanted) -> bool:
    """Launch and print; whether it ran to its end and nothing was found.

    Raises:
        LabError: an option is not what the kernel takes; nothing ran.
        EmulatorError: an instruction is not implemented, or a fault stopped a launch without checkers.
    """
    only = module.kernels[0] if len(module.kernels) == 1 else ""
    kernel = module.kernel(wanted.kernel or only)
    arguments = lab_arguments.parse(wanted.args, wanted.data_seed)
    outputs = [arguments[lab_arguments.position("--output", name, arguments)].name for name in wanted.outputs]
    saves = lab_arguments.saves(wanted.save, arguments)
    checkers = _checkers(wanted.checkers)
    report = kernel.launch(
        lab_arguments.extent("--grid", wanted.grid),
        lab_arguments.extent("--block", wanted.block),
        {argument.name: argument.value for argument in arguments},
        outputs=outputs or None,
        dynamic_shared_bytes=wanted.shared,
        checkers=checkers,
        undefined=[argument.name for argument in arguments if argument.undefined] if checkers else (),
        seed=wanted.seed,
        threads=wanted.threads,
    )
    for at, path in saves:
        np.save(path, arguments[at].value)
    looks = _Looks.of(report, wanted) if report.stopped is None else _Looks()
    if wanted.as_json:
        output.json(_record(report, looks))
    else:
        _show_launch(report, arguments)
        if checkers:
            _show_findings(report)
        looks.show(wanted)
        if report.stopped is not None and wanted.looks_further:
            click.echo("not counted, estimated or exported: the launch was stopped")
    return not report.findings


@dataclass(frozen=True)
class _Looks:
    """Further looks at the launch, those that were asked for."""

    statistics: StatisticsReport | None = None
    estimate: Estimate | None = None
    traces: tuple[Path, ...] = ()

    @classmethod
    def of(cls, report: lab.Report, wanted: Wanted) -> _Looks:
        """Run the launch again for each of them."""
        counted = wanted.wants_statistics or wanted.hot_spots
        return cls(
            StatisticsReport(kernels={report.launch.kernel: report.statistics}) if counted else None,
            report.estimate(board=wanted.board) if wanted.wants_estimate else None,
            tuple(report.export_accel_sim(wanted.accel_sim)) if wanted.accel_sim else (),
        )

    def show(self, wanted: Wanted) -> None:
        """Print them."""
        if self.statistics is not None and wanted.wants_statistics:
            show_statistics(self.statistics, as_json=False)
        if self.statistics is not None and wanted.hot_spots:
            show_hotspots(self.statistics, top=wanted.hot_spots, as_json=False, source_line=source_line)
        if self.estimate is not None:
            click.echo(estimate_text(self.estimate))
        for path in self.traces:
            click.echo(path)


def _record(report: lab.Report, looks: _Looks) -> dict[str, Any]:
    return {
        "kernel": report.launch.kernel,
        "grid": report.launch.grid,
        "block": report.launch.block,
        "stopped": report.stopped,
        "warp_instructions": report.warp_instructions,
        "findings": [asdict(finding) for finding in report.findings],
        "statistics": looks.statistics.kernels[report.launch.kernel] if looks.statistics else None,
        "estimate": asdict(looks.estimate) if looks.estimate else None,
        "accel_sim": [str(path) for path in looks.traces],
    }
