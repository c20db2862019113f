"""The build: what it refuses, what it writes, and that it writes the same bytes anywhere."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sm70_kernels import _native
from sm70_kernels.build import graph, manifest, ptx, settings, toolchain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def built() -> dict[str, Any]:
    """The manifest of this checkout's build."""
    path = settings.PACKAGE / settings.LIBRARY_FOLDER / settings.MANIFEST_NAME
    if not path.is_file():
        pytest.fail("nothing is built: scripts/nox -s build")
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def run_build(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sm70_kernels.build", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources in another folder, not built."""
    checkout = tmp_path_factory.mktemp("elsewhere") / "a checkout of another name".replace(" ", "-")
    checkout.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "lib", "*.so")
    for name in ("csrc", "sm70_kernels"):
        shutil.copytree(ROOT / name, checkout / name, ignore=ignore)
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(ROOT / name, checkout)
    for path in checkout.rglob("*"):  # a checkout of another day
        os.utime(path, (1_000_000_000, 1_000_000_000))
    return checkout


@pytest.mark.slow
@pytest.mark.timeout(900)  # builds everything once more, about a minute on two idle cores
def test_same_bytes_in_another_folder_then_one_operator_at_a_time(elsewhere: Path, built: dict[str, Any]) -> None:
    done = run_build(elsewhere)
    assert done.returncode == 0, done.stdout + done.stderr
    there = json.loads((elsewhere / "sm70_kernels" / "lib" / "manifest.json").read_text())
    for key in ("commit", "dirty"):
        there.pop(key), built.pop(key)
    assert there == built
    for entry in (*built["operators"].values(), built["emulator"], built["interpreter_module"]):
        assert manifest.sha256(elsewhere / entry["path"]) == entry["sha256"]
    for operator in built["operators"]:
        for name in ("kernel.ptx", "kernel.cubin", "kernel.sass"):
            path = Path(graph.operator_folder(operator)) / name
            assert (elsewhere / path).read_bytes() == (ROOT / path).read_bytes(), path

    assert "NVRTC" not in run_build(elsewhere).stdout, "a second build did something"

    library = elsewhere / built["operators"]["kv_cache"]["path"]
    for damage in (library.read_bytes()[:-1000], library.read_bytes().replace(b"want stride 1", b"want stride 2")):
        library.write_bytes(damage)
        assert run_build(elsewhere).returncode == 0
        assert manifest.sha256(library) == built["operators"]["kv_cache"]["sha256"], "a damaged library was kept"

    os.utime(elsewhere / "csrc" / "ops" / "kv_cache" / "gather.cuh")
    start = time.monotonic()
    again = run_build(elsewhere)
    assert again.stdout.count("NVRTC") == 1 and "op.cpp" not in again.stdout, again.stdout
    assert time.monotonic() - start < 30

    (elsewhere / "sm70_kernels" / "lib" / "libsm70_removed_operator.so").touch()
    (elsewhere / "csrc" / "ops" / "kv_cache" / "kernel.cu").write_text("this is not CUDA\n")
    failed = run_build(elsewhere)
    assert failed.returncode == 1 and "NVRTC could not compile csrc/ops/kv_cache/kernel.cu" in failed.stdout
    assert not (elsewhere / "sm70_kernels" / "lib" / "libsm70_removed_operator.so").exists()


@pytest.mark.parametrize("value", ["8.0", "7.0;8.0", "7.0+PTX", ""])
def test_another_architecture_list_is_refused(value: str) -> None:
    done = run_build(ROOT, TORCH_CUDA_ARCH_LIST=value)
    assert done.returncode == 1 and "TORCH_CUDA_ARCH_LIST" in done.stderr and "unset the variable" in done.stderr


def test_the_right_architecture_list_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.0")
    settings.refuse_other_architectures()


