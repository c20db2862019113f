"""``sm70-kernels report``: run folders as one HTML page that needs no other file.

matplotlib and jinja2 are in the dependency group ``report``; nothing else of the package needs them.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sm70_kernels.cli import check_results
from sm70_kernels.evidence.integrity.intact import RunReport
from sm70_kernels.evidence.runs import samples
from sm70_kernels.evidence.runs.schema import (
    BENCHMARK,
    ENVIRONMENT,
    MANIFEST,
    Environment,
    EvidenceError,
    Manifest,
    read,
)

_TEMPLATE = "report.html.j2"
_ROW_HEIGHT_IN, _FRAME_IN = 0.22, 1.0


class MissingError(RuntimeError):
    """A package of the group ``report`` is not installed."""


@dataclass(frozen=True)
class Group:
    """Rows of one function, with their plot."""

    title: str
    label: str
    plot: Any
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Section:
    """A run on the page."""

    report: RunReport
    reason: str
    facts: Sequence[tuple[str, str]]
    groups: Sequence[Group]


def _plot(rows: Sequence[samples.Row]) -> str:
    """Ratios with their intervals, as an SVG element; the same rows give the same text."""
    try:
        import matplotlib as mpl

        mpl.use("svg")
        from matplotlib import pyplot
    except ImportError as error:
        raise MissingError(
            f"{error}. Install the dependency group 'report': 'uv sync --inexact --group report'"
        ) from error
    settings = {"svg.hashsalt": "sm70_kernels", "svg.fonttype": "none"}
    with mpl.rc_context(settings):
        figure, axes = pyplot.subplots(figsize=(9, _FRAME_IN + _ROW_HEIGHT_IN * len(rows)), layout="constrained")
        for place, row in enumerate(reversed(rows)):
            low, high = row.ratio_interval
            axes.plot((low, high), (place, place), color="#1f6f8b", linewidth=4, solid_capstyle="butt")
            axes.plot(row.ratio, place, "|", color="black")
        axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
        axes.axvline(1.0, color="#888", linewidth=0.8)
        baseline = {"copy": "a copy of as many bytes"}.get(rows[0].baseline, rows[0].baseline)
        axes.set_xlabel(f"time of {baseline} / time of the operator, with 95 % interval")
        stream = io.StringIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = stream.getvalue()
    return text[text.index("<svg") :]


def _groups(folder: Path) -> list[Group]:
    from markupsafe import Markup

    functions: dict[str, list[samples.Row]] = {}
    for row in samples.read_rows(folder):
        if row.arm == "operator" and row.ratios:
            functions.setdefault(str(row.facts["function"]), []).append(row)
    measured = [_group(name, rows, Markup(_plot(rows))) for name, rows in sorted(functions.items())]
    return measured + _estimated_groups(folder)


def _estimated_groups(folder: Path) -> list[Group]:
    """Rows of the cycle model, with the timeline of the longest."""
    from markupsafe import Markup

    from sm70_kernels.lab.cycle_model.picture import timeline_svg

    functions: dict[str, list[samples.Row]] = {}
    for row in samples.read_rows(folder):
        if row.kind == samples.ESTIMATED and "estimated_ms" in row.facts:
            functions.setdefault(str(row.facts["function"]), []).append(row)
    groups = []
    columns = ("row", "ms", "GB/s", "TFLOP/s", "of roof", "bound", "sampling")
    for name, rows in sorted(functions.items()):
        facts = rows[0].facts
        machine = facts["machine"]
        label = (
            f"{facts['time_label']}: {rows[0].device} at {facts['estimated_clock_mhz']:g} MHz and "
            f"{machine['dram_gbps']:g} GB/s, machine table revision {machine['revision']}; not measured"
        )
        longest = max(rows, key=lambda row: float(row.facts["estimated_ms"]))
        try:
            plot = timeline_svg(longest.facts["estimated_timeline"], longest.name)
        except ImportError as error:
            raise MissingError(f"{error}. Install the dependency group 'report'") from error
        groups.append(Group(name, label, Markup(plot), columns, [_estimated_cells(row) for row in rows]))
    return groups


def _estimated_cells(row: samples.Row) -> list[str]:
    facts = row.facts
    tflops = facts["estimated_tflops"]
    return [
        row.name,
        f"{facts['estimated_ms']:.4f}",
        f"{facts['estimated_gbps']:.0f}",
        "-" if tflops is None else f"{tflops:.1f}",
        f"{facts['estimated_share_of_roof']:.1%}",
        str(facts["estimated_bound"]),
        f"±{facts['estimated_error']:.1%}",
    ]


def _group(name: str, rows: Sequence[samples.Row], plot: Any) -> Group:
    """Times are shown where they are a V100's; of another device the ratios alone."""
    native = all(row.facts["time_label"] == "V100" for row in rows)
    baseline = rows[0].baseline
    device, image = rows[0].device, rows[0].facts["image"]
    where = f"{rows[0].kind} on {device}, {image}"
    if not native:
        where += f"; not V100 times: ratios to {'a copy' if baseline == 'copy' else baseline} alone"
    columns = ["row", f"ratio to {baseline}", "95 % interval", "verdict", "flags", "right"]
    cells = []
    for row in rows:
        facts = row.facts
        low, high = row.ratio_interval
        cells.append(
            [
                row.name,
                f"{row.ratio:.3f}",
                f"{low:.3f} to {high:.3f}",
                str(facts["verdict"]),
                ", ".join(facts["flags"]),
                "yes" if facts.get("right", facts.get("exact")) else "no",
            ]
            + ([f"{facts['median_ms']:.4f}", f"{facts['gbps']:.0f}"] if native else [])
        )
    return Group(name, where, plot, columns + (["ms", "GB/s"] if native else []), cells)


