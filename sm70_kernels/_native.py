"""Loads the operator DSOs into torch and answers questions about them.

A missing or stale library is an error when it is first needed, with the path that was expected: nothing is searched
elsewhere, and nothing older is taken instead.
"""

from __future__ import annotations

import ctypes
import json
import re
import struct
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

_PACKAGE = Path(__file__).resolve().parent
LIBRARIES = _PACKAGE / "lib"
_REBUILD = "Rebuild with 'scripts/nox -s build' (checkout) or reinstall the sm70-kernels wheel"


class LibraryError(ImportError):
    """An operator's DSO is missing, can't be loaded, or has another capability revision than this Python code."""


@dataclass(frozen=True)
class Library:
    """A loaded operator DSO."""

    operator: str
    path: Path
    capability_revision: int
    build_facts: dict[str, Any]
    _handle: ctypes.CDLL

    def _image(self, function: str) -> bytes:
        size = ctypes.c_size_t()
        get = getattr(self._handle, function)
        get.restype = ctypes.c_void_p
        address = get(ctypes.byref(size))
        return ctypes.string_at(address, size.value)

    def cubin(self) -> bytes:
        """The embedded sm_70 machine code: what a V100 runs."""
        return self._image("sm70_kernels_cubin")

    def ptx(self) -> bytes:
        """The embedded compute_70 PTX: what another GPU's driver compiles."""
        return self._image("sm70_kernels_ptx")

    def launch_counts(self) -> dict[str, dict[str, int]]:
        """Launches of this process: kernel -> image that ran (``cubin``, ``ptx``) -> count."""
        get = self._handle.sm70_kernels_launch_counts
        get.restype = ctypes.c_char_p
        return cast(dict[str, dict[str, int]], json.loads(get().decode()))


_loaded: dict[str, Library] = {}
_lock = threading.Lock()


def library_path(operator: str) -> Path:
    """Where the operator's DSO must lie."""
    return LIBRARIES / f"libsm70_{operator}.so"


def revision_in_file(path: Path) -> int | None:
    """Capability revision of a DSO, read from its bytes without loading it; None when it has none."""
    found = set(re.findall(rb"sm70_kernels capability revision (\d+)\0", path.read_bytes()))
    return int(found.pop()) if len(found) == 1 else None


def is_whole(path: Path) -> bool:
    """Whether a file is a 64-bit ELF file that is not cut short: linkers put its section headers last.

    The loader maps a truncated library without complaint and then dies of a bus error.
    """
    content = path.read_bytes()
    if len(content) < 64 or content[:5] != b"\x7fELF\x02":
        return False
    (offset,) = struct.unpack_from("<Q", content, 0x28)
    size, count = struct.unpack_from("<HH", content, 0x3A)
    return bool(offset + size * count <= len(content))


def _open(operator: str, capability_revision: int) -> Library:
    import torch

    path = library_path(operator)
    if not path.is_file():
        raise LibraryError(f"operator {operator!r}: its library {path} is missing. {_REBUILD}")
    if not is_whole(path):
        raise LibraryError(f"operator {operator!r}: {path} is cut short, or no library at all. {_REBUILD}")
    # Loading the library registers its operators, so its revision is read from the file before.
    found = revision_in_file(path)
    if found != capability_revision:
        raise LibraryError(
            f"operator {operator!r}: {path} has capability revision {found}, this Python code wants "
            f"{capability_revision}. {_REBUILD}"
        )
    try:
        handle = ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(
            f"operator {operator!r}: its library {path} can't be loaded beside torch {torch.__version__} ({error}). "
            f"{_REBUILD}"
        ) from error
    handle.sm70_kernels_build_facts.restype = ctypes.c_char_p
    facts = json.loads(handle.sm70_kernels_build_facts().decode())
    return Library(operator, path, found, facts, handle)


def load(operator: str, capability_revision: int) -> Library:
    """Load an operator's DSO once, which registers ``torch.ops.sm70_kernels.*``. Raises LibraryError. Thread-safe."""
    with _lock:
        if operator not in _loaded:
            _loaded[operator] = _open(operator, capability_revision)
        return _loaded[operator]


def loaded() -> dict[str, Library]:
    """The libraries that this process has loaded, by operator."""
    with _lock:
        return dict(_loaded)
