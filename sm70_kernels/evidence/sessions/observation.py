"""What a pytest process records of itself at its end: the DSOs it ran, and whether they are the built ones."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sm70_kernels.build import machine_code
from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.binaries import built, mapped
from sm70_kernels.evidence.runs.schema import EvidenceError, Library

if TYPE_CHECKING:
    from sm70_kernels import _native

#: A skip whose reason begins so is for lack of a GPU: "needs sm_70, found no CUDA device".
NEEDS = "needs "


def file(folder: Path, name: str) -> Path:
    """Where a pytest process leaves what it saw; the session takes it into the manifest and removes it."""
    return folder / f".observation-{name}.json"


def _loaded() -> dict[str, _native.Library]:
    """The operators that this process has loaded; asking must not load torch."""
    native = sys.modules.get("sm70_kernels._native")
    return native.loaded() if native is not None else {}


def libraries(root: Path = ROOT) -> list[Library]:
    """The operators' DSOs. One that is loaded is hashed as mapped; for the others the build manifest speaks."""
    build = built.read(root)
    files = {file.path.name: file for file in mapped.mapped_files()}
    loaded = _loaded()
    found = []
    for operator, entry in sorted(build.operators.items()):
        file, native = files.get(Path(entry.path).name), loaded.get(operator)
        cubin, ptx = entry.cubin_sha256, entry.ptx_sha256
        code, instructions = entry.machine_code_sha256, entry.ptx_instructions_sha256
        if native is not None:
            cubin, ptx = (hashlib.sha256(image).hexdigest() for image in (native.cubin(), native.ptx()))
            if (cubin, ptx) != (entry.cubin_sha256, entry.ptx_sha256):
                code, instructions = machine_code.of_cubin(native.cubin()), machine_code.of_ptx(native.ptx())
        found.append(
            Library(
                operator=operator,
                path=entry.path,
                sha256=file.digest() if file else entry.sha256,
                cubin_sha256=cubin,
                ptx_sha256=ptx,
                machine_code_sha256=code,
                ptx_instructions_sha256=instructions,
                capability_revision=native.capability_revision if native else entry.capability_revision,
                mapped=file is not None,
                launches=native.launch_counts() if native else {},
            )
        )
    return found


def mismatches(root: Path = ROOT) -> list[str]:
    """A sentence for each mapped DSO that is not the built one. Without a build every loaded DSO is one too many."""
    own = [file for file in mapped.mapped_files() if file.is_own()]
    if not own:
        return []
    try:
        expected = built.files(root) if built.read(root) else {}
    except EvidenceError as error:
        return [str(error)]
    sentences = mapped.differences(own, expected, root)
    for library in libraries(root):
        entry = built.read(root).operators[library.operator]
        if (library.cubin_sha256, library.ptx_sha256) != (entry.cubin_sha256, entry.ptx_sha256):
            sentences.append(f"{library.path}: its embedded device code is not what the build manifest says")
    return sentences


def emulated(found: list[Library]) -> int:
    """How many launches ran on the emulator."""
    return sum(counts.get("emulated", 0) for library in found for counts in library.launches.values())


def merge(parts: list[list[Library]]) -> list[Library]:
    """The libraries of several processes as one list: a mapped file beats the build manifest, launches add up."""
    merged: dict[str, Library] = {}
    for library in (library for part in parts for library in part):
        before = merged.get(library.operator)
        if before is None:
            merged[library.operator] = library
            continue
        launches = {kernel: dict(counts) for kernel, counts in before.launches.items()}
        for kernel, counts in library.launches.items():
            total = launches.setdefault(kernel, {})
            for image, count in counts.items():
                total[image] = total.get(image, 0) + count
        base = library if library.mapped else before
        merged[library.operator] = msgspec.structs.replace(base, mapped=base.mapped or before.mapped, launches=launches)
    return [merged[name] for name in sorted(merged)]
