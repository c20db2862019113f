"""What the command line runs on the emulated V100: a script, or a row of an operator's benchmark."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from sm70_kernels.build.settings import ROOT


class RunError(RuntimeError):
    """What was asked for can't be run: the message says what was got and what there is."""


def script(path: Path, arguments: Sequence[str]) -> Callable[[], None]:
    """Run a Python file as ``python FILE ARGUMENTS`` would. Its operators must be called with CPU tensors."""
    if not path.is_file():
        raise RunError(f"script: got {str(path)!r}, which is no file. Name a Python file")

    def run() -> None:
        saved_arguments, saved_path = sys.argv, list(sys.path)
        sys.argv, sys.path = [str(path), *arguments], [str(path.parent), *sys.path]
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        finally:
            sys.argv, sys.path = saved_arguments, saved_path

    return run


def _benchmark_module(operator: str) -> ModuleType:
    path = ROOT / "benchmarks" / f"bench_{operator}.py"
    known = sorted(found.stem.removeprefix("bench_") for found in path.parent.glob("bench_*.py"))
    if not path.is_file():
        where = f"want one of {', '.join(known)}" if known else "benchmarks are part of a checkout, not of a wheel"
        raise RunError(f"operator: got {operator!r}, {where}")
    name = f"sm70_kernels_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        del sys.modules[name]
        raise RunError(f"operator {operator!r}: {path.name} needs {error.name}. Install the group 'test'") from error
    return module


def rows(operator: str) -> dict[str, Any]:
    """Name -> row of an operator's benchmark.

    Raises:
        RunError: there is no such benchmark, or its module has no ``ROWS`` and ``make_job``.
    """
    module = _benchmark_module(operator)
    if not hasattr(module, "ROWS") or not hasattr(module, "make_job"):
        raise RunError(
            f"operator {operator!r}: bench_{operator}.py has no ROWS and make_job(row, device), which make its rows "
            "available. Run a script instead"
        )
    found: dict[str, Any] = module.ROWS
    return found


def row(operator: str, name: str) -> Callable[[], None]:
    """Launch a benchmark row once, on CPU tensors of the row's full size.

    Raises:
        RunError: there is no such row.
    """
    found = rows(operator)
    if name not in found:
        some = ", ".join(list(found)[:4])
        raise RunError(f"row: got {name!r}, want one of {len(found)} of {operator}, {some} for instance")
    module = sys.modules[type(found[name]).__module__]

    def run() -> None:
        import torch

        module.make_job(found[name], torch.device("cpu")).launch()

    return run
