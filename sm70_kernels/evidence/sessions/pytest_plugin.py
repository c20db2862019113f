"""pytest plugin: skips with their reasons, ``--require-gpu``, and what the process ran, for the session's run folder.

The sessions load it with ``-p``, ``tests/conftest.py`` for a plain ``pytest``. In every run, recorded or not, a mapped
DSO that is not the one in the build manifest fails the session.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from sm70_kernels.evidence.machine import environment, places
from sm70_kernels.evidence.runs import schema
from sm70_kernels.evidence.sessions import observation, selection
from sm70_kernels.evidence.sessions.observation import NEEDS


def pytest_addoption(parser: pytest.Parser) -> None:
    """The plugin's options."""
    group = parser.getgroup("sm70_kernels evidence")
    group.addoption("--require-gpu", action="store_true", help=f"a skip that begins with {NEEDS!r} is a failure")
    group.addoption("--evidence-folder", type=Path, default=None, help="run folder of the session that called pytest")
    group.addoption(
        "--evidence-target", choices=selection.TARGETS, default=None, help="only operator tests on this kind of device"
    )
    group.addoption("--evidence-name", default="pytest", help="name of this process within the run")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker and the recorder."""
    config.addinivalue_line("markers", "memcheck: runs in the memcheck session too")
    config.pluginmanager.register(Recorder(config), "sm70_kernels_evidence_recorder")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of another target than the one asked for."""
    wanted = config.getoption("evidence_target")
    if wanted is None:
        return
    others = []
    for item in items:
        callspec = getattr(item, "callspec", None)
        if selection.target(callspec.params if callspec is not None else {}) != wanted:
            others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_machine_info(config: pytest.Config, machine_info: dict[str, Any]) -> None:
    """Results carry no host name."""
    machine_info["node"] = ""


@pytest.hookimpl(optionalhook=True)
def pytest_benchmark_update_commit_info(config: pytest.Config, commit_info: dict[str, Any]) -> None:
    """Names of folder and branch belong to the machine and are dropped; the manifest has commit and dirty flag."""
    for name in ("project", "branch", "error"):
        if name in commit_info:
            commit_info[name] = ""


class Recorder:
    """Counts tests, keeps skips, and observes the process when the tests are over."""

    def __init__(self, config: pytest.Config) -> None:
        self._require_gpu: bool = config.getoption("require_gpu")
        self._folder: Path | None = config.getoption("evidence_folder")
        self._name: str = config.getoption("evidence_name")
        self._counts = dict.fromkeys(("executed", "passed", "failed", "errors", "skipped"), 0)
        self._skips: list[schema.Skip] = []
        self._mismatches: list[str] = []

    def _skip(self, test: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Record a skip, or make a failure of it."""
        # A skip's longrepr is (file, line, "Skipped: reason").
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        if self._require_gpu and reason.startswith(NEEDS):
            report.outcome = "failed"
            report.longrepr = f"{test} {reason}; with --require-gpu that is a failure"
        else:
            self._skips.append(schema.Skip(test=test, reason=reason))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """See skips of tests. An expected failure is a verdict, no skip."""
        report = yield
        if report.skipped and not hasattr(report, "wasxfail"):
            self._skip(item.nodeid, report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """See skips of whole modules."""
        report = yield
        if report.skipped:
            self._skip(collector.nodeid, report)
        if report.failed:
            self._counts["errors"] += 1
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count: a test is executed when its body came to a verdict, an expected failure included."""
        expected_failure = hasattr(report, "wasxfail")
        if report.when == "call" and (not report.skipped or expected_failure):
            self._counts["executed"] += 1
            self._counts["failed" if report.failed else "passed"] += 1
        elif report.failed:
            self._counts["errors"] += 1
        elif report.skipped and not expected_failure:
            self._counts["skipped"] += 1

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Compare the mapped DSOs with the build manifest, and leave the observation in the run folder."""
        self._mismatches = observation.mismatches()
        if self._mismatches and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._folder is not None:
            seen = schema.Observation(
                environment=environment.collect(),
                libraries=observation.libraries(),
                mismatches=self._mismatches,
                counts=schema.Counts(**self._counts),
                skips=self._skips,
            )
            schema.write(observation.file(self._folder, self._name), seen)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say which DSOs were not the built ones."""
        for sentence in self._mismatches:
            terminalreporter.line(f"loaded library: {sentence}. Rebuild with 'scripts/nox -s build'", red=True)

    def pytest_unconfigure(self, config: pytest.Config) -> None:
        """Take host name and absolute paths out of the JUnit file, which pytest has written by now."""
        junit = getattr(config.option, "xmlpath", None)
        if self._folder is not None and junit and Path(junit).is_file():
            places.scrub_junit(Path(junit), places.here())
