"""Compile CUDA source or take a cubin, and find kernels in it."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sm70_kernels import _emulator
from sm70_kernels.lab import elf, names, toolchain
from sm70_kernels.lab.errors import EmulatorError, LabError
from sm70_kernels.lab.kernel import Kernel


class Module:
    """An sm_70 cubin, loaded into the emulated V100. Make one with ``compile``, ``compile_source`` or ``load``."""

    def __init__(
        self, cubin: bytes, listing: str, *, ptx: str = "", warnings: str = "", portable: bool = False
    ) -> None:
        """Load a cubin with its listing, the text of ``nvdisasm -c -hex``.

        Args:
            cubin: the machine code.
            listing: as :func:`sm70_kernels.lab.toolchain.disassemble` makes it.
            ptx: what the cubin was made of, if that is known.
            warnings: what NVRTC said of the source.
            portable: run only code that any x86-64 machine runs; results have the same bits.

        Raises:
            LabError: there is no kernel in it.
            EmulatorError: the listing is not the cubin's.
        """
        self.cubin = cubin
        self.listing = listing
        self.ptx = ptx
        self.warnings = warnings
        self.code: Any = self._loaded(portable)
        """The emulator's own module: ``instructions(kernel)``, ``analyse(kernel)``, ``unsupported(kernel)`` and so on,
        by mangled names."""

    def _loaded(self, portable: bool) -> Any:
        try:
            return _emulator.Module(self.cubin, self.listing, portable)
        except EmulatorError as error:
            if "holds no kernel" not in str(error):
                raise
            raise LabError(
                "module: got machine code without a kernel, want at least one. Declare a function __global__, and "
                "instantiate a template"
            ) from error

    @functools.cached_property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels, as the cubin has them."""
        return tuple(self.code.kernels())

    @functools.cached_property
    def variables(self) -> tuple[str, ...]:
        """Names of the ``__device__`` and ``__constant__`` variables, as the cubin has them."""
        found = []
        for name in elf.variables(self.cubin):
            try:
                self.code.symbol(name)
            except EmulatorError:  # one that the emulator has no use for, of the compiler's own
                continue
            found.append(name)
        return tuple(found)

    def kernel(self, name: str) -> Kernel:
        """A kernel by its name, its C++ signature, or the part of it that no other kernel has.

        Raises:
            LabError: there is no such kernel, or several; the message lists them.
        """
        found = names.choose(name, self.kernels)
        return Kernel(self, found, self.code.kernels()[found])

    def variable(self, name: str) -> np.ndarray[Any, Any]:
        """The bytes of a ``__device__`` or ``__constant__`` variable, to read and to write.

        Raises:
            LabError: there is no such variable.
        """
        try:
            return np.frombuffer(self.code.symbol(name), np.uint8)
        except EmulatorError as error:
            known = ", ".join(self.variables) or "none, for it declares none"
            raise LabError(f"variable: argument 'name': got {name!r}, want one of {known}") from error


def compile(
    path: Path | str,
    *,
    include: Sequence[Path | str] = (),
    defines: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
) -> Module:
    """Compile a CUDA file for sm_70 with NVRTC and ptxas of CUDA 12.8.

    Args:
        path: the file. It holds device code; host code and ``<<<...>>>`` launches are not compiled by NVRTC.
        include: folders for ``#include``, beside the file's own and CUDA's.
        defines: macros and their values.
        options: more options for NVRTC, ``--use_fast_math`` for instance.

    Raises:
        CompileError: it does not compile; the message holds the compiler's text.
        LabError: there is no such file, or a tool is missing.
    """
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise LabError(f"compile: argument 'path': got {str(path)!r} ({error.strerror}). Name a CUDA file") from error
    except UnicodeDecodeError as error:
        raise LabError(
            f"compile: argument 'path': got {str(path)!r}, which is no text. Pass a cubin to lab.load"
        ) from error
    return compile_source(text, name=str(path), include=(path.parent, *include), defines=defines, options=options)


def compile_source(
    text: str,
    *,
    name: str = "kernel.cu",
    include: Sequence[Path | str] = (),
    defines: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
) -> Module:
    """Compile CUDA source from memory; ``name`` is what it is called in errors and source lines.

    Raises:
        CompileError: it does not compile; the message holds the compiler's text.
        LabError: a tool is missing.
    """
    ptx, warnings = toolchain.compile_to_ptx(text, name, include=include, defines=defines, options=options)
    return from_ptx(ptx, warnings=warnings)


def from_ptx(ptx: str, *, warnings: str = "") -> Module:
    """Assemble PTX and load it. Raises CompileError with ptxas's text."""
    cubin = toolchain.assemble(ptx)
    return Module(cubin, toolchain.disassemble(cubin), ptx=ptx, warnings=warnings)


def load(cubin: Path | str | bytes, *, portable: bool = False) -> Module:
    """Load an sm_70 cubin, this project's or any other: a file, or its bytes.

    Raises:
        LabError: there is no such file, or it is no cubin for sm_70.
        EmulatorError: the emulator can't read it.
    """
    if isinstance(cubin, bytes):
        name, data = f"{len(cubin)} bytes", cubin
    else:
        name = repr(str(cubin))
        try:
            data = Path(cubin).read_bytes()
        except OSError as error:
            raise LabError(f"load: argument 'cubin': got {name} ({error.strerror}). Name an sm_70 cubin") from error
    elf.require_sm70(data, name)
    return Module(data, toolchain.disassemble(data), portable=portable)
