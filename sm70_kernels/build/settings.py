"""What every build shares: the one architecture, the flags, the folders, the operators."""

from __future__ import annotations

import os
from pathlib import Path

#: The one architecture of this distribution. Not a setting.
ARCHITECTURES = ("7.0",)
SM = "sm_70"
VIRTUAL = "compute_70"

GCC_MAJOR = 12

#: The version of torch's stable ABI that the DSOs are compiled against: they load in 2.10 and every later torch.
TORCH_TARGET_VERSION = "0x020a000000000000"

NVRTC_FLAGS = (f"--gpu-architecture={VIRTUAL}", "-std=c++17", "-lineinfo", "-default-device")
PTXAS_FLAGS = (f"-arch={SM}", "-lineinfo", "-v", "--warn-on-spills")
CXX_FLAGS = (
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-ffp-contract=off",
    "-Wall",
    "-Wextra",
    "-Werror",
    f"-DTORCH_TARGET_VERSION={TORCH_TARGET_VERSION}",
    "-DUSE_CUDA",
)
#: -O3 makes the emulator's loops faster; it comes after CXX_FLAGS' -O2 and wins.
EMULATOR_FLAGS = ("-O3", "-fno-fast-math")
LINK_FLAGS = ("-shared", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now", "-Wl,--gc-sections")

PACKAGE = Path(__file__).resolve().parent.parent
#: The checkout or unpacked sdist that holds csrc/. Meaningless in an installed wheel.
ROOT = PACKAGE.parent
CSRC = ROOT / "csrc"
BUILD = ROOT / "build"
#: Files in csrc/ that nothing built depends on: documentation and budgets.
NOT_SOURCES = (".md", ".json")
#: Built libraries and their manifest, inside the package.
LIBRARY_FOLDER = "lib"
MANIFEST_NAME = "manifest.json"


class BuildError(RuntimeError):
    """The build can't continue: the message says what was found, what is wanted and what to do."""


def library_name(operator: str) -> str:
    """File name of an operator's DSO. It has no Python or torch tag: the stable ABI needs none."""
    return f"libsm70_{operator}.so"


def operators(csrc: Path = CSRC, kind: str = "ops") -> list[str]:
    """Names of the operators: the folders of csrc/ops, sorted. ``kind="test_ops"``: those that only tests use."""
    folder = csrc / kind
    if not folder.is_dir():
        raise BuildError(f"no source folder {folder}: run the build in a checkout or an unpacked sdist")
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())
    for name in names:
        for required in ("params.h", "kernel.cu", "op.cpp"):
            if not (folder / name / required).is_file():
                raise BuildError(f"operator csrc/{kind}/{name}: {required} is missing. CONTRIBUTING.md lists the files")
    return names


def refuse_other_architectures() -> None:
    """TORCH_CUDA_ARCH_LIST, which other builds read, must not ask for something that will not be built."""
    value = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if value is None:
        return
    asked = [part for part in value.replace(";", " ").replace(",", " ").split() if part]
    if asked != list(ARCHITECTURES):
        raise BuildError(
            f"environment variable TORCH_CUDA_ARCH_LIST: got {value!r}, want '7.0' or unset. This distribution is "
            "built for V100 (7.0) only; unset the variable"
        )
