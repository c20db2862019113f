"""Estimates on their way to people: record, table, command, page."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from click.testing import CliRunner

from sm70_kernels.bench import EstimatedRow, estimate_row, record, render_estimates, replay_timer
from sm70_kernels.bench.estimates import LABEL
from sm70_kernels.cli import html_report, main
from sm70_kernels.evidence.machine import places
from sm70_kernels.evidence.runs import samples, schema
from sm70_kernels.evidence.sessions import benchmarks
from sm70_kernels.lab.cycle_model import Estimate
from sm70_kernels.ops import kv_cache

TOKENS = 512

#: A benchmark module as the command wants it.
MODULE = """
import torch
from sm70_kernels.ops import kv_cache

def write(tokens):
    k = torch.empty(tokens, 1, 64, dtype=torch.float16)
    caches = torch.empty(2, tokens // 16, 16, 1, 64, dtype=torch.uint8).unbind(0)
    slots = torch.arange(tokens)
    return lambda: kv_cache.write_paged_kv(k, k, *caches, slots, kv_format="e4m3")

def estimates():
    return {f"write-{tokens}": lambda tokens=tokens: write(tokens) for tokens in (64, 128)}
"""


@pytest.fixture(scope="module")
def estimated() -> tuple[Estimate, dict[str, Any]]:
    """A call of two launches and its record."""
    k = torch.empty(TOKENS, 1, 256, dtype=torch.float16)
    caches = torch.empty(2, TOKENS // 16, 16, 1, 256, dtype=torch.uint8).unbind(0)
    slots = torch.arange(TOKENS)

    def call() -> None:
        for _ in range(2):
            kv_cache.write_paged_kv(k, k, *caches, slots, kv_format="e4m3")

    row = EstimatedRow("write twice", "kv_cache", "write_paged_kv", bytes_moved=1_000_000, facts={"page": 16})
    return estimate_row(row, call)


@pytest.fixture
def benchmark_file(tmp_path: Path, estimated: tuple[Estimate, dict[str, Any]]) -> Path:
    """A run's benchmark.json with the row in it."""
    facts = estimated[1]
    entry = {
        "name": "test_estimate",
        "group": facts["row"],
        "extra_info": facts,
        "stats": {"data": [facts["estimated_ms"] / 1e3], "median": facts["estimated_ms"] / 1e3},
    }
    path = tmp_path / schema.BENCHMARK
    path.write_text(json.dumps({"machine_info": {}, "benchmarks": [entry]}))
    return path


def test_launches_are_summed(estimated: tuple[Estimate, dict[str, Any]]) -> None:
    result, facts = estimated
    first, second = result.kernels
    assert first.ms == second.ms == result.ms / 2 > 0.002
    assert [at.clock_mhz for at in result.at] == [1380, 1270, 1530]
    assert facts["estimated_ms"] == result.ms
    assert facts["estimated_gbps"] == pytest.approx(1_000_000 / result.ms / 1e6)
    assert facts["estimated_tflops"] is None
    assert 0 < result.share_of_roof < 1


def test_the_record_says_that_it_is_an_estimate(estimated: tuple[Estimate, dict[str, Any]]) -> None:
    facts = json.loads(json.dumps(estimated[1]))
    assert facts["time_label"] == LABEL and facts["device"] == "emulated V100 (80 SMs)"
    assert facts["machine"]["revision"] >= 1 and facts["page"] == 16
    assert "median_ms" not in facts and "gbps" not in facts
    for shares in facts["estimated_timeline"]["units"].values():
        assert 0 < len(shares) <= 96
        assert all(0 <= share <= 1 for share in shares)
    assert sum(facts["estimated_warp_cycles"].values()) == pytest.approx(1, abs=0.01)


def test_the_sample_is_replayed(estimated: tuple[Estimate, dict[str, Any]]) -> None:
    facts = estimated[1]
    seen = []

    def pedantic(_work: Any, rounds: int, iterations: int) -> None:
        assert (rounds, iterations) == (1, 1)
        start = replay_timer()
        seen.append(replay_timer() - start)

    benchmark = SimpleNamespace(group=None, extra_info={}, enabled=True, pedantic=pedantic)
    record(benchmark, facts)
    assert seen == [pytest.approx(facts["estimated_ms"] / 1e3)]
    assert benchmark.extra_info["estimated_ms"] == facts["estimated_ms"]


def test_the_table_names_what_it_rests_on(estimated: tuple[Estimate, dict[str, Any]]) -> None:
    text = render_estimates([estimated[1]])
    assert "write twice" in text
    assert "Estimated, not measured: emulated V100 (80 SMs) at 1380 MHz and 850 GB/s" in text


def test_a_session_counts_estimates_apart(benchmark_file: Path) -> None:
    rows = benchmarks.complete(benchmark_file, {}, places.here())
    assert rows == benchmarks.Rows(0, 0, 1)
    assert rows.reason([]) == "1 estimated row"
    (row,) = samples.read_rows(benchmark_file.parent)
    assert (row.kind, row.device) == (samples.ESTIMATED, "emulated V100 (80 SMs)")


def test_the_page_has_estimates_apart(benchmark_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("markupsafe")
    from sm70_kernels.lab.cycle_model import picture

    monkeypatch.setattr(picture, "timeline_svg", lambda timeline, title: f"<svg>{title}</svg>")
    (group,) = html_report._estimated_groups(benchmark_file.parent)
    assert group.title == "write_paged_kv"
    assert group.label.startswith(LABEL) and group.label.endswith("not measured")
    assert str(group.plot) == "<svg>write twice</svg>"
    assert group.rows[0][0] == "write twice" and len(group.rows[0]) == len(group.columns)


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_the_picture_repeats(estimated: tuple[Estimate, dict[str, Any]]) -> None:
    from sm70_kernels.lab.cycle_model.picture import timeline_svg

    drawn = timeline_svg(estimated[1]["estimated_timeline"], "a title")
    assert drawn.startswith("<svg") and "a title" in drawn and "dram" in drawn
    assert drawn == timeline_svg(estimated[1]["estimated_timeline"], "a title")


def test_the_command(tmp_path: Path) -> None:
    module = tmp_path / "bench_own.py"
    module.write_text(MODULE)
    runner = CliRunner()
    done = runner.invoke(main, ["estimate", f"{module}:write-1*", "--clock", "1400", "--set", "launch_us=0", "--json"])
    assert done.exit_code == 0, done.output
    ((name, result),) = json.loads(done.output).items()
    assert name == "write-128"
    assert result["machine"]["changed"] == {"launch_us": 0}
    (at,) = result["kernels"][0]["at"]
    assert at["clock_mhz"] == 1400 and at["ms"] == pytest.approx(at["cycles"] / 1.4e6)
    done = runner.invoke(main, ["estimate", str(module), "--board", "v100-72"])
    assert done.exit_code == 0, done.output
    assert "== write-64" in done.output and "72 SMs" in done.output
    for arguments, message in (
        ([f"{module}:read"], "has no row 'read'; it has write-64, write-128"),
        ([f"{module}:write-64", "--set", "speed=1"], "got parameter 'speed'"),
        ([f"{module}:write-64", "--set", "speed"], "want NAME=NUMBER"),
        ([str(tmp_path / "bench_none.py")], "no such file"),
        (["json"], "has no function estimates()"),
    ):
        done = runner.invoke(main, ["estimate", *arguments])
        assert done.exit_code == 2 and message in done.output, done.output
