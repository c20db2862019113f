"""Own CUDA sources to sm_70 cubins with the wheels' NVRTC, ptxas and nvdisasm, and launches in the emulator."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

try:
    from sm70_kernels import _emulator
except ImportError:  # a build that is not installed, on the path
    import _emulator  # type: ignore[no-redef]

KERNELS = Path(__file__).parent / "kernels"
EmulatorError = _emulator.EmulatorError


def _package(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec and spec.submodule_search_locations, f"{name} is not installed"
    return Path(next(iter(spec.submodule_search_locations)))


def tool(name: str) -> Path:
    """A binary of the device toolchain that the triton wheel brings."""
    return _package("triton") / "backends" / "nvidia" / "bin" / name


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    return ctypes.CDLL(str(_package("nvidia") / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"))


def to_ptx(source: str) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None) == 0
    include = _package("nvidia") / "cuda_runtime" / "include"
    options = [b"-arch=compute_70", b"-std=c++17", b"-lineinfo", f"-I{include}".encode()]
    failed = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))

    def text(kind: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(nvrtc, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(nvrtc, f"nvrtcGet{kind}")(program, buffer)
        return buffer.value

    assert not failed, text("ProgramLog").decode()
    ptx = text("PTX")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return ptx


def to_cubin(ptx: bytes, folder: Path, name: str) -> bytes:
    ptx_file, cubin_file = folder / f"{name}.ptx", folder / f"{name}.cubin"
    ptx_file.write_bytes(ptx)
    subprocess.run(
        [tool("ptxas"), "-arch=sm_70", "-lineinfo", "-o", cubin_file, ptx_file], check=True, capture_output=True
    )
    return cubin_file.read_bytes()


def listing_of(cubin: bytes, folder: Path, name: str) -> str:
    path = folder / f"{name}.cubin"
    path.write_bytes(cubin)
    return subprocess.run([tool("nvdisasm"), "-c", "-hex", path], check=True, capture_output=True, text=True).stdout


@dataclass
class Program:
    """A loaded cubin."""

    cubin: bytes
    listing: str
    module: Any

    @classmethod
    def load(cls, cubin: bytes, listing: str) -> Program:
        return cls(cubin, listing, _emulator.Module(cubin, listing))

    def run(
        self,
        kernel: str,
        grid: int | tuple[int, ...],
        block: int | tuple[int, ...],
        *arguments: Any,
        outputs: tuple[int, ...] = (),
        **options: Any,
    ) -> dict[str, Any]:
        """Launches with arrays as pointers and numpy scalars by value. Arrays whose position is in `outputs` may be
        written; the others are read-only to the kernel."""
        blob, buffers = b"", []
        for position, argument in enumerate(arguments):
            if isinstance(argument, np.ndarray):
                value = struct.pack("<Q", argument.ctypes.data)
                buffers.append((f"argument {position}", argument, position in outputs))
            else:
                value = argument.tobytes()
            blob += b"\0" * (-len(blob) % len(value)) + value
        return self.module.launch(kernel, grid, block, blob, buffers, **options)


class Compiler:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: dict[str, Program] = {}

    def __call__(self, name: str) -> Program:
        if name not in self._programs:
            cubin = to_cubin(to_ptx((KERNELS / f"{name}.cu").read_text()), self.folder, name)
            self._programs[name] = Program.load(cubin, listing_of(cubin, self.folder, name))
        return self._programs[name]
