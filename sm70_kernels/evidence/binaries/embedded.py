"""The device code inside an operator's DSO, read from the file: nothing is loaded, so it works on a damaged file too.

``csrc/runtime/embedded.S`` puts cubin, PTX and build facts between pairs of local symbols; the symbol table of the ELF
file says where they lie.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from sm70_kernels import _elf
from sm70_kernels.evidence.runs.schema import EvidenceError

_PREFIX, _END = "sm70_embedded_", "_end"
#: Symbols of an operator's DSO, without the prefix.
IMAGES = ("cubin", "ptx", "facts")


def _between(parts: list[_elf.Section], start: int, end: int) -> bytes:
    """The bytes between two addresses of a loaded section."""
    for part in parts:
        if part.kind != _elf.NO_BITS and part.address and part.address <= start <= end <= part.address + part.size:
            return part.content[start - part.address : end - part.address]
    raise EvidenceError("it holds no embedded cubin and PTX: no section has the addresses of their symbols")


def images(content: bytes) -> dict[str, bytes]:
    """``cubin``, ``ptx`` and ``facts`` of a DSO's bytes. Raises EvidenceError when they can't be found."""
    try:
        parts = _elf.sections(content)
        addresses = {symbol.name: symbol.value for symbol in _elf.symbols(parts)}
    except _elf.ElfError as error:
        raise EvidenceError(str(error)) from error
    try:
        bounds = {name: (addresses[_PREFIX + name], addresses[_PREFIX + name + _END]) for name in IMAGES}
    except KeyError as error:
        raise EvidenceError("it holds no embedded cubin and PTX, or its symbol table was removed or damaged") from error
    return {name: _between(parts, *bounds[name]) for name in IMAGES}


def hashes(content: bytes) -> dict[str, str]:
    """SHA-256 of each embedded image."""
    return {name: hashlib.sha256(image).hexdigest() for name, image in images(content).items()}


def differences(content: bytes, cubin_sha256: str, ptx_sha256: str) -> list[str]:
    """What is wrong with the device code of a DSO's bytes, as sentence ends; empty when it is as the manifest says."""
    try:
        found = hashes(content)
    except EvidenceError as error:
        return [str(error)]
    wanted = {"cubin": cubin_sha256, "ptx": ptx_sha256}
    return [
        f"its embedded {name.upper() if name == 'ptx' else name} has SHA-256 {found[name][:12]}…, the build manifest "
        f"says {digest[:12]}…"
        for name, digest in wanted.items()
        if found[name] != digest
    ]


def file_differences(path: Path, cubin_sha256: str, ptx_sha256: str) -> list[str]:
    """:func:`differences` of a file."""
    return differences(path.read_bytes(), cubin_sha256, ptx_sha256)
