"""Two tables of the README: estimated times beside published ones, and how long the sessions take."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sm70_kernels.evidence.integrity import sums
from sm70_kernels.evidence.runs import samples
from sm70_kernels.evidence.runs.schema import ENVIRONMENT, MANIFEST, Environment, EvidenceError, Manifest, read

if TYPE_CHECKING:
    from sm70_kernels.evidence.runs.tables import Published

TIMES = ("operator", "work (6 query heads per KV head, D 256)", "1Cat-vLLM, published", "here, **estimated**")
DURATIONS = ("session", "tests run", "wall time", "on", "date")

#: Rows of the benchmarks that the README shows; all others are in docs/results.md.
SHOWN = (
    "prefill-G6-D256-Q8192-KV128000",
    "decode-e4m3-G6-D256-page800-B1-256K",
    "decode-e4m3-G6-D256-page800-B8-256K",
    "decode-e4m3-G6-D256-page800-B32-256K",
    "decode-fp16-G6-D256-page800-B1-256K",
    "verify-e4m3-q5-G6-D256-page848-B1-256K",
    "verify-e4m3-q8-G6-D256-page3296-B1-8K",
    "verify-e4m3-q8-G6-D256-page3296-B1-256K",
)


def times(rows: Iterable[samples.Row], found: Published) -> list[tuple[str, ...]]:
    """A line per row shown. Raises EvidenceError for one that was not estimated, or that nobody published."""
    estimated = {row.name: row.facts["estimated_ms"] for row in rows}
    figures = {figure.bench_row: figure for figure in found.operators if figure.milliseconds}
    lines: list[tuple[str, ...]] = []
    for name in SHOWN:
        if name not in estimated or name not in figures:
            raise EvidenceError(f"README's row {name}: want an estimate and a published time of it")
        figure = figures[name]
        published = f"[{figure.milliseconds} ms]({found.sources[figure.source].url})"
        lines.append((f"`{figure.operator}`", figure.row, published, f"{estimated[name]:.4f} ms"))
    return lines


def latest_sessions(results: Path) -> list[tuple[Path, Manifest, Environment]]:
    """The latest passing committed run of each session with and without a GPU, by session."""
    found: dict[tuple[str, bool], tuple[Path, Manifest, Environment]] = {}
    for name in sorted(sums.read_index(results)[0]):
        manifest, environment = (
            read(results / name / MANIFEST, Manifest),
            read(results / name / ENVIRONMENT, Environment),
        )
        if manifest.status == "pass":
            found[manifest.session, not environment.gpus] = (results / name, manifest, environment)
    return [found[key] for key in sorted(found)]


def duration(manifest: Manifest) -> tuple[str, str, str]:
    """The session, the number of tests, and the wall time."""
    start, end = (datetime.fromisoformat(time) for time in (manifest.start, manifest.end or manifest.start))
    minutes, seconds = divmod(round((end - start).total_seconds()), 60)
    tests = sum(sweep.executed for sweep in manifest.sweeps)
    if manifest.counts is not None:
        tests = manifest.counts.passed
    return f"`{manifest.session}`{', in part' if manifest.narrowed else ''}", str(tests), f"{minutes} min {seconds} s"
