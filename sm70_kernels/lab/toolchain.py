"""CUDA source to PTX to sm_70 machine code to its listing, with the tools of the installed wheels.

NVRTC and the CUDA headers come with torch, ptxas and nvdisasm with Triton. They are the tools that build this package's
own kernels, so no CUDA toolkit has to be installed.
"""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from sm70_kernels.build.ptx import Nvrtc, warnings
from sm70_kernels.build.settings import BuildError
from sm70_kernels.lab.errors import CompileError, LabError


def _package(name: str, distribution: str) -> Path:
    from sm70_kernels.build.toolchain import package_folder

    try:
        return package_folder(name, distribution)
    except BuildError as error:
        raise LabError(
            f"the laboratory's tools: got no Python package {distribution!r}, want the one that torch installs. "
            f"Run 'pip install {distribution}'"
        ) from error


def tool(name: str) -> Path:
    """Path of ``ptxas``, ``nvdisasm`` or ``cuobjdump``, from the Triton wheel."""
    path = _package("triton", "triton") / "backends" / "nvidia" / "bin" / name
    if not path.is_file():
        raise LabError(f"tool: got {name!r}, which is not in {path.parent}. Reinstall 'triton'")
    return path


def cuda_include() -> Path:
    """The folder of CUDA's headers: ``cuda_fp16.h``, ``mma.h`` and so on."""
    return _package("nvidia.cuda_runtime", "nvidia-cuda-runtime-cu12") / "include"


@functools.cache
def _nvrtc() -> Nvrtc:
    library = _package("nvidia.cuda_nvrtc", "nvidia-cuda-nvrtc-cu12") / "lib" / "libnvrtc.so.12"
    try:
        return Nvrtc(library)
    except OSError as error:
        raise LabError(f"NVRTC: {library} can't be loaded ({error}). Reinstall 'nvidia-cuda-nvrtc-cu12'") from error


def compile_to_ptx(
    source: str,
    name: str = "kernel.cu",
    *,
    include: Sequence[Path | str] = (),
    defines: Mapping[str, object] | None = None,
    options: Sequence[str] = (),
) -> tuple[str, str]:
    """PTX of a CUDA source for compute_70, with source lines, and NVRTC's warnings.

    Raises:
        CompileError: it does not compile; the message holds NVRTC's log.
    """
    folders = [f"-I{folder}" for folder in (*include, cuda_include())]
    macros = [f"-D{macro}={value}" for macro, value in (defines or {}).items()]
    standard = [] if any(option.startswith(("-std", "--std")) for option in options) else ["-std=c++17"]
    try:
        ptx, log = _nvrtc().compile(
            source, name, ["-arch=compute_70", *standard, "-lineinfo", *folders, *macros, *options]
        )
    except BuildError as error:
        raise CompileError(f"compile: {error}") from error
    # NVRTC writes the working folder before a relative name.
    ptx = ptx.replace(f'"{Path.cwd()}/{name}"', f'"{name}"')
    return ptx, "\n".join(warnings(log))


def _run(command: Sequence[Path | str], what: str) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CompileError(f"{what} did not take its input:\n{(done.stderr or done.stdout).strip()}")
    return done.stdout


def assemble(ptx: str) -> bytes:
    """The sm_70 cubin that ptxas makes of PTX, with its source lines.

    Raises:
        CompileError: ptxas refused it; the message holds what it said.
    """
    with tempfile.TemporaryDirectory() as name:
        ptx_file, cubin_file = Path(name, "kernel.ptx"), Path(name, "kernel.cubin")
        ptx_file.write_text(ptx)
        _run([tool("ptxas"), "-arch=sm_70", "-lineinfo", "-o", cubin_file, ptx_file], "ptxas")
        return cubin_file.read_bytes()


def disassemble(cubin: bytes, *options: str) -> str:
    """The listing of a cubin (``nvdisasm -c -hex``), which the emulator needs beside the machine code.

    Raises:
        CompileError: nvdisasm refused it; the message holds what it said.
    """
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "kernel.cubin")
        path.write_bytes(cubin)
        return _run([tool("nvdisasm"), "-c", "-hex", *options, path], "nvdisasm")
