"""The device code inside an operator's DSO, read from the file: nothing is loaded, so a damaged file can be asked too.

``csrc/runtime/embedded.S`` puts cubin, PTX and build facts between pairs of local symbols; the symbol table of the ELF
file says where they lie.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels.evidence.runs.schema import EvidenceError

_PREFIX, _END = "sm70_embedded_", "_end"
#: Symbols of an operator's DSO, without the prefix.
IMAGES = ("cubin", "ptx", "facts")

_SYMTAB, _NOBITS = 2, 8
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


@dataclass(frozen=True)
class _Section:
    kind: int
    address: int
    offset: int
    size: int
    link: int


def _sections(content: bytes) -> list[_Section]:
    if content[:5] != b"\x7fELF\x02":
        raise EvidenceError("it is no 64-bit ELF file")
    (start,) = struct.unpack_from("<Q", content, 0x28)
    entry_size, count = struct.unpack_from("<HH", content, 0x3A)
    found = []
    for index in range(count):
        fields = _SECTION.unpack_from(content, start + index * entry_size)
        found.append(_Section(fields[1], fields[3], fields[4], fields[5], fields[6]))
    return found


def _symbols(content: bytes, sections: list[_Section]) -> Iterator[tuple[str, int]]:
    """Name and address of the embedding's symbols."""
    for section in sections:
        if section.kind != _SYMTAB:
            continue
        names = sections[section.link]
        table = content[names.offset : names.offset + names.size]
        for place in range(section.offset, section.offset + section.size, _SYMBOL.size):
            fields = _SYMBOL.unpack_from(content, place)
            if table.startswith(_PREFIX.encode(), fields[0]):
                yield table[fields[0] : table.index(b"\0", fields[0])].decode("ascii", "replace"), fields[4]


def images(content: bytes) -> dict[str, bytes]:
    """``cubin``, ``ptx`` and ``facts`` of a DSO's bytes. Raises EvidenceError when they can't be found."""
    try:
        sections = _sections(content)
        addresses = dict(_symbols(content, sections))
        found = {}
        for name in IMAGES:
            start, end = addresses[_PREFIX + name], addresses[_PREFIX + name + _END]
            inside = (
                part
                for part in sections
                if part.kind != _NOBITS and part.address <= start <= end <= part.address + part.size and part.address
            )
            section = next(inside)
            offset = section.offset + start - section.address
            found[name] = content[offset : offset + end - start]
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise EvidenceError(f"its ELF structure is damaged ({error})") from error
    except (KeyError, StopIteration) as error:
        raise EvidenceError("it holds no embedded cubin and PTX, or its symbol table was removed or damaged") from error
    return found


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
