"""``sm70-kernels statistics``, ``hotspots`` and ``trace``: what they run, print and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

from sm70_kernels.cli import main
from sm70_kernels.lab.inspect import sources
from tests.emulator import trace_reader

SCRIPT = """
import sys
import torch
from sm70_kernels.ops import kv_cache

tokens = int(sys.argv[1])
k = torch.ones(tokens, 1, 64, dtype=torch.float16)
caches = torch.zeros(4, 2, 16, 1, 64, dtype=torch.uint8).unbind(1)
kv_cache.write_paged_kv(k, k, *caches, torch.arange(tokens), kv_format="e4m3")
print("the script's own words")
"""


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "write.py"
    path.write_text(SCRIPT)
    return path


def test_statistics_of_a_script(script: Path) -> None:
    result = invoke("statistics", script, "64")
    assert result.exit_code == 0, result.output
    assert "the script's own words" in result.output
    for words in (
        "kernels (counts of an emulated V100",
        "kv_cache_write_e4m3_x8: pipes",
        "memory",
        "sectors / request",
    ):
        assert words in result.output
    more = invoke("statistics", "--json", script, "32")
    document = json.loads(more.output.split("words\n", 1)[1])
    ((name, kernel),) = document["kernels"].items()
    assert name == "kv_cache_write_e4m3_x8" and kernel["launches"] == 1
    assert sum(instruction["bytes"] for instruction in kernel["instructions"] if instruction["access"] == "store") == (
        2 * 32 * 64
    )


def test_hotspots_show_the_source(script: Path) -> None:
    result = invoke("hotspots", "--top", "12", script, "64")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    instructions = [line for line in lines if line[:4].isalnum() and len(line.split()[0]) == 4]
    assert len(instructions) == 12
    assert instructions == sorted(instructions)
    place = next(line for line in lines if "csrc/ops/kv_cache/" in line and "%" in line)
    assert "csrc/ops/kv_cache/write.cuh:" in result.output and place
    assert any(sources.line(word) for word in result.output.split() if word.startswith("csrc/"))


def test_a_benchmark_row(tmp_path: Path) -> None:
    rows = invoke("hotspots", "--operator", "kv_cache").output.split()
    assert "write-e4m3-unit-page800-B1-8K" in rows
    folder = tmp_path / "traces"
    arguments = ("--operator", "kv_cache", "--row", "write-e4m3-unit-page800-B1-8K", "--blocks", "2")
    result = invoke("trace", *arguments, "--output", folder, "--registers", "first", "--lineinfo")
    assert result.exit_code == 0, result.output
    assert result.output.split() == [str(folder / name) for name in trace_reader.kernel_list(folder)]
    kernel = trace_reader.read(folder / "kernel-1.traceg")
    assert len(kernel.blocks) == 2 and all(one.line for one in kernel.executed())
    again = invoke("trace", *arguments, "--output", folder)
    assert again.exit_code == 1 and "Name a new folder" in again.output


@pytest.mark.parametrize(
    "arguments,code,words",
    [
        ((), 2, "name a script, or an operator"),
        (("missing.py",), 2, "which is no file"),
        (("--operator", "fuse"), 2, "got 'fuse', want one of"),
        (("--operator", "roofs"), 2, "has no ROWS and make_job"),
        (("--operator", "kv_cache", "--row", "fast"), 2, "got 'fast', want one of"),
        (("--blocks", "0", "x.py"), 2, "0 is not in the range"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = invoke("statistics", *arguments)
    assert result.exit_code == code
    assert words in result.output


def test_a_script_without_a_launch_or_with_a_bad_one(script: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.py"
    empty.write_text("raise SystemExit(0)\n")
    for command in (("statistics",), ("trace", "--output", tmp_path / "t")):
        result = invoke(*command, empty)
        assert result.exit_code == 1 and "nothing ran on the emulated V100" in result.output
    script.write_text(SCRIPT.replace("torch.arange(tokens)", "torch.arange(tokens).int()"))
    bad = invoke("statistics", script, "64")
    assert bad.exit_code == 1 and "argument 'slot_mapping'" in bad.output
    wrong = tmp_path / "wrong.py"
    wrong.write_text("raise KeyError('mine')\n")
    assert isinstance(invoke("hotspots", wrong).exception, KeyError)  # a script's own error stays what it is


def test_a_changed_source_is_not_shown(tmp_path: Path) -> None:
    place = "csrc/ops/kv_cache/write.cuh:10"
    assert sources.line(place)
    assert sources.line(place, tmp_path) == ""  # nothing built there
    assert sources.line("csrc/ops/kv_cache/write.cuh:100000") == sources.line("") == sources.line("kernel.cu:1") == ""
