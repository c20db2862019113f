"""``sm70-kernels check-results``: integrity of results, libraries and artifacts, and the currency of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sm70_kernels.build.settings import LIBRARY_FOLDER, MANIFEST_NAME, PACKAGE, ROOT
from sm70_kernels.cli import output
from sm70_kernels.evidence.binaries import built, installation
from sm70_kernels.evidence.integrity import artifacts, intact, sums
from sm70_kernels.evidence.integrity.intact import RunReport
from sm70_kernels.evidence.integrity.sums import Finding
from sm70_kernels.evidence.runs.schema import SCHEMA_VERSION, EvidenceError, Record


class UsageError(ValueError):
    """A path names nothing that can be checked."""


class CheckedResults(Record, kw_only=True, frozen=True):
    """What was looked at and what was found. ``intact`` speaks of integrity alone, not of currency."""

    schema_version: int = SCHEMA_VERSION
    intact: bool
    checked: list[str]
    runs: list[RunReport]
    findings: list[Finding]


class _Collector:
    """Gathers the reports of several paths."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.runs: list[RunReport] = []
        self.findings: list[Finding] = []
        self.checked: list[str] = []
        try:
            self.build: built.Build | None = built.read(root)
        except EvidenceError:
            self.build = None

    def run(self, folder: Path) -> None:
        index, findings = sums.read_index(folder.parent)
        report = intact.check_run(folder, index, self.build)
        self.runs.append(report)
        self.findings += [*findings, *report.findings]
        self.checked.append(f"run {folder.name}")

    def results(self, folder: Path) -> None:
        reports, findings = intact.check_results(folder, self.build)
        self.runs += reports
        self.findings += [*findings, *(finding for report in reports for finding in report.findings)]
        self.checked.append(f"{len(reports)} runs of {folder.name}")

    def installation(self, root: Path) -> None:
        self.findings += installation.check(root)
        self.checked.append("installed libraries")

    def library(self, path: Path) -> None:
        """A library is judged by the manifest beside it, else by this installation's."""
        beside = path.resolve().parents[2] if (path.parent / MANIFEST_NAME).is_file() else self.root
        try:
            self.findings += installation.check_library(path, built.read(beside))
        except EvidenceError as error:
            self.findings.append(Finding(path=path.name, what=str(error)))
        self.checked.append(f"library {path.name}")

    def artifact(self, folder: Path) -> None:
        self.findings += artifacts.check(folder)
        self.checked.append(f"artifacts in {folder.name}")

    def path(self, path: Path) -> None:
        """Check a path according to what it holds."""
        if not path.exists():
            raise UsageError(f"{path}: there is no such file or folder")
        path = path.resolve()
        library_manifest = Path(PACKAGE.name) / LIBRARY_FOLDER / MANIFEST_NAME
        if path.suffix == ".so":
            self.library(path)
        elif intact.is_run(path):
            self.run(path)
        elif (path / library_manifest).is_file():
            self.installation(path)
        elif path.is_dir() and ((path / sums.INDEX).is_file() or any(map(intact.is_run, path.iterdir()))):
            self.results(path)
        else:
            raise UsageError(
                f"{path.name} is no run folder, no folder of run folders, no installation and no library. A folder of "
                "artifacts is checked with --artifact"
            )


def default_results(root: Path) -> Path:
    """The checkout's results, else those of the current folder."""
    return root / "results" if (root / "csrc").is_dir() else Path("results")


def check(paths: Sequence[Path], artifact: Path | None, root: Path = ROOT) -> CheckedResults:
    """Check paths; without any, the results and the installation. Raises UsageError."""
    collector = _Collector(root)
    for path in paths:
        collector.path(path)
    if artifact is not None:
        if not artifact.is_dir():
            raise UsageError(f"{artifact}: there is no such folder")
        collector.artifact(artifact.resolve())
    if not paths and artifact is None:
        collector.installation(root)
        if default_results(root).is_dir():
            collector.results(default_results(root).resolve())
    return CheckedResults(
        intact=not collector.findings,
        checked=collector.checked,
        runs=collector.runs,
        findings=collector.findings,
    )


def show(found: CheckedResults, *, as_json: bool) -> None:
    """Print what was found."""
    if as_json:
        output.json(found)
        return
    rows = [
        (
            run.name,
            "intact" if run.intact else "tampered",
            run.currency,
            run.status or "unknown",
            run.device or "no GPU",
            "yes" if run.indexed else "no",
        )
        for run in found.runs
    ]
    if rows:
        output.table("runs", ("run", "integrity", "currency", "status", "GPU", "in INDEX"), rows)
    for finding in found.findings:
        print(f"{finding.path} {finding.what}")
    count = len(found.findings)
    verdict = "intact" if found.intact else f"not intact: {count} {'finding' if count == 1 else 'findings'}"
    print(f"{verdict} ({'; '.join(found.checked)})")
