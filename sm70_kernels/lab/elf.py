"""The few things that the laboratory reads off a cubin's ELF file by itself."""

from __future__ import annotations

import struct

from sm70_kernels import _elf
from sm70_kernels.lab.errors import LabError

_CUDA_MACHINE = 190
_SM_70 = 70
_OBJECT = 1  # STT_OBJECT
_FATBIN_MAGIC = 0xBA55ED50
#: Sections of variables that a host, or a kernel, can write.
_VARIABLES = (".nv.global", ".nv.constant3")


def require_sm70(cubin: bytes, name: str) -> None:
    """Raise LabError unless this is a cubin for sm_70."""
    remedy = "Compile it with 'nvcc -cubin -arch=sm_70'"
    if cubin[:4] != b"\x7fELF":
        is_fatbin = len(cubin) >= 4 and struct.unpack_from("<I", cubin)[0] == _FATBIN_MAGIC
        what = "a fatbin" if is_fatbin else "a file that is no ELF file"
        remedy = "Extract the cubin with 'cuobjdump -xelf sm_70 FILE'" if is_fatbin else remedy
        raise LabError(f"load: argument 'cubin': got {name}, {what}, want an sm_70 cubin. {remedy}")
    if len(cubin) < 64 or cubin[4] != 2:
        raise LabError(f"load: argument 'cubin': got {name}, a file cut short, want a whole cubin. {remedy}")
    machine, flags = struct.unpack_from("<H", cubin, 18)[0], struct.unpack_from("<I", cubin, 48)[0]
    if machine != _CUDA_MACHINE:
        raise LabError(
            f"load: argument 'cubin': got {name}, a program or library for the host, want an sm_70 cubin. "
            f"Extract it with 'cuobjdump -arch sm_70 -xelf all FILE'"
        )
    if flags & 0xFF != _SM_70:
        raise LabError(
            f"load: argument 'cubin': got {name}, machine code of sm_{flags & 0xFF}, want sm_70: a V100 runs no other. "
            f"{remedy}"
        )


def variables(cubin: bytes) -> list[str]:
    """Names of the ``__device__`` and ``__constant__`` variables of a well-formed cubin."""
    sections = _elf.sections(cubin)
    return [
        symbol.name
        for symbol in _elf.symbols(sections)
        if symbol.info & 0xF == _OBJECT
        and symbol.size
        and symbol.section < len(sections)
        and sections[symbol.section].name.startswith(_VARIABLES)
    ]
