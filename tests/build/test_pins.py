"""The lock file, the build requirements and what is installed say the same."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def locked() -> dict[str, dict[str, Any]]:
    return {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}


def test_build_requirements_are_pinned_to_the_lock() -> None:
    packages = locked()
    for requirement in PROJECT["build-system"]["requires"]:
        match = re.fullmatch(r"([a-z0-9-]+)==([0-9.]+)", requirement)
        assert match, f"build requirement {requirement!r} is not pinned with =="
        assert packages[match[1]]["version"] == match[2], f"{requirement} differs from uv.lock"


def test_every_locked_file_has_a_hash_and_a_public_address() -> None:
    for name, package in locked().items():
        if "virtual" in package["source"] or "editable" in package["source"]:
            continue
        files = [*package.get("wheels", []), *([package["sdist"]] if "sdist" in package else [])]
        assert files, name
        for file in files:
            assert file["hash"].startswith("sha256:"), name
            assert file["url"].startswith("https://files.pythonhosted.org/"), file["url"]


def test_the_device_toolchain_is_cuda_12_8() -> None:
    packages = locked()
    assert packages["torch"]["version"] == "2.10.0"
    assert packages["nvidia-cuda-nvrtc-cu12"]["version"] == "12.8.93"
    assert not [name for name in packages if name.startswith("nvidia-") and "cu13" in name]


def test_version_is_said_once() -> None:
    import sm70_kernels

    assert PROJECT["project"]["version"] == sm70_kernels.__version__


def test_installed_build_tools_are_the_locked_ones() -> None:
    packages = locked()
    for name in ("ninja", "pybind11", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "triton"):
        assert importlib.metadata.version(name) == packages[name]["version"], name
