"""Whether a run folder is what its session sealed.

The sums find every changed byte and every added, missing or renamed file. Whoever rewrites the sums as well is found
where the records contradict each other: the folder's name, the manifest, the environment, junit, the raw samples; and,
for committed runs, by ``results/INDEX``. Whoever rewrites all of that consistently is found by git's history alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

from sm70_kernels.build.manifest import sha256
from sm70_kernels.evidence.binaries.built import Build
from sm70_kernels.evidence.integrity import currency, sums
from sm70_kernels.evidence.integrity.sums import Finding
from sm70_kernels.evidence.runs import samples
from sm70_kernels.evidence.runs.schema import (
    BENCHMARK,
    ENVIRONMENT,
    JUNIT,
    MANIFEST,
    SKIPS,
    SUMS,
    Environment,
    EvidenceError,
    Manifest,
    Record,
    Skip,
    read,
)

_NAME = re.compile(r"(\d{8}T\d{6}Z)-([0-9a-f]{7}|nogit)-([a-z]+)")
#: What may lie beside run folders.
_BESIDE = {sums.INDEX, "README.md", ".gitignore"}


class RunReport(Record, kw_only=True, frozen=True):
    """A run folder: whether it is intact, and whether it speaks of what is built now."""

    name: str
    session: str | None
    status: str | None
    device: str | None
    currency: currency.Currency
    indexed: bool
    """Whether ``results/INDEX`` names the run: it was committed as evidence."""
    findings: list[Finding]

    @property
    def intact(self) -> bool:
        """Nothing was found."""
        return not self.findings


def is_run(path: Path) -> bool:
    """Whether a folder is a run, a damaged one included."""
    named = _NAME.fullmatch(path.name) is not None
    return path.is_dir() and (named or (path / SUMS).is_file() or (path / MANIFEST).is_file())


def check_run(folder: Path, index: Mapping[str, str], build: Build | None) -> RunReport:
    """Re-hash a run folder and compare its records with each other."""
    findings = list(sums.check(folder))
    if folder.name in index and (folder / SUMS).is_file() and sha256(folder / SUMS) != index[folder.name]:
        what = f"is not the one that {sums.INDEX} lists for this run: one of the two was changed"
        findings.append(Finding(path=f"{folder.name}/{SUMS}", what=what))
    manifest, environment = None, None
    try:
        manifest = read(folder / MANIFEST, Manifest)
        findings += _contradictions(folder, manifest)
        if (folder / ENVIRONMENT).is_file():
            environment = read(folder / ENVIRONMENT, Environment)
            findings += _environment(folder, manifest, environment)
    except (EvidenceError, ValueError) as error:
        findings.append(Finding(path=folder.name, what=str(error)))
    names = sorted({gpu.name for gpu in environment.gpus}) if environment else []
    return RunReport(
        name=folder.name,
        session=manifest.session if manifest else None,
        status=manifest.status if manifest else None,
        device=", ".join(names) or None,
        currency=currency.of_run(manifest.libraries if manifest else [], build),
        indexed=folder.name in index,
        findings=findings,
    )


def check_results(results: Path, build: Build | None) -> tuple[list[RunReport], list[Finding]]:
    """Every run of a results folder, and what is wrong with the folder itself."""
    index, findings = sums.read_index(results)
    if not (results / sums.INDEX).is_file() and (results.parent / "csrc").is_dir():
        findings.append(Finding(path=sums.INDEX, what="is missing: every checkout has one"))
    reports = []
    for path in sorted(results.iterdir()):
        if is_run(path):
            reports.append(check_run(path, index, build))
        elif path.name not in _BESIDE:
            findings.append(Finding(path=path.name, what="is no run folder: it was added or renamed"))
    present = {report.name for report in reports}
    findings += [
        Finding(path=name, what=f"is missing, {sums.INDEX} names it") for name in sorted(index) if name not in present
    ]
    return reports, findings


def _contradictions(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Where the folder's name, the manifest and the other files disagree."""

    def finding(name: str, what: str) -> Finding:
        return Finding(path=f"{folder.name}/{name}", what=what)

    match = _NAME.fullmatch(folder.name)
    own = (
        re.sub("[-:]", "", manifest.start),
        manifest.commit[:7] if manifest.commit else "nogit",
        manifest.session,
    )
    if match is None or match.groups() != own:
        yield Finding(path=folder.name, what=f"holds the manifest of run {'-'.join(own)}")
    for sweep in manifest.sweeps:
        for name in (sweep.log, sweep.canary_log):
            if name and sweep.passed and not (folder / name).is_file():
                yield finding(MANIFEST, f"names {name} of a passed sweep, which is missing")
    counts = manifest.counts
    if counts is not None and (folder / SKIPS).is_file():
        skips = read(folder / SKIPS, list[Skip])
        if len(skips) < counts.skipped:
            yield finding(SKIPS, f"has {len(skips)} skips, {MANIFEST} counts {counts.skipped}")
    if counts is not None and manifest.status == "pass" and (folder / JUNIT).is_file():
        yield from (finding(JUNIT, what) for what in _junit(folder / JUNIT, counts.passed))
    if (folder / BENCHMARK).is_file():
        yield from (finding(BENCHMARK, what) for what in _benchmark(folder / BENCHMARK))


def _junit(path: Path, passed: int) -> Iterator[str]:
    """The junit file of a passed run counts the same tests as the manifest, and no failure."""
    try:
        suites = list(ElementTree.fromstring(path.read_bytes()).iter("testsuite"))
        total = {name: sum(int(suite.get(name, "0")) for suite in suites) for name in _JUNIT_COUNTS}
    except (ElementTree.ParseError, ValueError) as error:
        yield f"can't be read ({error})"
        return
    # An expected failure is a verdict for the manifest and a skip for junit.
    if total["failures"] or total["errors"] or not total["tests"] - total["skipped"] <= passed <= total["tests"]:
        yield f"counts {', '.join(f'{count} {name}' for name, count in total.items())}; {MANIFEST} says {passed} passed"


_JUNIT_COUNTS = ("tests", "failures", "errors", "skipped")


def _benchmark(path: Path) -> Iterator[str]:
    try:
        rows: list[dict[str, Any]] = msgspec.json.decode(path.read_bytes())["benchmarks"]
        yield from samples.contradictions(rows)
    except (msgspec.DecodeError, KeyError, TypeError, IndexError, ZeroDivisionError) as error:
        yield f"is not pytest-benchmark's JSON with this package's facts ({type(error).__name__}: {error})"


def _environment(folder: Path, manifest: Manifest, environment: Environment) -> Iterator[Finding]:
    """Manifest and environment must record the same hash for a mapped library."""
    loaded = {file.path: file.sha256 for file in environment.loaded}
    for library in manifest.libraries:
        if library.mapped and loaded.get(library.path, library.sha256) != library.sha256:
            what = f"{library.path} has another SHA-256 there than in {MANIFEST}"
            yield Finding(path=f"{folder.name}/{ENVIRONMENT}", what=what)
