"""Whether a recorded run speaks of what is built here now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from sm70_kernels.evidence.binaries.built import Build
from sm70_kernels.evidence.runs.schema import Library

#: ``current``: the same DSO. ``same kernel``: another DSO with the code that ran: the cubin's machine code, or the
#: instructions of the PTX for the JIT. Line tables don't count, so a moved comment makes nothing older.
#: ``older``: other code. ``unknown``: nothing is built here, or the run names no library.
Currency = Literal["current", "same kernel", "older", "unknown"]

_WORST: tuple[Currency, ...] = ("older", "unknown", "same kernel", "current")


def _same(then: str | None, now: str | None, same_file: bool) -> bool:
    """Whether two codes are equal; a record without its hash speaks of the whole file only."""
    return same_file if then is None or now is None else then == now


def of_library(library: Library, build: Build | None) -> Currency:
    """A library of a run against the build. A run that launched nothing speaks of the cubin."""
    if build is None:
        return "unknown"
    now = build.operators.get(library.operator)
    if now is None:
        return "older"
    if library.sha256 == now.sha256:
        return "current"
    images = library.images() or ["cubin"]
    same_cubin = _same(library.machine_code_sha256, now.machine_code_sha256, library.cubin_sha256 == now.cubin_sha256)
    same_ptx = _same(library.ptx_instructions_sha256, now.ptx_instructions_sha256, library.ptx_sha256 == now.ptx_sha256)
    same = {"cubin": same_cubin, "emulated": same_cubin, "ptx": same_ptx}
    return "same kernel" if all(same.get(image, False) for image in images) else "older"


def of_run(libraries: Sequence[Library], build: Build | None) -> Currency:
    """A run is as current as the least current of its libraries."""
    return min((of_library(library, build) for library in libraries), key=_WORST.index, default="unknown")
