"""Who may know whom in csrc/: read off the includes (csrc/README.md has the table)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"

#: Folder pattern -> what its files may include, as regular expressions on the name between quotes or brackets.
STANDARD = r"[a-z_0-9]+|sys/[a-z]+\.h|[a-z]+\.h"  # <vector>, <sys/mman.h>, <dlfcn.h>
KERNEL = [r"device/.+", r"cuda_fp16\.h", "cstdint"]
DATA = r"device/[a-z_0-9]+\.h"  # plain data and integer arithmetic, for kernels and host alike
HOST = [STANDARD, r"torch/(csrc/stable|headeronly)/.+", r"runtime/.+", DATA]
#: An operator for tests may be another build of an operator's kernels, called like it.
VARIED = [r"ops/[^/]+/(params\.h|.+\.cuh)"]
CALLED = [r"ops/[^/]+/call\.h"]
ALLOWED = {
    r"device/.*": KERNEL,
    r"ops/(?P<op>[^/]+)/(params\.h|.*\.cuh|kernel\.cu)": [*KERNEL, r"ops/{op}/(params\.h|.+\.cuh)"],
    r"test_ops/(?P<op>[^/]+)/(params\.h|.*\.cuh|kernel\.cu)": [
        *KERNEL, *VARIED, r"test_ops/{op}/(params\.h|.+\.cuh)",
    ],
    r"ops/(?P<op>[^/]+)/call\.h": [*HOST, r"ops/{op}/[a-z_]+\.h"],
    r"(ops|test_ops)/(?P<op>[^/]+)/(?!params|call)[a-z_]+\.h": [
        STANDARD, DATA, r"(ops|test_ops)/{op}/params\.h",
    ],
    r"ops/(?P<op>[^/]+)/op\.cpp": [*HOST, r"ops/{op}/[a-z_]+\.h"],
    r"test_ops/(?P<op>[^/]+)/op\.cpp": [*HOST, *VARIED, *CALLED, r"test_ops/{op}/[a-z_]+\.h"],
    r"runtime/.*": [
        STANDARD, DATA, r"cuda\.h", r"runtime/.+", r"emulator/api\.h",
        r"torch/(csrc/stable|headeronly|csrc/inductor/aoti_torch/c)/.+",
    ],
    r"emulator/.*": [STANDARD, r"emulator/.+"],  # of those who watch it, only its own observer.h
    r"instruments/.*": [STANDARD, r"emulator/.+", r"instruments/.+"],
    r"bindings/.*": [STANDARD, r"pybind11/.+", r"(emulator|instruments|bindings)/.+"],
}  # fmt: skip


def sources() -> list[Path]:
    return sorted(path for path in CSRC.rglob("*") if path.suffix in {".h", ".cuh", ".cu", ".cpp", ".inl"})


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(CSRC)))
def test_includes(path: Path) -> None:
    name = str(path.relative_to(CSRC))
    rules = [(match, allowed) for pattern, allowed in ALLOWED.items() if (match := re.fullmatch(pattern, name))]
    assert len(rules) == 1, f"{name}: no rule, or several, say what it may include"
    match, allowed = rules[0]
    patterns = [pattern.replace("{op}", match.groupdict().get("op", "")) for pattern in allowed]
    for included in re.findall(r'^\s*#\s*include\s+["<]([^">]+)[">]', path.read_text(), re.MULTILINE):
        assert any(re.fullmatch(pattern, included) for pattern in patterns), f"{name} may not include {included}"


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(CSRC)))
def test_own_files_are_named_from_csrc(path: Path) -> None:
    for included in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
        assert (CSRC / included).is_file(), f'{path.relative_to(CSRC)}: "{included}" is no path from csrc/'


def test_every_operator_has_its_modules() -> None:
    root = CSRC.parent
    for folder in sorted((CSRC / "ops").iterdir()):
        for wanted in (f"sm70_kernels/ops/{folder.name}.py", f"benchmarks/bench_{folder.name}.py"):
            assert (root / wanted).is_file(), f"operator {folder.name}: {wanted} is missing"
        assert list((root / "tests" / "ops").glob(f"test_{folder.name}*.py")), f"operator {folder.name} has no tests"
        assert f"## {folder.name}" in (root / "docs" / "operators.md").read_text(), f"{folder.name}: no contract"


@pytest.mark.parametrize("folder", ["ops", "attention"])
def test_product_does_not_import_the_laboratory(folder: str) -> None:
    laboratory = re.compile(r"^\s*(?:from|import) sm70_kernels(?:\.| import .*\b)lab\b", re.MULTILINE)
    for path in sorted((CSRC.parent / "sm70_kernels" / folder).rglob("*.py")):
        assert not laboratory.search(path.read_text()), f"{folder}/{path.name} imports sm70_kernels.lab"
