"""The build manifest: what was built, from what, by which commands, with which compilers.

It is beside the DSOs (``sm70_kernels/lib/manifest.json``) and holds no time, absolute path or host name: two builds of
one commit write the same bytes. Only the entry of the interpreter module depends on the Python version.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

from sm70_kernels import __version__, _native
from sm70_kernels.build import graph, machine_code
from sm70_kernels.build.settings import (
    ARCHITECTURES,
    CSRC,
    LIBRARY_FOLDER,
    MANIFEST_NAME,
    NOT_SOURCES,
    PACKAGE,
    ROOT,
    operators,
)
from sm70_kernels.build.toolchain import BUILD_DISTRIBUTIONS, Toolchain

SCHEMA_VERSION = 1

#: The file at the root of an sdist that says which commit it was made from (scripts/hatch_sdist.py writes it).
SOURCE_RECORD = "source.json"


def sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def resources(text: str) -> dict[str, dict[str, int]]:
    """Kernel -> registers and bytes, from ``cuobjdump -res-usage``."""
    names = {"REG": "registers", "STACK": "stack_bytes", "SHARED": "shared_bytes", "LOCAL": "local_bytes"}
    found: dict[str, dict[str, int]] = {}
    for kernel, usage in re.findall(r"^\s*Function (\S+):\s*\n\s*(.*)$", text, re.MULTILINE):
        values = dict(re.findall(r"([A-Z]+(?:\[\d+\])?):(\d+)", usage))
        found[kernel] = {name: int(values[key]) for key, name in names.items()}
    return dict(sorted(found.items()))


def spills(log: str) -> dict[str, dict[str, int]]:
    """Kernel -> bytes of spill stores and loads, from ``ptxas -v``."""
    pattern = r"Function properties for (\S+)\s*\n.*?(\d+) bytes spill stores, (\d+) bytes spill loads"
    return {
        kernel: {"spill_store_bytes": int(stores), "spill_load_bytes": int(loads)}
        for kernel, stores, loads in re.findall(pattern, log)
    }


def source_record(root: Path = ROOT) -> dict[str, Any]:
    """The commit, its time, and whether tracked or new files outside results/ differ from it.

    An unpacked sdist has no git: there they are what was recorded when it was made. Anywhere else they are None.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")).resolve() == root.resolve():
            commit, seconds = git("log", "-1", "--format=%H %ct").split()
            dirty = bool(git("status", "--porcelain", "--", ".", ":!results"))
            return {"commit": commit, "commit_time": int(seconds), "dirty": dirty}
    except (OSError, subprocess.CalledProcessError):
        pass
    if (root / SOURCE_RECORD).is_file():
        record: dict[str, Any] = json.loads((root / SOURCE_RECORD).read_text())
        return record
    return {"commit": None, "commit_time": None, "dirty": None}


def git_state(root: Path = ROOT) -> dict[str, Any]:
    """The commit, and whether the sources differ from it, from :func:`source_record`."""
    record = source_record(root)
    return {"commit": record["commit"], "dirty": record["dirty"]}


def locked_wheels(lock: Path = ROOT / "uv.lock") -> dict[str, dict[str, Any]]:
    """Name -> version and hashes of the locked wheels that take part in the build."""
    if not lock.is_file():
        return {}
    wanted = {}
    for package in tomllib.loads(lock.read_text())["package"]:
        if package["name"] in BUILD_DISTRIBUTIONS:
            hashes = sorted(wheel["hash"] for wheel in package.get("wheels", []))
            wanted[package["name"]] = {"version": package["version"], "wheels": hashes}
    return wanted


def _commands(toolchain: Toolchain, target: str) -> list[str]:
    """The exact commands ninja runs for a target, with the places that differ between machines replaced by names."""
    text = subprocess.run(
        [str(toolchain.ninja), "-f", "build/build.ninja", "-t", "commands", target],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    places = {
        str(toolchain.nvrtc.parent.parent): "$NVRTC",
        str(toolchain.cuda_include): "$CUDA_INCLUDE",
        str(toolchain.ptxas.parent): "$DEVICE_TOOLS",
        str(toolchain.torch_include): "$TORCH_INCLUDE",
        str(toolchain.torch_lib): "$TORCH_LIB",
        str(toolchain.pybind11_include): "$PYBIND11_INCLUDE",
        str(toolchain.python_include): "$PYTHON_INCLUDE",
        str(toolchain.python): "$PYTHON",
        str(toolchain.cxx): "$CXX",
        str(ROOT): "$ROOT",
    }
    for path, name in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(path, name)
    return text.splitlines()


def _operator_entry(operator: str, toolchain: Toolchain) -> dict[str, Any]:
    folder = ROOT / graph.operator_folder(operator)
    library = PACKAGE.parent / graph.installed_library(operator)
    kernels = resources((folder / "resources.txt").read_text())
    for kernel, bytes_spilled in spills((folder / "kernel.cubin.log").read_text()).items():
        kernels[kernel] |= bytes_spilled
    code = machine_code.of_kernels((folder / "kernel.cubin").read_bytes())
    return {
        "path": graph.installed_library(operator),
        "sha256": sha256(library),
        "cubin_sha256": sha256(folder / "kernel.cubin"),
        "ptx_sha256": sha256(folder / "kernel.ptx"),
        "machine_code_sha256": machine_code.combined(code),
        "ptx_instructions_sha256": machine_code.of_ptx((folder / "kernel.ptx").read_bytes()),
        "machine_code": code,
        "sass_sha256": sha256(folder / "kernel.sass"),
        "capability_revision": _native.revision_in_file(library),
        "kernels": kernels,
        "commands": _commands(toolchain, f"ops/{operator}"),
    }


def _file_entry(path: str, toolchain: Toolchain, target: str) -> dict[str, Any]:
    return {"path": path, "sha256": sha256(ROOT / path), "commands": _commands(toolchain, target)}


def source_files() -> list[Path]:
    """Every file of the checkout that the built files depend on, sorted."""
    sources = [path for path in CSRC.rglob("*") if path.is_file() and path.suffix not in NOT_SOURCES]
    return sorted([*sources, *(PACKAGE / "build").glob("*.py")])


def compose(toolchain: Toolchain) -> dict[str, Any]:
    """The manifest of what lies built in the checkout."""
    return {
        "schema_version": SCHEMA_VERSION,
        "package_version": __version__,
        "architectures": list(ARCHITECTURES),
        **git_state(),
        "operators": {name: _operator_entry(name, toolchain) for name in operators()},
        "emulator": _file_entry(graph.installed_emulator(), toolchain, "emulator"),
        "interpreter_module": _file_entry(graph.installed_module(toolchain), toolchain, "interpreter"),
        "sources": {str(path.relative_to(ROOT)): sha256(path) for path in source_files()},
        "versions": dict(sorted(toolchain.versions.items())),
        "locked_wheels": locked_wheels(),
    }


def write(toolchain: Toolchain) -> Path:
    """Write the manifest beside the DSOs and return its path."""
    path = PACKAGE / LIBRARY_FOLDER / MANIFEST_NAME
    text = json.dumps(compose(toolchain), indent=1, sort_keys=True) + "\n"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text)
    temporary.replace(path)
    return path
