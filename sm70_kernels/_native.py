"""Loads the operator DSOs into torch and answers questions about them.

A missing or stale library is an error when it is first needed, with the path that was expected: nothing is searched
elsewhere, and nothing older is taken instead.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from sm70_kernels import _elf

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

    def call(self, function: str, *arguments: Any) -> Any:
        """Call an exported C function that returns an int."""
        return getattr(self._handle, function)(*arguments)

    def call_int64(self, function: str, *arguments: int) -> int:
        """Call an exported C function of 64-bit integers that returns one."""
        get = getattr(self._handle, function)
        get.restype = ctypes.c_int64
        return int(get(*(ctypes.c_int64(argument) for argument in arguments)))

    def call_text(self, function: str, *arguments: int | str) -> str:
        """Call an exported C function of 64-bit integers and texts that returns a text."""
        get = getattr(self._handle, function)
        get.restype = ctypes.c_char_p
        text = get(*(a.encode() if isinstance(a, str) else ctypes.c_int64(a) for a in arguments))
        return cast(bytes, text).decode()

    def json(self, function: str) -> Any:
        """The JSON text that an exported C function returns, parsed."""
        get = getattr(self._handle, function)
        get.restype = ctypes.c_char_p
        return json.loads(get().decode())

    def launch_counts(self) -> dict[str, dict[str, int]]:
        """Launches of this process: kernel -> image that ran (``cubin``, ``ptx``, ``emulated``) -> count."""
        return cast(dict[str, dict[str, int]], self.json("sm70_kernels_launch_counts"))


_loaded: dict[str, Library] = {}
_lock = threading.Lock()


def library_path(operator: str) -> Path:
    """Where the operator's DSO must lie."""
    return LIBRARIES / f"libsm70_{operator}.so"


def revision_in_file(path: Path) -> int | None:
    """Capability revision of a DSO, read from its bytes without loading it; None when it has none."""
    found = set(re.findall(rb"sm70_kernels capability revision (\d+)\0", path.read_bytes()))
    return int(found.pop()) if len(found) == 1 else None


def _emulator_places() -> tuple[bytes, bytes, bytes]:
    """Where the emulator's DSO and nvdisasm are, and where listings are kept; none needs to exist before it is used."""
    triton = importlib.util.find_spec("triton")
    folders = triton.submodule_search_locations if triton else None
    nvdisasm = Path(folders[0]) / "backends" / "nvidia" / "bin" / "nvdisasm" if folders else Path("nvdisasm")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    places = (LIBRARIES / "libsm70_emulator.so", nvdisasm, caches / "sm70_kernels" / "listings")
    library, tool, cache = (os.fsencode(place) for place in places)
    return library, tool, cache


def _open(operator: str, capability_revision: int, path: Path) -> Library:
    import torch

    if not path.is_file():
        raise LibraryError(f"operator {operator!r}: its library {path} is missing. {_REBUILD}")
    # The loader maps a truncated library without complaint and then dies of a bus error.
    if not _elf.is_whole(path.read_bytes()):
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
    handle.sm70_kernels_emulator_places(*_emulator_places())
    return Library(operator, path, found, facts, handle)


def load(operator: str, capability_revision: int, path: Path | None = None) -> Library:
    """Load an operator's DSO once, which registers its torch operators. Raises LibraryError. Thread-safe.

    ``path`` is for operators that lie outside the package: those of tests.
    """
    with _lock:
        if operator not in _loaded:
            _loaded[operator] = _open(operator, capability_revision, path or library_path(operator))
        return _loaded[operator]


def loaded() -> dict[str, Library]:
    """The libraries that this process has loaded, by operator."""
    with _lock:
        return dict(_loaded)
