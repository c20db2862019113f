"""What docs/lab.md shows is what its commands print, and its five lines run."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sm70_kernels.cli import main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "docs" / "lab.md").read_text()
CONSOLE = re.findall(r"```console\n\$ ((?:[^\n]*\\\n)*[^\n]*)\n(.*?)```", DOCUMENT, re.DOTALL)
EXIT_CODES = {"kernels": 0, "row_sums.cu": 1, "row_sums_fixed.cu": 0}


def normalised(text: str) -> list[str]:
    """Lines without the host's addresses; of an estimate, which changes with the machine table, without numbers."""
    lines, is_estimate = [], False
    for line in re.sub(r"0x[0-9a-f]{8,}", "0x...", text).splitlines():
        is_estimate = is_estimate or line.startswith("estimated ")
        lines.append(re.sub(r"\s+", " ", re.sub(r"\d[\d.]*", "#", line)) if is_estimate else line.rstrip())
    return lines


@pytest.mark.parametrize(("command", "shown"), CONSOLE, ids=[" ".join(command.split()[1:4]) for command, _ in CONSOLE])
def test_a_command_prints_what_is_shown(monkeypatch: pytest.MonkeyPatch, command: str, shown: str) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(command.replace("\\\n", ""))
    assert program == "sm70-kernels"
    result = CliRunner().invoke(main, words)
    expected_code = EXIT_CODES["kernels" if "kernels" in words else Path(words[2]).name]
    assert result.exit_code == expected_code, result.output
    printed, at = normalised(result.output), 0
    skips = False
    for line in normalised(shown):
        if line == "...":
            skips = True
            continue
        found = printed.index(line, at)  # ValueError: it is not printed
        assert skips or all(not between for between in printed[at:found]), f"{printed[at:found]} are not shown"
        at, skips = found + 1, False


def test_there_are_commands() -> None:
    assert len(CONSOLE) == 3


def run(code: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_five_lines_run(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    assert '"build/row_sums_trace"' in code
    printed = run(
        code.replace("build/row_sums_trace", str(tmp_path / "trace")) + "assert (sums == 300).all()", tmp_path
    )
    assert printed.startswith("() 4200\nHotSpot(place='examples/lab/row_sums_fixed.cu:14'")
    assert "kernel-1.traceg" in printed and (tmp_path / "trace" / "kernel-1.traceg").is_file()


def test_the_example_script_runs() -> None:
    assert run((ROOT / "examples" / "lab" / "row_sums.py").read_text(), ROOT).startswith("() 4200\n")


def test_the_shown_source_is_the_example() -> None:
    (shown,) = re.findall(r"```cuda\n(.*?)```", DOCUMENT, re.DOTALL)
    assert (ROOT / "examples" / "lab" / "row_sums.cu").read_text().endswith(shown)
