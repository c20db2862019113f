"""``sm70-kernels report``: one page, nothing loaded from elsewhere, nothing shown of a damaged run."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sm70_kernels.build.settings import ROOT
from sm70_kernels.cli import html_report, main
from sm70_kernels.evidence.integrity import sums
from sm70_kernels.evidence.runs import tables


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of the latest committed runs."""
    folder = tmp_path / "results"
    folders = [tables.latest(ROOT, session).folder for session in ("bench", "memcheck")]
    for run in folders:
        shutil.copytree(run, folder / run.name)
    sums.write_index(folder, lambda: [folder / run.name for run in folders])
    return folder


def invoke(results: Path, page: Path) -> Result:
    return CliRunner().invoke(main, ["report", str(results), "--output", str(page)])


def test_the_page_shows_every_run_and_needs_no_other_file(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_report, "_plot", lambda rows: f"<svg>{len(rows)} rows</svg>")
    for path in (results, tables.latest(ROOT, "bench").folder):
        done = invoke(path, tmp_path / "page.html")
        assert done.exit_code == 0, done.output
        text = (tmp_path / "page.html").read_text()
        assert "<svg>" in text and "gather_paged_kv" in text
        assert not re.search(r"(?:src|href)=\"[^#]", text)
        if "not V100 times" in text:
            assert "<th>ms</th>" not in text


def test_figures_of_a_damaged_run_are_not_shown(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html_report, "_plot", lambda rows: "<svg></svg>")
    (path,) = results.glob("*/benchmark.json")
    path.write_text(path.read_text().replace('"exact": true', '"exact": true ', 1))
    done = invoke(results, tmp_path / "page.html")
    assert done.exit_code == 1
    text = (tmp_path / "page.html").read_text()
    assert "benchmark.json has SHA-256" in text
    assert "<svg>" not in text


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib is installed")
def test_without_matplotlib_the_remedy_is_named(results: Path, tmp_path: Path) -> None:
    done = invoke(results, tmp_path / "page.html")
    assert done.exit_code == 1
    assert "--group report" in done.output


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed (group report)")
def test_the_plot_is_the_same_each_time(results: Path, tmp_path: Path) -> None:
    pages = [tmp_path / "a.html", tmp_path / "b.html"]
    for page in pages:
        assert invoke(results, page).exit_code == 0
    assert pages[0].read_text() == pages[1].read_text()


def test_a_page_that_can_not_be_written_is_a_usage_error(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html_report, "_plot", lambda rows: "<svg></svg>")
    done = invoke(results, tmp_path / "no folder" / "page.html")
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert "--output: got " in done.output and "want a file that can be written (No such file" in done.output


def test_a_folder_without_runs_is_a_usage_error(tmp_path: Path) -> None:
    assert invoke(tmp_path, tmp_path / "page.html").exit_code == 2
