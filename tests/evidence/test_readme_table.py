"""README's own tables: estimates beside published times, and the durations of sessions."""

from __future__ import annotations

import re

import pytest

from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.runs import readme_table, samples, tables
from sm70_kernels.evidence.runs.schema import EvidenceError


def test_an_estimate_stands_beside_the_published_time_of_the_same_row() -> None:
    rows = [
        row
        for row in samples.read_rows(tables.latest(ROOT, "bench", gpu=False).folder)
        if row.kind == samples.ESTIMATED
    ]
    found = tables.published(ROOT)
    estimated = {row.name: row.facts["estimated_ms"] for row in rows}
    figures = {figure.bench_row: figure for figure in found.operators}
    lines = readme_table.times(rows, found)
    for name, (operator, _, published, here) in zip(readme_table.SHOWN, lines, strict=True):
        assert operator == f"`{figures[name].operator}`"
        assert published.startswith(f"[{figures[name].milliseconds} ms](https://")
        assert here == f"{estimated[name]:.4f} ms"


def test_a_row_without_an_estimate_is_refused() -> None:
    with pytest.raises(EvidenceError, match="want an estimate and a published time of it"):
        readme_table.times([], tables.published(ROOT))


def test_durations_are_those_of_the_latest_committed_runs() -> None:
    found = readme_table.latest_sessions(ROOT / "results")
    kinds = [(manifest.session, bool(environment.gpus)) for _, manifest, environment in found]
    assert len(kinds) == len(set(kinds)) and ("bench", False) in kinds
    for folder, manifest, _ in found:
        assert manifest.status == "pass" and folder.name.endswith(manifest.session)
        assert re.fullmatch(r"\d+ min \d+ s", readme_table.duration(manifest)[2])
