"""What tests may import: helpers are modules of their own, so that a test module can change alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted([*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])


def imported_modules(path: Path) -> list[str]:
    """Every module that the file's import statements may name, at any depth."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            names += [source, *(f"{source}.{alias.name}" for alias in node.names)]
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_test_module_is_imported(path: Path) -> None:
    """Not by code that tests start in another process either, which is text here."""
    tests = {other.stem for other in MODULES if other.name.startswith("test_")}
    found = [name for name in imported_modules(path) if name.split(".")[-1] in tests]
    assert not found, f"{path.relative_to(ROOT)} imports {found[0]}: move what it needs into a module of helpers"
