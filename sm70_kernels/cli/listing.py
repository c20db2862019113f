"""``sm70-kernels list``: operators, kernels, hashes, and the recorded runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from sm70_kernels import _variables
from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import ROOT
from sm70_kernels.cli import libraries, output
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.integrity import validated
from sm70_kernels.evidence.runs.schema import (
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


class UsageError(ValueError):
    """What the command line names can't be listed."""


State = Literal["current", "missing", "differs"]


class Operator(Record, kw_only=True, frozen=True):
    """An operator's DSO on disk against the build manifest, and its kernels' resources."""

    operator: str
    state: State
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


class Emulator(Record, kw_only=True, frozen=True):
    """The emulator's DSO on disk against the build manifest, and what else CPU tensors need."""

    state: State
    path: str
    sha256: str | None
    nvdisasm: bool
    """Whether the disassembler is installed that it reads machine code with."""
    switched_on: bool
    """Whether SM70_KERNELS_EMULATE=1 sends every CPU tensor to it."""


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
    emulator: Emulator | None
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


def _on_disk(entry: built.BuiltFile, root: Path) -> tuple[State, str | None]:
    """A built file's state and hash."""
    path = root / entry.path
    digest = sha256(path) if path.is_file() else None
    return "missing" if digest is None else "current" if digest == entry.sha256 else "differs", digest


def _emulator(build: built.Build, root: Path) -> Emulator | None:
    if build.emulator is None:
        return None
    state, digest = _on_disk(build.emulator, root)
    return Emulator(
        state=state,
        path=build.emulator.path,
        sha256=digest,
        nvdisasm=libraries.nvdisasm() is not None,
        switched_on=os.environ.get(f"{_variables.PREFIX}EMULATE") == "1",
    )


def _operators(build: built.Build, root: Path) -> list[Operator]:
    found = []
    for operator, entry in sorted(build.operators.items()):
        state, digest = _on_disk(entry, root)
        found.append(
            Operator(
                operator=operator,
                state=state,
                path=entry.path,
                sha256=digest,
                cubin_sha256=entry.cubin_sha256,
                ptx_sha256=entry.ptx_sha256,
                capability_revision=entry.capability_revision,
                kernels=entry.kernels,
            )
        )
    return found


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


def _readable(results: Path) -> Path:
    """A folder that was asked for by name. Raises UsageError unless it can be read."""
    try:
        next(results.iterdir(), None)
    except OSError as error:
        raise UsageError(
            f"--results: got {results}, want a folder of run folders that can be read ({error.strerror}). Name another "
            "one, or leave the option out for the checkout's own"
        ) from error
    return results


def collect(results: Path | None = None, root: Path = ROOT) -> Listing:
    """Read the build manifest and the run folders: of the checkout, else of the current folder.

    A default folder that is not there holds no runs; one that was named must be readable. Raises UsageError.
    """
    if results is None:
        results = root / "results" if (root / "csrc").is_dir() else Path("results")
    else:
        results = _readable(results)
    operators: list[Operator] = []
    emulator = None
    try:
        build = built.read(root)
        operators, emulator = _operators(build, root), _emulator(build, root)
        problems = built.differing_libraries(build, root)
    except EvidenceError as error:
        problems = [str(error)]
    runs, unreadable = _runs(results)
    return Listing(operators=operators, emulator=emulator, runs=runs, problems=problems + unreadable)


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
    if listing.emulator is not None:
        entry = listing.emulator
        nvdisasm, switch = "found" if entry.nvdisasm else "missing", "on" if entry.switched_on else "off"
        row = (entry.state, _short(entry.sha256), nvdisasm, switch)
        output.table("emulator", ("state", "library", "nvdisasm", f"{_variables.PREFIX}EMULATE"), [row])
    runs = [
        (run.name, run.status, ", ".join(run.gpus) or "none", ", ".join(run.images) or "none", run.reason)
        for run in listing.runs
    ]
    output.table("runs", ("run", "status", "GPU", "images run", "reason"), runs)
    for sentence in listing.problems:
        print(f"problem: {sentence}")
