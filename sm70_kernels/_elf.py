"""Sections and symbols of 64-bit ELF files: operator DSOs and cubins. Nothing is loaded."""

from __future__ import annotations

import struct
from dataclasses import dataclass

SYMBOL_TABLE, RELOCATIONS_WITH_ADDENDS, NO_BITS, RELOCATIONS = 2, 4, 8, 9
_HEADER_BYTES = 64
_MAGIC = b"\x7fELF\x02"
_SECTION, _SYMBOL = struct.Struct("<IIQQQQIIQQ"), struct.Struct("<IBBHQQ")


class ElfError(ValueError):
    """The file is no 64-bit ELF file, or its structure is damaged: the message says which."""


@dataclass(frozen=True)
class Section:
    """One section; ``content`` is empty where the file holds none (``NO_BITS``)."""

    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    content: bytes


@dataclass(frozen=True)
class Symbol:
    """One symbol: type and binding in ``info``, the number of its section in ``section``."""

    name: str
    info: int
    section: int
    value: int
    size: int


def _text(strings: bytes, at: int) -> str:
    return strings[at : strings.index(b"\0", at)].decode("utf-8", "replace")


def is_whole(content: bytes) -> bool:
    """Whether these are the bytes of a 64-bit ELF file that is not cut short: linkers put its section headers last."""
    if len(content) < _HEADER_BYTES or content[:5] != _MAGIC:
        return False
    start, entry_bytes, count, _ = _section_table(content)
    return start + entry_bytes * count <= len(content)


def _section_table(content: bytes) -> tuple[int, int, int, int]:
    """Where the section headers begin, bytes of one, their number, and the number of that of their names."""
    (start,) = struct.unpack_from("<Q", content, 0x28)
    return start, *struct.unpack_from("<HHH", content, 0x3A)


def sections(content: bytes) -> list[Section]:
    """The sections of a file's bytes, in the order of its table. Raises ElfError."""
    if len(content) < _HEADER_BYTES or content[:5] != _MAGIC:
        raise ElfError("it is no 64-bit ELF file")
    try:
        start, entry_bytes, count, names_at = _section_table(content)
        raw = [_SECTION.unpack_from(content, start + index * entry_bytes) for index in range(count)]
        if not raw:
            return []
        names = content[raw[names_at][4] : raw[names_at][4] + raw[names_at][5]]
        found = []
        for name, kind, flags, address, offset, size, link, info, *_ in raw:
            held = b"" if kind == NO_BITS else content[offset : offset + size]
            found.append(Section(_text(names, name), kind, flags, address, offset, size, link, info, held))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise ElfError(f"its ELF structure is damaged ({error})") from error
    return found


def symbols(parts: list[Section]) -> list[Symbol]:
    """The symbols of all symbol tables, each table's first, empty entry included. Raises ElfError."""
    found = []
    try:
        for part in parts:
            if part.kind == SYMBOL_TABLE:
                strings = parts[part.link].content
                for name, info, _, section, value, size in _SYMBOL.iter_unpack(part.content):
                    found.append(Symbol(_text(strings, name), info, section, value, size))
    except (struct.error, IndexError, ValueError, OverflowError) as error:
        raise ElfError(f"its ELF structure is damaged ({error})") from error
    return found
