"""Hashes of what runs: the machine code of a cubin and the instructions of a PTX text, without line tables.

Line tables, symbol order and the names of source files change when a comment moves; what a kernel does, does not. So
evidence is tied to these hashes, not to those of the whole files. A kernel's hash covers its instructions, the
constants that it reads, its static shared memory, its registers and barriers. Variables in global memory
(``.nv.global.init``, reached through constant bank 4) are not covered: no kernel here reads one, which
``tests/build/test_machine_code.py`` checks.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping

from sm70_kernels import _elf

_TEXT = ".text."
_RELOCATION_TEXT = ".rel.text."
#: Constant banks: 0 holds parameters, 2 compiler constants, 3 ``__constant__`` variables.
_CONSTANTS = re.compile(r"\.nv\.constant[023](\.|$)")
#: Lines of PTX without an effect on the code: comments, and where the source stands.
_PTX_NOISE = re.compile(r"^\s*(//.*|\.loc\s.*|\.file\s.*)?$")


def _update(digest: hashlib._Hash, *values: bytes | str | int) -> None:
    """Add values with their lengths, so that no two sequences give the same bytes."""
    for value in values:
        data = value if isinstance(value, bytes) else str(value).encode()
        digest.update(struct.pack("<Q", len(data)) + data)


def _relocations(part: _elf.Section, names: list[_elf.Symbol]) -> list[tuple[int, int, str]]:
    entry = struct.Struct("<QQq" if part.kind == _elf.RELOCATIONS_WITH_ADDENDS else "<QQ")
    return sorted(
        (fields[0], fields[1] & 0xFFFFFFFF, names[fields[1] >> 32].name) for fields in entry.iter_unpack(part.content)
    )


def of_kernels(cubin: bytes) -> dict[str, str]:
    """Kernel or device function -> SHA-256 of its machine code. Raises ElfError."""
    parts = _elf.sections(cubin)
    names = _elf.symbols(parts)
    by_name = sorted(parts, key=lambda section: section.name)
    digests = {}
    for part in parts:
        if not part.name.startswith(_TEXT):
            continue
        kernel = part.name.removeprefix(_TEXT)
        registers = part.info >> 24  # the low bits are the number of the kernel's symbol
        digest = hashlib.sha256()
        _update(digest, part.content, registers, part.flags)
        for other in by_name:
            if _CONSTANTS.match(other.name) and other.name.split(".", 3)[3:] in ([kernel], []):
                _update(digest, other.name, other.content)
            elif other.name == f".nv.shared.{kernel}":
                _update(digest, other.name, other.size)
            elif other.name == _RELOCATION_TEXT + kernel:
                for place, kind, symbol in _relocations(other, names):
                    _update(digest, place, kind, symbol)
        digests[kernel] = digest.hexdigest()
    return dict(sorted(digests.items()))


def of_cubin(cubin: bytes) -> str:
    """One SHA-256 for the machine code of all kernels of a cubin. Raises ElfError."""
    return combined(of_kernels(cubin))


def combined(kernels: Mapping[str, str]) -> str:
    """One SHA-256 of what :func:`of_kernels` found."""
    digest = hashlib.sha256()
    for kernel, code in kernels.items():
        _update(digest, kernel, code)
    return digest.hexdigest()


def ptx_instructions(ptx: str) -> str:
    """A PTX text without comments, line numbers, source files and debugging sections."""
    text = re.sub(r"/\*.*?\*/", "", ptx, flags=re.DOTALL)
    text = re.sub(r"^\s*\.section\s+\.debug_[^{]*\{[^}]*\}", "", text, flags=re.MULTILINE)
    return "\n".join(line for line in text.splitlines() if not _PTX_NOISE.match(line))


def of_ptx(ptx: bytes) -> str:
    """SHA-256 of a PTX text's instructions: what another GPU's driver compiles."""
    return hashlib.sha256(ptx_instructions(ptx.decode()).encode()).hexdigest()
