"""Whether installed libraries are the built ones, from their bytes: nothing is loaded.

The RECORD of an installed wheel vouches for the build manifest too. In a checkout nothing does. There, a library and a
manifest that were changed consistently are found by comparing with a provenance (``check-results --artifact``), or by
building the commit again.
"""

from __future__ import annotations

import base64
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import LIBRARY_FOLDER, PACKAGE, ROOT
from sm70_kernels.evidence.binaries import built, embedded
from sm70_kernels.evidence.integrity.sums import Finding
from sm70_kernels.evidence.runs.schema import EvidenceError

DISTRIBUTION = "sm70-kernels"


def check_library(path: Path, build: built.Build) -> Iterator[Finding]:
    """A built file, named by its file name, against the build manifest: the whole and its embedded device code."""
    by_name: dict[str, built.BuiltFile] = {Path(file.path).name: file for file in built_files(build)}
    wanted = by_name.get(path.name)
    if wanted is None:
        yield Finding(path=path.name, what="is not in the build manifest: it was added, renamed or is stale")
        return
    if not path.is_file():
        yield Finding(path=wanted.path, what="is missing, the build manifest names it")
        return
    if (found := sha256(path)) != wanted.sha256:
        what = f"has SHA-256 {found[:12]}…, the build manifest says {wanted.sha256[:12]}…: one of the two was changed"
        yield Finding(path=wanted.path, what=what)
    if isinstance(wanted, built.BuiltOperator):
        for sentence in embedded.file_differences(path, wanted.cubin_sha256, wanted.ptx_sha256):
            yield Finding(path=wanted.path, what=sentence)


def built_files(build: built.Build) -> list[built.BuiltFile]:
    """Every shared object that the build manifest names."""
    files: list[built.BuiltFile] = [*build.operators.values(), build.interpreter_module]
    return [*files, build.emulator] if build.emulator is not None else files


def check(root: Path = ROOT) -> Iterator[Finding]:
    """The installation under a root: every built file, strangers beside them, and the wheel's RECORD where one is."""
    try:
        build = built.read(root)
    except EvidenceError as error:
        yield Finding(path=str(built.manifest_path(root).relative_to(root)), what=str(error))
        return
    for file in built_files(build):
        yield from check_library(root / file.path, build)
    known = {Path(file.path).name for file in built_files(build)}
    for path in sorted((root / PACKAGE.name / LIBRARY_FOLDER).iterdir()):
        if path.suffix == ".so" and path.name not in known:
            yield from check_library(path, build)
    yield from _record(root)


def _record(root: Path) -> Iterator[Finding]:
    """Files of a wheel installed in this folder that are not as its RECORD says. A checkout has no such record."""
    installed = importlib.metadata.distributions(name=DISTRIBUTION, path=[str(root)])
    for distribution in installed:
        yield from _recorded(distribution, root)


def _recorded(distribution: importlib.metadata.Distribution, root: Path) -> Iterator[Finding]:
    for entry in distribution.files or ():
        path = Path(str(distribution.locate_file(entry)))
        if entry.hash is None or entry.hash.mode != "sha256" or not path.is_relative_to(root / PACKAGE.name):
            continue
        if not path.is_file():
            yield Finding(path=str(entry), what="is missing, the wheel's RECORD names it")
        elif record_digest(bytes.fromhex(sha256(path))) != entry.hash.value:
            yield Finding(path=str(entry), what="is not the file of the wheel's RECORD")


def record_digest(digest: bytes) -> str:
    """A SHA-256 as a wheel's RECORD writes it."""
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
