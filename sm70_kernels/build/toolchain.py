"""Finds the compilers and headers that the lock file pins, and the host's GCC 12."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels import _variables
from sm70_kernels.build.settings import GCC_MAJOR, BuildError

#: Distributions whose files take part in the build; their locked hashes go into the manifest.
BUILD_DISTRIBUTIONS = (
    "ninja",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime-cu12",
    "pybind11",
    "torch",
    "triton",
)


@dataclass(frozen=True)
class Toolchain:
    """Absolute paths of everything the build calls or includes, and the versions that were found."""

    python: Path
    nvrtc: Path
    cuda_include: Path
    ptxas: Path
    nvdisasm: Path
    cuobjdump: Path
    cxx: Path
    ninja: Path
    torch_include: Path
    torch_lib: Path
    pybind11_include: Path
    python_include: Path
    extension_suffix: str
    versions: dict[str, str]

    def include_roots(self) -> dict[str, Path]:
        """Every include root outside the checkout -> the name it gets in debug information and ``__FILE__``."""
        return {
            "cuda": self.cuda_include,
            "torch": self.torch_include,
            "pybind11": self.pybind11_include,
            "python": self.python_include,
        }


def package_folder(module: str, distribution: str) -> Path:
    """Folder of an installed Python package. Raises BuildError that names the distribution to install."""
    spec = importlib.util.find_spec(module)
    locations = list(spec.submodule_search_locations or []) if spec else []
    if not locations:
        raise BuildError(
            f"the build needs the Python package {distribution!r} beside {sys.executable}, which does not have it. "
            "Run the build through scripts/nox, or 'uv sync --locked --group build'"
        )
    return Path(locations[0])


def _existing(path: Path, distribution: str) -> Path:
    if not path.exists():
        raise BuildError(f"{path.name} is not where {distribution!r} puts it: reinstall {distribution!r} from uv.lock")
    return path


def _output(*command: str | Path) -> str:
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def _find_cxx() -> tuple[Path, str]:
    name = _variables.text("CXX", f"g++-{GCC_MAJOR}")
    path = shutil.which(name)
    if path is None:
        raise BuildError(
            f"the C++ compiler {name!r} was not found. Install it (Debian, Ubuntu: apt-get install g++-{GCC_MAJOR}), "
            f"or name another one in {_variables.PREFIX}CXX"
        )
    version = _output(path, "-dumpfullversion", "-dumpversion").strip()
    banner = _output(path, "--version").splitlines()[0]
    is_gcc = "clang" not in banner.lower() and re.match(r"\d+", version) is not None
    wanted = is_gcc and int(version.split(".")[0]) == GCC_MAJOR
    if not wanted and not _variables.flag("ALLOW_ANY_GCC"):
        raise BuildError(
            f"the C++ compiler {name!r}: got {banner!r}, want GCC {GCC_MAJOR}. Install g++-{GCC_MAJOR}, or set "
            f"{_variables.PREFIX}ALLOW_ANY_GCC=1 to build with it (the manifest records it; hashes will differ)"
        )
    return Path(path), version


def _tool_version(tool: Path) -> str:
    found = re.search(r"V(\d+\.\d+\.\d+)", _output(tool, "--version"))
    if found is None:
        raise BuildError(f"{tool.name} --version prints no version: reinstall 'triton' from uv.lock")
    return found.group(1)


def find() -> Toolchain:
    """Find everything, or raise BuildError with what is missing and how to get it."""
    nvidia_nvrtc = package_folder("nvidia.cuda_nvrtc", "nvidia-cuda-nvrtc-cu12")
    nvidia_runtime = package_folder("nvidia.cuda_runtime", "nvidia-cuda-runtime-cu12")
    triton_bin = package_folder("triton", "triton") / "backends" / "nvidia" / "bin"
    torch = package_folder("torch", "torch")
    pybind11 = package_folder("pybind11", "pybind11")
    ninja = shutil.which("ninja", path=str(Path(sys.executable).parent)) or shutil.which("ninja")
    if ninja is None:
        raise BuildError("ninja was not found: run the build through scripts/nox, or 'uv sync --locked --group build'")
    python_include = Path(sysconfig.get_path("include"))
    if not (python_include / "Python.h").is_file():
        raise BuildError(
            f"Python.h was not found in {python_include}: install this Python's headers (Debian, Ubuntu: apt-get "
            "install python3-dev)"
        )
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    if not isinstance(suffix, str) or not suffix:
        raise BuildError(f"{sys.executable} has no EXT_SUFFIX: use CPython 3.11 or newer")
    cxx, gcc_version = _find_cxx()
    ptxas = _existing(triton_bin / "ptxas", "triton")
    nvdisasm = _existing(triton_bin / "nvdisasm", "triton")
    cuobjdump = _existing(triton_bin / "cuobjdump", "triton")
    versions = {name: importlib.metadata.version(name) for name in BUILD_DISTRIBUTIONS}
    versions |= {
        "python": ".".join(map(str, sys.version_info[:3])),
        "gcc": gcc_version,
        "nvrtc": importlib.metadata.version("nvidia-cuda-nvrtc-cu12"),
        "ptxas": _tool_version(ptxas),
        "nvdisasm": _tool_version(nvdisasm),
        "cuobjdump": _tool_version(cuobjdump),
    }
    return Toolchain(
        python=Path(sys.executable),
        nvrtc=_existing(nvidia_nvrtc / "lib" / "libnvrtc.so.12", "nvidia-cuda-nvrtc-cu12"),
        cuda_include=_existing(nvidia_runtime / "include", "nvidia-cuda-runtime-cu12"),
        ptxas=ptxas,
        nvdisasm=nvdisasm,
        cuobjdump=cuobjdump,
        cxx=cxx,
        ninja=Path(ninja),
        torch_include=_existing(torch / "include", "torch"),
        torch_lib=_existing(torch / "lib", "torch"),
        pybind11_include=_existing(pybind11 / "include", "pybind11"),
        python_include=python_include,
        extension_suffix=suffix,
        versions=versions,
    )