def _facts(manifest: Manifest, folder: Path) -> list[tuple[str, str]]:
    facts = [
        ("commit", f"{manifest.commit or 'unknown'}{' (dirty)' if manifest.dirty else ''}"),
        ("command", " ".join(manifest.command)),
        ("time", f"{manifest.start} to {manifest.end or 'an interruption'}"),
    ]
    if (folder / ENVIRONMENT).is_file():
        environment = read(folder / ENVIRONMENT, Environment)
        facts += [
            ("GPU", f"{gpu.name}, sm_{gpu.capability.replace('.', '')}, {gpu.sm_count} SMs") for gpu in environment.gpus
        ]
        facts.append(("driver", environment.driver or "none"))
    for library in manifest.libraries:
        images = " and ".join(library.images()) or "nothing ran"
        facts.append((library.operator, f"{images}; library {library.sha256}, cubin {library.cubin_sha256}"))
    facts += [(sweep.tool, sweep.reason) for sweep in manifest.sweeps]
    facts += [(f"validation of {name}", verdict.reason) for name, verdict in sorted(manifest.validation.items())]
    return facts


def _section(report: RunReport, folder: Path) -> Section:
    """A damaged run is shown by its name and findings alone: nothing vouches for its figures."""
    if not report.intact:
        return Section(report, "", [], [])
    manifest = read(folder / MANIFEST, Manifest)
    groups = _groups(folder) if (folder / BENCHMARK).is_file() else []
    return Section(report, manifest.reason, _facts(manifest, folder), groups)


def page(results: Path) -> tuple[str, bool]:
    """The page of a run folder or a folder of them, and whether all is intact. Raises UsageError, MissingError."""
    checked = check_results.check([results], None)
    if not checked.runs:
        raise check_results.UsageError(f"{results.name} holds no run folder")
    try:
        import jinja2
    except ImportError as error:
        raise MissingError(f"{error}. Install the dependency group 'report'") from error
    single = (results / MANIFEST).is_file() or results.resolve().name == checked.runs[0].name
    parent = results.resolve().parent if single else results.resolve()
    try:
        sections = [_section(report, parent / report.name) for report in checked.runs]
    except (EvidenceError, KeyError) as error:
        raise check_results.UsageError(f"a run can't be shown: {error}") from error
    template = jinja2.Environment(autoescape=True).from_string(Path(__file__).with_name(_TEMPLATE).read_text())
    return template.render(runs=sections, findings=checked.findings) + "\n", checked.intact
