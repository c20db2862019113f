"""``sm70-kernels list``: operators, kernels, hashes, and the recorded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import ROOT
from sm70_kernels.cli import output
from sm70_kernels.evidence import built, validated
from sm70_kernels.evidence.schema import (
    ENVIRONMENT,
    MANIFEST,
    SCHEMA_VERSION,
    SUMS,
    Environment,
    EvidenceError,
    Manifest,
    Record,
    read,
)


class Operator(Record, kw_only=True, frozen=True):
    """An operator's DSO on disk against the build manifest, and its kernels' resources."""

    operator: str
    state: Literal["current", "missing", "differs"]
    path: str
    sha256: str | None
    cubin_sha256: str
    ptx_sha256: str
    capability_revision: int | None
    kernels: dict[str, dict[str, int]]
    """Kernel -> registers, shared_bytes, spill_store_bytes, ..."""

    def hashes(self) -> tuple[str | None, str, str]:
        """Of library, cubin and PTX."""
        return self.sha256, self.cubin_sha256, self.ptx_sha256


class Run(Record, kw_only=True, frozen=True):
    """A run folder."""

    name: str
    session: str
    status: str
    reason: str
    commit: str | None
    dirty: bool | None
    gpus: list[str]
    images: list[str]
    complete: bool
    """Whether the session came to its end and sealed the folder."""


class Listing(Record, kw_only=True, frozen=True):
    """What is installed and what was recorded."""

    schema_version: int = SCHEMA_VERSION
    operators: list[Operator]
    runs: list[Run]
    problems: list[str]


#: Fields of the build manifest's kernels -> column.
_RESOURCES = {
    "registers": "registers",
    "shared_bytes": "shared B",
    "spill_store_bytes": "spill stores B",
    "spill_load_bytes": "spill loads B",
}


def _short(digest: str | None) -> str:
    return digest[:12] if digest else ""


def _operators(root: Path) -> tuple[list[Operator], list[str]]:
    try:
        build = built.read(root)
    except EvidenceError as error:
        return [], [str(error)]
    found = []
    for operator, entry in sorted(build.operators.items()):
        path = root / entry.path
        digest = sha256(path) if path.is_file() else None
        found.append(
            Operator(
                operator=operator,
                state="missing" if digest is None else "current" if digest == entry.sha256 else "differs",
                path=entry.path,
                sha256=digest,
                cubin_sha256=entry.cubin_sha256,
                ptx_sha256=entry.ptx_sha256,
                capability_revision=entry.capability_revision,
                kernels=entry.kernels,
            )
        )
    return found, built.differing_libraries(build, root)


def _runs(results: Path) -> tuple[list[Run], list[str]]:
    found, problems = [], []
    for folder in validated.runs(results):
        try:
            manifest = read(folder / MANIFEST, Manifest)
            environment = read(folder / ENVIRONMENT, Environment) if (folder / ENVIRONMENT).is_file() else None
        except EvidenceError as error:
            problems.append(str(error))
            continue
        images = {image for library in manifest.libraries for image in library.images()}
        found.append(
            Run(
                name=folder.name,
                session=manifest.session,
                status=manifest.status,
                reason=manifest.reason,
                commit=manifest.commit,
                dirty=manifest.dirty,
                gpus=[gpu.name for gpu in environment.gpus] if environment else [],
                images=sorted(images),
                complete=(folder / SUMS).is_file(),
            )
        )
    return found, problems


def collect(results: Path | None = None, root: Path = ROOT) -> Listing:
    """Read the build manifest and the run folders: of the checkout, else of the current folder."""
    if results is None:
        results = root / "results" if (root / "csrc").is_dir() else Path("results")
    operators, problems = _operators(root)
    runs, unreadable = _runs(results)
    return Listing(operators=operators, runs=runs, problems=problems + unreadable)


def show(listing: Listing, *, as_json: bool) -> None:
    """Print the listing."""
    if as_json:
        output.json(listing)
        return
    operators = [
        (entry.operator, entry.state, str(entry.capability_revision), *map(_short, entry.hashes()))
        for entry in listing.operators
    ]
    output.table("operators", ("operator", "state", "revision", "library", "cubin", "PTX"), operators)
    kernels = [
        (kernel, *(str(facts.get(name, "")) for name in _RESOURCES))
        for entry in listing.operators
        for kernel, facts in sorted(entry.kernels.items())
    ]
    output.table("kernels (sm_70)", ("kernel", *_RESOURCES.values()), kernels)
    runs = [
        (run.name, run.status, ", ".join(run.gpus) or "none", ", ".join(run.images) or "none", run.reason)
        for run in listing.runs
    ]
    output.table("runs", ("run", "status", "GPU", "images run", "reason"), runs)
    for sentence in listing.problems:
        print(f"problem: {sentence}")
