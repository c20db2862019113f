"""Whether a passing test run speaks for the DSOs that are about to be measured or memory-checked.

A DSO is validated by the latest passing, unnarrowed test run that launched the operator's kernels, when that run had
exactly this DSO. The emulated V100 counts, as it runs the DSO's own machine code; the reason names the image that ran.
A run that launches nothing neither validates nor invalidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from sm70_kernels.build.manifest import sha256
from sm70_kernels.evidence.runs.run import read_sums
from sm70_kernels.evidence.runs.schema import MANIFEST, EvidenceError, Manifest, Validation, read


def intact_manifest(folder: Path) -> Manifest:
    """A complete run's manifest whose bytes are those of SHA256SUMS. Raises EvidenceError."""
    if read_sums(folder).get(MANIFEST) != sha256(folder / MANIFEST):
        raise EvidenceError(f"run {folder.name}: {MANIFEST} is not the file in its SHA256SUMS: it was changed later")
    return read(folder / MANIFEST, Manifest)


def runs(results: Path) -> list[Path]:
    """The run folders, the latest first: their names begin with the time."""
    if not results.is_dir():
        return []
    return sorted((path for path in results.iterdir() if (path / MANIFEST).is_file()), reverse=True)


def _validating(results: Path) -> Iterator[tuple[str, Manifest]]:
    for folder in runs(results):
        try:
            manifest = intact_manifest(folder)
        except (EvidenceError, OSError, ValueError):
            continue  # an unreadable or incomplete run validates nothing
        if manifest.session == "test" and manifest.status == "pass" and not manifest.narrowed:
            yield folder.name, manifest


def judge(results: Path, current: Mapping[str, str]) -> dict[str, Validation]:
    """Operator -> label, for DSOs given as operator -> SHA-256."""
    verdicts: dict[str, Validation] = {}
    for name, manifest in _validating(results):
        for library in manifest.libraries:
            if library.operator not in current or library.operator in verdicts or not library.images():
                continue
            if library.sha256 == current[library.operator]:
                reason = f"test run passed with this DSO, image {' and '.join(library.images())}"
                verdicts[library.operator] = Validation(label="validated", run=name, reason=reason)
            else:
                reason = "the last passing test run that launched this operator had another DSO"
                verdicts[library.operator] = Validation(label="unvalidated", run=name, reason=reason)
    reason = "no passing test run has launched this operator's kernels"
    nothing = Validation(label="unvalidated", run=None, reason=reason)
    return {operator: verdicts.get(operator, nothing) for operator in sorted(current)}
