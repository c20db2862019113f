"""What a compute-sanitizer log proves. The texts are the tool's own (version 2025.2.1)."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from sm70_kernels.evidence import canary, memcheck, sanitizer, schema

MEMCHECK, RACECHECK = memcheck.TOOLS[0], memcheck.TOOLS[1]

CLEAN = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
CLEAN_RACES = "========= COMPUTE-SANITIZER\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
ERRORS = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at canary_out_of_bounds+0x90 in kernel.cu:14
=========     by thread (64,0,0) in block (0,0,0)
=========     Address 0x7f5c2de00100 is out of bounds
========= ERROR SUMMARY: 1 error
"""
RACES = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at canary_shared_race+0x60 in kernel.cu:20
=========     and Read access at canary_shared_race+0xb0 in kernel.cu:21 [508 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""
NEVER_ATTACHED = """\
========= COMPUTE-SANITIZER
========= Error: Target application terminated before first instrumented API call
"""


def test_a_clean_sweep() -> None:
    assert memcheck.judge_sweep(MEMCHECK, 0, CLEAN, 12) is None
    assert memcheck.judge_sweep(RACECHECK, 0, CLEAN_RACES, 12) is None


@pytest.mark.parametrize(
    "tool,exit_code,log,executed,reason",
    [
        (MEMCHECK, 86, ERRORS, 12, "ERROR SUMMARY: 1 found"),
        (MEMCHECK, 0, ERRORS, 12, "ERROR SUMMARY: 1 found"),  # nobody asked for an exit code
        (RACECHECK, 0, RACES, 12, "RACECHECK SUMMARY: 1 found"),
        (MEMCHECK, 0, CLEAN + ERRORS, 12, "ERROR SUMMARY: 1 found"),  # a second process
        (MEMCHECK, 0, NEVER_ATTACHED, 12, "did not watch"),
        (MEMCHECK, 0, "", 12, "did not watch"),
        (RACECHECK, 0, CLEAN, 12, "did not watch"),  # another tool's log
        (MEMCHECK, 0, CLEAN, 0, "no test was executed"),
        (MEMCHECK, 1, CLEAN, 12, "exit code 1"),  # a test failed
        (MEMCHECK, 86, CLEAN, 12, "exit code 86"),
        (MEMCHECK, None, CLEAN, 12, "in time"),
        (MEMCHECK, 0, "ERROR SUMMARY: 0 errors", 12, "did not watch"),  # a test's own words
    ],
)
def test_false_greens(tool: memcheck.Tool, exit_code: int | None, log: str, executed: int, reason: str) -> None:
    assert reason in (memcheck.judge_sweep(tool, exit_code, log, executed) or "")


def test_a_caught_canary() -> None:
    assert memcheck.judge_canary(MEMCHECK, memcheck.ERROR_EXIT_CODE, ERRORS) is None
    assert memcheck.judge_canary(RACECHECK, memcheck.ERROR_EXIT_CODE, RACES) is None


@pytest.mark.parametrize(
    "exit_code,log,reason",
    [
        (0, CLEAN, "'out_of_bounds' was not caught"),
        (0, ERRORS, "the exit code is 0"),
        (3, NEVER_ATTACHED, "no 'ERROR SUMMARY' line (exit code 3)"),
        (86, "", "no 'ERROR SUMMARY' line"),
        (None, ERRORS, "in time"),
    ],
)
def test_a_canary_that_was_not_caught(exit_code: int | None, log: str, reason: str) -> None:
    assert reason in (memcheck.judge_canary(MEMCHECK, exit_code, log) or "")


def test_each_tool_has_its_fault() -> None:
    assert [tool.name for tool in memcheck.TOOLS] == ["memcheck", "racecheck", "initcheck", "synccheck"]
    faults = {tool.fault for tool in memcheck.TOOLS}
    assert len(faults) == len(memcheck.TOOLS)
    assert faults | {"none"} == set(canary.FAULTS)


def test_the_canary_refuses_an_unknown_fault(capsys: pytest.CaptureFixture[str]) -> None:
    assert canary.main(["overflow"]) == 2
    assert "want one of out_of_bounds" in capsys.readouterr().err


def launcher(path: Path, *, works: bool) -> Path:
    """A compute-sanitizer that starts its program, or, as one without its helpers does, only says so."""
    path.mkdir()
    tool = path / "compute-sanitizer"
    start = 'shift; exec "$@"' if works else "exit 0"
    tool.write_text(f'#!/bin/sh\nif [ "$1" = --version ]; then echo Version 2025.4.0.0; exit; fi\n{start}\n')
    tool.chmod(0o755)
    return path


@pytest.fixture
def no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the wheel nor a toolkit."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sanitizer, "_TOOLKIT", Path("/nonexistent"))


@pytest.mark.usefixtures("no_other")
def test_a_sanitizer_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(launcher(tmp_path / "works", works=True)))
    assert sanitizer.find(tmp_path).source == "PATH, 2025.4.0.0"


@pytest.mark.usefixtures("no_other")
def test_a_sanitizer_that_starts_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(launcher(tmp_path / "broken", works=False)))
    toolkit = launcher(tmp_path / "toolkit", works=True) / "compute-sanitizer"
    monkeypatch.setattr(sanitizer, "_TOOLKIT", toolkit)
    assert sanitizer.find(tmp_path).source == "CUDA toolkit, 2025.4.0.0"


@pytest.mark.usefixtures("no_other")
def test_no_working_sanitizer_is_an_error_that_names_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(launcher(tmp_path / "broken", works=False)))
    with pytest.raises(schema.EvidenceError, match=r"tried PATH, 2025\.4\.0\.0; want one that starts"):
        sanitizer.find(tmp_path)


def test_the_wheels_launcher_is_found_and_executable(tmp_path: Path) -> None:
    found = next(sanitizer._candidates(tmp_path), None)
    if found is None or found.injection is None:
        pytest.skip("the wheel nvidia-cuda-sanitizer-api-cu12 is not installed")
    assert found.source.startswith("wheel nvidia-cuda-sanitizer-api-cu12, 2025.")
    assert (found.injection / "libsanitizer-collection.so").is_file()
