"""What a memory check proves: compute-sanitizer's (the texts are version 2025.2.1's own) and the emulator's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from canary_reports import CANARY_REPORTS

from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.memory_checks import canary, memcheck, sanitizer
from sm70_kernels.evidence.runs import schema
from sm70_kernels.evidence.sessions import selection
from sm70_kernels.lab import checkers as checks

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


def test_each_checker_has_its_fault() -> None:
    prefixes = {words.split(":", 1)[0] for words in memcheck.EMULATED_FAULTS.values()}
    assert prefixes >= set(checks.CHECKERS)
    assert len(memcheck.EMULATED_FAULTS) == len(checks.CHECKERS) + 3  # bounds, alignment, write permission
    assert set(canary.EMULATED_FAULTS) == {"none", *memcheck.EMULATED_FAULTS}


def test_a_clean_emulated_sweep() -> None:
    assert memcheck.judge_emulated_sweep(0, 12, 30) is None


@pytest.mark.parametrize(
    "exit_code,executed,launches,reason",
    [
        (None, 0, 0, "in time"),
        (1, 12, 30, "exit code 1"),
        (5, 0, 0, "no test was executed"),
        (0, 0, 0, "no test was executed"),
        (0, 12, 0, "no kernel ran on the emulator"),
    ],
)
def test_false_greens_of_the_emulator(exit_code: int | None, executed: int, launches: int, reason: str) -> None:
    assert reason in (memcheck.judge_emulated_sweep(exit_code, executed, launches) or "")


def test_a_canary_that_the_emulator_caught() -> None:
    assert memcheck.judge_emulated_canary(0, CANARY_REPORTS) is None


def without(fault: str) -> str:
    """The reports but for one fault's."""
    lines = CANARY_REPORTS.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(f"canary: {fault}:"))


def of_another(fault: str, words: str) -> str:
    """The reports, with one of them cut short or changed."""
    line = next(line for line in CANARY_REPORTS.splitlines() if line.startswith(f"canary: {fault}:"))
    return CANARY_REPORTS.replace(line, line[: line.index(words)])


@pytest.mark.parametrize(
    "exit_code,log,reason",
    [
        (None, CANARY_REPORTS, "in time"),
        (3, "", "exit code is 3"),
        (0, "", "without a fault"),
        (0, CANARY_REPORTS.replace("the right", "a wrong"), "without a fault"),
        (0, without("none"), "without a fault"),
        (0, without("none") + "canary: none: reported: x\n", "without a fault"),
        (0, CANARY_REPORTS.replace("canary_out_of_bounds+0x70: ", ""), "'out_of_bounds' was not reported"),
        (0, CANARY_REPORTS.replace("nearest buffer 'out'", "nearest buffer 'k'"), "'out_of_bounds' was not reported"),
        (0, of_another("out_of_bounds", ": write of"), "'out_of_bounds' was not reported"),
        # A race that shows as something else, as when the reader comes first and finds nothing written.
        (0, CANARY_REPORTS.replace("shared_race: no barrier", "uninitialised: no barrier"), "'shared_race'"),
        # Refused before it ran: that it is wrong is not seen.
        (0, without("taint") + "canary: taint: reported: emulated V100: no kernel canary_taint\n", "'taint'"),
        *[(0, without(fault), f"{fault!r} was not reported") for fault in memcheck.EMULATED_FAULTS],
        *[(0, of_another(fault, "[block"), f"{fault!r} was not reported") for fault in memcheck.EMULATED_FAULTS],
    ],
)
def test_a_canary_that_the_emulator_did_not_catch(exit_code: int | None, log: str, reason: str) -> None:
    assert reason in (memcheck.judge_emulated_canary(exit_code, log) or "")


def test_the_real_canary_on_the_emulator() -> None:
    if not (ROOT / canary.LIBRARY).is_file() or not built.manifest_path(ROOT).is_file():
        pytest.skip("nothing is built")
    command = [sys.executable, "-m", canary.__name__, canary.EMULATED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert memcheck.judge_emulated_canary(done.returncode, done.stdout) is None, done.stdout + done.stderr


@pytest.mark.parametrize(
    "parameters,target",
    [
        ({}, None),
        ({"page": 16}, None),
        ({"device": selection.EMULATED_DEVICE, "page": 16}, "emulator"),
        ({"device": "V100"}, "gpu"),
        ({"cuda_device": "JIT GPU"}, "gpu"),
    ],
)
def test_targets(parameters: dict[str, object], target: str | None) -> None:
    assert selection.target(parameters) == target


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
    """No toolkit."""
    monkeypatch.setattr(sanitizer, "_TOOLKIT", Path("/nonexistent/bin/compute-sanitizer"))


@pytest.mark.usefixtures("no_other")
def test_a_sanitizer_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(launcher(tmp_path / "works", works=True)))
    assert sanitizer.find().source == "PATH, 2025.4.0.0"


@pytest.mark.usefixtures("no_other")
def test_a_sanitizer_that_starts_nothing_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(launcher(tmp_path / "broken", works=False)))
    toolkit = launcher(tmp_path / "toolkit", works=True) / "compute-sanitizer"
    monkeypatch.setattr(sanitizer, "_TOOLKIT", toolkit)
    assert sanitizer.find().source == "CUDA toolkit, 2025.4.0.0"


@pytest.mark.usefixtures("no_other")
def test_no_working_sanitizer_is_an_error_that_names_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(launcher(tmp_path / "broken", works=False)))
    with pytest.raises(schema.EvidenceError, match=r"tried PATH, 2025\.4\.0\.0; want one that starts") as refusal:
        sanitizer.find()
    assert "cuda-sanitizer-12-8" in str(refusal.value)
    assert "CUDA 13's does not list Volta among its GPUs" in str(refusal.value)