def fake_compiler(folder: Path, banner: str, version: str) -> str:
    path = folder / "fake-g++"
    path.write_text(f'#!/bin/sh\ncase "$1" in --version) echo "{banner}";; *) echo "{version}";; esac\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("banner,version", [("g++ (GCC) 13.2.0", "13.2.0"), ("clang version 12.0.1", "12.0.1")])
def test_another_compiler_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, banner: str, version: str
) -> None:
    monkeypatch.setenv("SM70_KERNELS_CXX", fake_compiler(tmp_path, banner, version))
    with pytest.raises(
        settings.BuildError, match=r"want GCC 12. Install g\+\+-12, or set SM70_KERNELS_ALLOW_ANY_GCC=1"
    ):
        toolchain.find()
    monkeypatch.setenv("SM70_KERNELS_ALLOW_ANY_GCC", "1")
    assert toolchain.find().versions["gcc"] == version


def test_missing_compiler_and_unknown_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM70_KERNELS_CXX", "no-such-compiler")
    with pytest.raises(settings.BuildError, match=r"apt-get install g\+\+-12"):
        toolchain.find()
    monkeypatch.delenv("SM70_KERNELS_CXX")
    for name, value, message in (("ALLOW_JTI", "1", "unknown name"), ("ALLOW_ANY_GCC", "yes", "want '0' or '1'")):
        done = run_build(ROOT, **{f"SM70_KERNELS_{name}": value})
        assert done.returncode == 1 and message in done.stderr, done.stderr


def test_extension_suffix_is_the_interpreters_own(built: dict[str, Any]) -> None:
    import sysconfig

    assert built["interpreter_module"]["path"] == f"sm70_kernels/_emulator{sysconfig.get_config_var('EXT_SUFFIX')}"
    from sm70_kernels import _emulator

    assert isinstance(_emulator.version(), (int, str))


