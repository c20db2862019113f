"""``doctor`` on files: torch's build, the operators' DSOs, the interpreter module. Nothing is loaded for it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from sm70_kernels import _native
from sm70_kernels.build.settings import LIBRARY_FOLDER, PACKAGE
from sm70_kernels.cli.diagnosis import Check, note, ok, problem
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.runs.schema import EvidenceError

_REMEDY = f"{built.REMEDY}, or reinstall the sm70-kernels wheel"


def torch_build() -> tuple[str | None, str | None]:
    """Version of the installed torch and of the CUDA it is for, read from its version.py; None where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None, None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text()
    except OSError:
        return None, None
    version, cuda = (
        re.search(rf"^{name}\b[^=\n]*=\s*'([^']*)'", text, re.MULTILINE) for name in ("__version__", "cuda")
    )
    return version.group(1) if version else None, cuda.group(1) if cuda else None


def wanted_revision(module: Path) -> int | None:
    """The capability revision that an operator's Python module is written for; None when it names none."""
    if not module.is_file():
        return None
    for statement in ast.parse(module.read_text()).body:
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            if "CAPABILITY_REVISION" in names and isinstance(statement.value.value, int):
                return statement.value.value
    return None


def check(root: Path) -> Iterator[Check]:
    """The build manifest and every file that it names, strangers beside them, and sources that are newer."""
    try:
        build = built.read(root)
    except EvidenceError as error:
        yield problem("build", str(error), _REMEDY)
        return
    yield ok("build", f"commit {(build.commit or 'unknown')[:7]}{', dirty' if build.dirty else ''}")
    stale = built.stale_sources(build, root)
    if stale:
        yield problem("build", f"{len(stale)} source files changed since, {stale[0]} for one", _REMEDY)
    differing = built.differing_libraries(build, root)
    for sentence in differing:
        yield problem("library", sentence, _REMEDY)
    for operator, entry in sorted(build.operators.items()):
        path = root / entry.path
        if not path.is_file():
            continue
        found = _native.revision_in_file(path)
        wanted = wanted_revision(root / PACKAGE.name / "ops" / f"{operator}.py")
        if found != wanted:
            yield problem("library", f"{entry.path} has capability revision {found}, Python wants {wanted}", _REMEDY)
        elif not any(f"{operator!r}" in sentence for sentence in differing):
            yield ok("library", f"{entry.path}, revision {found}, SHA-256 {entry.sha256[:12]}… as built")
    yield from _emulator(build, differing)
    yield from _strangers(root, build)
    yield from _interpreter_module(root)


def nvdisasm() -> Path | None:
    """The disassembler that the emulator reads machine code with; None where it is not installed."""
    found = shutil.which(os.fsdecode(_native._emulator_places()[1]))
    return Path(found) if found else None


def _emulator(build: built.Build, differing: list[str]) -> Iterator[Check]:
    """What CPU tensors need: the emulator's DSO, and nvdisasm."""
    if build.emulator is None:
        yield problem("emulator", "the build manifest names no emulator", _REMEDY)
    elif not any(sentence.startswith("emulator:") for sentence in differing):
        yield ok("emulator", f"{build.emulator.path}, SHA-256 {build.emulator.sha256[:12]}… as built")
    if nvdisasm() is None:
        yield note(
            "emulator",
            "nvdisasm is not installed, so CPU tensors can't run on the emulated V100",
            "Install the triton wheel that the lock file pins, which brings it: 'scripts/nox -s build'",
        )
    else:
        yield ok("emulator", "nvdisasm found")


def _strangers(root: Path, build: built.Build) -> Iterator[Check]:
    """Shared objects that no build of this source makes."""
    known = {Path(path).name for path in built.files(root)}
    for path in sorted((root / PACKAGE.name / LIBRARY_FOLDER).glob("*.so")):
        if path.name not in known:
            yield problem("library", f"{path.name} is not in the build manifest", f"Remove it. {_REMEDY}")


def _interpreter_module(root: Path) -> Iterator[Check]:
    """The one module that is compiled for an interpreter."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    name = f"_emulator{suffix}"
    others = sorted(path.name for path in (root / PACKAGE.name).glob("_emulator*.so") if path.name != name)
    if (root / PACKAGE.name / name).is_file():
        yield ok("module", name)
    else:
        yield problem("module", f"{name} is missing{f', found {others[0]}' if others else ''}", _REMEDY)
        return
    for other in others:
        yield note("module", f"{other} is for another Python and is not used here", None)
