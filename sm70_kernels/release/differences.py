"""Where two files that should be the same differ, in words."""

from __future__ import annotations

import re
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

#: What reading an archive raises when its bytes are damaged.
_DAMAGED = (zipfile.BadZipFile, tarfile.TarError, zlib.error, OSError, EOFError)
_LINES = 60  # of diffoscope's report, for one file


def describe(first: Path, second: Path) -> str:
    """The difference between two files: diffoscope's report where it is installed, else where they first differ."""
    tool = shutil.which("diffoscope")
    if tool is not None:
        command = [tool, "--text", "-", "--text-color", "never", str(first), str(second)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 1:  # 0: the same, 2: it failed
            return "\n".join(done.stdout.splitlines()[:_LINES])
    for reader in (_zip_members, _tar_members):
        try:
            members = [reader(path) for path in (first, second)]
        except _DAMAGED:
            continue
        if members[0] and members[1]:
            return _first_member(members[0], members[1]) or _position(first, second)
    return _position(first, second)


def _zip_members(path: Path) -> dict[str, bytes]:
    if not zipfile.is_zipfile(path):
        return {}
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _tar_members(path: Path) -> dict[str, bytes]:
    if not tarfile.is_tarfile(path):
        return {}
    with tarfile.open(path) as archive:
        streams = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {name: stream.read() for name, stream in streams.items() if stream is not None}


def _first_member(first: dict[str, bytes], second: dict[str, bytes]) -> str:
    """The first archive member, by name, that differs or is in one archive alone; None when all are the same."""
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            return f"member {name} is in the {'first' if name in first else 'second'} only"
        if first[name] != second[name]:
            return f"member {name} first differs at offset {_offset(first[name], second[name])}"
    return ""


def _offset(first: bytes, second: bytes) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((offset for offset, (a, b) in pairs if a != b), min(len(first), len(second)))


def _position(first: Path, second: Path) -> str:
    contents = first.read_bytes(), second.read_bytes()
    offset = _offset(*contents)
    around = [content[max(0, offset - 8) : offset + 24] for content in contents]
    section = _section(first, offset)
    where = f"section {section}, " if section else f"line {contents[0][:offset].count(10) + 1}, "
    return (
        f"{where}offset {offset:#x}: {around[0]!r} and {around[1]!r}; {len(contents[0])} and {len(contents[1])} bytes"
    )


def _section(path: Path, offset: int) -> str:
    """Name of the ELF section that holds a file offset; None when the file is no ELF file or readelf is missing."""
    if path.read_bytes()[:4] != b"\x7fELF" or shutil.which("readelf") is None:
        return ""
    listing = subprocess.run(["readelf", "-S", "-W", str(path)], capture_output=True, text=True, check=False).stdout
    pattern = r"\]\s+(\S+)\s+(\S+)\s+[0-9a-f]{16}\s+([0-9a-f]+)\s+([0-9a-f]+)"
    for name, kind, start, size in re.findall(pattern, listing):
        if kind != "NOBITS" and int(start, 16) <= offset < int(start, 16) + int(size, 16):
            return str(name)
    return "(headers)"
