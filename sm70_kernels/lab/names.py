"""Kernel names: C++ signatures of mangled names, and the one that a short name means."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

from sm70_kernels.lab.errors import LabError

#: Names that a refusal lists.
_LISTED = 12


@functools.cache
def _libstdcxx() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        return library
    except (OSError, AttributeError):
        return None


def demangle(name: str) -> str:
    """The C++ signature of a mangled name; any other name as it is."""
    library = _libstdcxx()
    if library is None or not name.startswith("_Z"):
        return name
    status = ctypes.c_int()
    text = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not text:
        return name
    try:
        return ctypes.string_at(text).decode()
    finally:
        ctypes.CDLL(None).free(ctypes.c_void_p(text))


def _stem(signature: str) -> str:
    """``scale<float>`` of ``void lib::scale<float>(float*, int)``: no result type, namespace or parameters."""
    depth, begin, end = 0, 0, len(signature)
    for at, character in enumerate(signature):
        if character == "<":
            depth += 1
        elif character == ">":
            depth -= 1
        elif depth == 0 and character == "(" and not signature.startswith("(anonymous namespace)", at):
            end = at
            break
        elif depth == 0 and character in " :":
            begin = at + 1
    return signature[begin:end]


def choose(name: str, known: Sequence[str]) -> str:
    """The kernel that a name means: its own, mangled one, its signature, or a stem that only one kernel has.

    Raises:
        LabError: there is none, or several; the message lists them.
    """
    if name in known:
        return name
    signatures = {mangled: demangle(mangled) for mangled in known}
    stems = {mangled: _stem(signature) for mangled, signature in signatures.items()}
    found: list[str] = []
    without_types = {mangled: stem.partition("<")[0] for mangled, stem in stems.items()}
    for forms in (signatures, stems, without_types):
        found = found or [mangled for mangled in known if forms[mangled] == name]
    for forms in (signatures, stems):
        found = found or [mangled for mangled in known if name and forms[mangled].startswith(name)]
    if len(found) == 1:
        return found[0]
    candidates = found or list(known)
    listed = ", ".join(signatures[mangled] for mangled in candidates[:_LISTED])
    more = f" and {len(candidates) - _LISTED} more" if len(candidates) > _LISTED else ""
    if found:
        raise LabError(
            f"kernel: argument 'name': got {name!r}, want a name that one kernel has; it fits {listed}{more}. "
            "Write more of the signature"
        )
    raise LabError(
        f"kernel: argument 'name': got {name!r}, want one of {listed}{more}. A template is a kernel only where the "
        "source instantiates it"
    )
