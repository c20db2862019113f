"""Lines of the sources that the built kernels came from."""

from __future__ import annotations

import functools
from pathlib import Path

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.runs.schema import EvidenceError


@functools.cache
def _lines(root: Path, name: str) -> tuple[str, ...]:
    """A file's lines; none if it is not the one that was built."""
    try:
        build = built.read(root)
    except EvidenceError:
        return ()
    path = root / name
    if name not in build.sources or not path.is_file() or sha256(path) != build.sources[name]:
        return ()
    return tuple(path.read_text().splitlines())


def line(place: str, root: Path = ROOT) -> str:
    """The text at ``file:line``, without indentation; empty where the source is not here or changed since the build."""
    name, _, number = place.rpartition(":")
    lines = _lines(root, name) if name else ()
    index = int(number) - 1 if lines else 0
    return lines[index].strip() if index < len(lines) else ""
