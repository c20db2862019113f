"""The build manifest as evidence reads it, and whether the build is complete and up to date."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import LIBRARY_FOLDER, MANIFEST_NAME, NOT_SOURCES, PACKAGE, ROOT
from sm70_kernels.evidence.runs.schema import EvidenceError

REMEDY = "Run 'scripts/nox -s build'"


class BuiltFile(msgspec.Struct, frozen=True):
    """A built file and its hash. Further fields of the build manifest are not evidence's business."""

    path: str
    sha256: str


class BuiltOperator(BuiltFile, frozen=True):
    """An operator's DSO."""

    cubin_sha256: str
    ptx_sha256: str
    capability_revision: int | None
    kernels: dict[str, dict[str, int]]
    machine_code_sha256: str | None = None
    """Of the cubin's machine code without line tables; None in a build older than this field."""
    ptx_instructions_sha256: str | None = None
    """Of the PTX without line tables and comments; None likewise."""


class Build(msgspec.Struct, frozen=True):
    """The build manifest."""

    commit: str | None
    dirty: bool | None
    operators: dict[str, BuiltOperator]
    interpreter_module: BuiltFile
    sources: dict[str, str]
    versions: dict[str, str]
    emulator: BuiltFile | None = None
    """The emulator's DSO."""


def manifest_path(root: Path = ROOT) -> Path:
    """Where the build manifest lies."""
    return root / PACKAGE.name / LIBRARY_FOLDER / MANIFEST_NAME


def read(root: Path = ROOT) -> Build:
    """Read the build manifest. Raises EvidenceError when nothing is built or the file is of another version."""
    path = manifest_path(root)
    try:
        return msgspec.json.decode(path.read_bytes(), type=Build)
    except OSError as error:
        raise EvidenceError(f"nothing is built: {path.relative_to(root)} is missing. {REMEDY}") from error
    except msgspec.MsgspecError as error:
        name = path.relative_to(root)
        raise EvidenceError(f"{name} is not this version's build manifest ({error}). {REMEDY}") from error


def files(root: Path = ROOT) -> dict[str, str]:
    """Every built file that the manifest names -> SHA-256: operator DSOs, the interpreter module, what comes later."""
    found: dict[str, str] = {}

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("path"), str) and isinstance(value.get("sha256"), str):
                found[value["path"]] = value["sha256"]
            for child in value.values():
                visit(child)

    visit(msgspec.json.decode(manifest_path(root).read_bytes()))
    return found


def stale_sources(build: Build, root: Path = ROOT) -> list[str]:
    """Source files that changed, went or came since the build. Empty where no source is installed (a wheel)."""
    csrc = root / "csrc"
    if not csrc.is_dir():
        return []
    changed = [
        path for path, digest in build.sources.items() if not (root / path).is_file() or sha256(root / path) != digest
    ]
    sources = (path for path in csrc.rglob("*") if path.is_file() and path.suffix not in NOT_SOURCES)
    present = (str(path.relative_to(root)) for path in sources)
    return sorted({*changed, *(path for path in present if path not in build.sources)})


def differing_libraries(build: Build, root: Path = ROOT) -> list[str]:
    """A sentence for each DSO on disk, an operator's or the emulator's, that is missing or not the manifest's."""
    files: list[tuple[str, BuiltFile]] = [
        (f"operator {operator!r}", built) for operator, built in sorted(build.operators.items())
    ]
    if build.emulator is not None:
        files.append(("emulator", build.emulator))
    return [f"{name}: {sentence}" for name, built in files if (sentence := _difference(built, root))]


def _difference(built: BuiltFile, root: Path) -> str | None:
    """What is wrong with a built file on disk."""
    path = root / built.path
    if not path.is_file():
        return f"{built.path} is missing"
    if (found := sha256(path)) != built.sha256:
        return f"{built.path} has SHA-256 {found[:12]}…, the build manifest says {built.sha256[:12]}…"
    return None


def require_current(root: Path = ROOT) -> Build:
    """The build manifest of a complete and current build. Raises EvidenceError with the first thing that is off."""
    build = read(root)
    if differing := differing_libraries(build, root):
        raise EvidenceError(f"{differing[0]}. {REMEDY}")
    if stale := stale_sources(build, root):
        more = f" and {len(stale) - 1} more files" if len(stale) > 1 else ""
        raise EvidenceError(f"the build is older than its sources: {stale[0]}{more} changed since. {REMEDY}")
    return build