def test_manifest_is_complete_and_says_nothing_of_this_machine(built: dict[str, Any]) -> None:
    text = json.dumps(built)
    for place in (str(ROOT), sys.prefix, str(Path.home()), os.uname().nodename):
        assert place not in text, place
    assert built["architectures"] == ["7.0"]
    assert set(built["operators"]) == set(settings.operators())
    for name, entry in built["operators"].items():
        assert entry["sha256"] == manifest.sha256(ROOT / entry["path"])
        assert entry["commands"] and entry["capability_revision"] >= 1
        for kernel, used in entry["kernels"].items():
            assert kernel.startswith(name)
            assert used["registers"] <= 255 and used["spill_store_bytes"] == used["spill_load_bytes"] == 0, kernel
    for source, digest in built["sources"].items():
        assert manifest.sha256(ROOT / source) == digest, f"{source} changed since the build"
    for wheel in ("torch", "triton", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12", "pybind11", "ninja"):
        assert built["locked_wheels"][wheel]["wheels"]


def test_libraries_are_relocatable(built: dict[str, Any]) -> None:
    for entry in (*built["operators"].values(), built["emulator"], built["interpreter_module"]):
        content = (ROOT / entry["path"]).read_bytes()
        for place in (str(ROOT), sys.prefix, str(Path.home())):
            assert place.encode() not in content, f"{entry['path']} holds {place}"
        dynamic = subprocess.run(
            ["readelf", "-d", ROOT / entry["path"]], capture_output=True, text=True, check=True
        ).stdout
        assert "RPATH" not in dynamic and "RUNPATH" not in dynamic


def test_library_carries_what_was_built(built: dict[str, Any]) -> None:
    import hashlib

    from sm70_kernels.ops import kv_cache

    entry = built["operators"]["kv_cache"]
    library = kv_cache.library
    assert hashlib.sha256(library.cubin()).hexdigest() == entry["cubin_sha256"]
    assert hashlib.sha256(library.ptx()).hexdigest() == entry["ptx_sha256"]
    assert library.build_facts["architectures"] == ["7.0"]
    assert library.build_facts["compilers"]["nvrtc"] == "12.8.93"
    assert library.capability_revision == kv_cache.CAPABILITY_REVISION
    handle = ctypes.CDLL(str(library.path))
    assert handle.sm70_kernels_capability_revision() == library.capability_revision


def test_exports_are_the_listed_ones_only(built: dict[str, Any]) -> None:
    for entry in built["operators"].values():
        command = ["nm", "-D", "--defined-only", "--format=posix", ROOT / entry["path"]]
        symbols = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        ours = {line.split()[0] for line in symbols.splitlines() if " V " not in line and " u " not in line}
        strangers = {name for name in ours if not name.startswith("sm70_kernels_") and "torch" not in name}
        strangers = {name for name in strangers if not re.match(r"_ZN?K?(St|S[abiosd]|9__gnu)", name)}
        assert not strangers


def load_in_subprocess(package: Path, code: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=package.parent, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def package_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    package = tmp_path_factory.mktemp("site") / "sm70_kernels"
    shutil.copytree(ROOT / "sm70_kernels", package, ignore=shutil.ignore_patterns("__pycache__"))
    return package


def test_stale_missing_and_foreign_libraries_are_refused(package_copy: Path) -> None:
    library = package_copy / "lib" / "libsm70_kv_cache.so"
    original = library.read_bytes()
    code = """
import sys
try:
    import sm70_kernels.ops
except ImportError as error:
    print(error)
    torch = sys.modules.get("torch")
    print("registered:", torch is not None and hasattr(torch.ops.sm70_kernels, "write_paged_kv"))
"""
    stale = original.replace(b"sm70_kernels capability revision 1", b"sm70_kernels capability revision 0")
    cases = {
        "stale": (stale, "capability revision 0, this Python code wants 1. Rebuild"),
        "foreign": (b"not a library" * 100, "is cut short, or no library at all. Rebuild"),
        "no revision": (original.replace(b"capability revision", b"another text here!!"), "capability revision None"),
        "truncated": (original[: len(original) // 2], "is cut short, or no library at all. Rebuild"),
        "missing": (None, "is missing. Rebuild"),
    }
    try:
        for name, (content, message) in cases.items():
            if content is None:
                library.unlink()
            else:
                library.write_bytes(content)
            done = load_in_subprocess(package_copy, code)
            assert message in done.stdout and str(library) in done.stdout, (name, done.stdout, done.stderr)
            assert "registered: False" in done.stdout, name
    finally:
        library.write_bytes(original)
    assert load_in_subprocess(package_copy, code).stdout == ""


def test_import_is_light_and_needs_no_driver(package_copy: Path) -> None:
    code = """
import sys, time
import sm70_kernels
assert "torch" not in sys.modules
import torch
start = time.perf_counter()
import sm70_kernels.ops
seconds = time.perf_counter() - start
assert seconds <= 0.3, seconds
assert not torch.cuda.is_initialized()
assert callable(sm70_kernels.ops.kv_cache.gather_paged_kv)
"""
    done = load_in_subprocess(package_copy, code)
    assert done.returncode == 0, done.stderr


def test_ptx_paths_must_be_known() -> None:
    text = '\t.file\t1 "/there/csrc/ops/a.cu"\n\t.file\t2 "/env/include/cuda_fp16.hpp"\n'
    roots = {"/there": "", "/env/include": "cuda"}
    assert ptx.relocate(text, roots) == '\t.file\t1 "csrc/ops/a.cu", 1, 1\n\t.file\t2 "cuda/cuda_fp16.hpp", 1, 1\n'
    with pytest.raises(settings.BuildError, match="would not be reproducible"):
        ptx.relocate('\t.file\t1 "/elsewhere/a.cu"\n', roots)


def test_revision_in_file(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(b"...sm70_kernels capability revision 12\0...")
    assert _native.revision_in_file(path) == 12
    path.write_bytes(b"nothing")
    assert _native.revision_in_file(path) is None
