"""Fast, exact, provable attention kernels for NVIDIA V100 (Volta, sm_70).

Importing this package is light: torch and the operator libraries load with :mod:`sm70_kernels.ops`, on first use of
``sm70_kernels.ops`` or by ``import sm70_kernels.ops``. So the build, the command line and ``sm70-kernels doctor`` work
also where a library is missing or stale.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

__version__ = "0.1.0"

_LAZY_MODULES = frozenset({"attention", "bench", "evidence", "lab", "ops", "reference"})
#: ``sm70_kernels.decode`` is ``sm70_kernels.ops.decode``: the operators are the modules of that folder.
_OPERATORS = frozenset(path.stem for path in (Path(__file__).parent / "ops").glob("[!_]*.py"))


def __getattr__(name: str) -> ModuleType:
    """Import a public module on first use."""
    if name in _LAZY_MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _OPERATORS:
        return importlib.import_module(f"{__name__}.ops.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY_MODULES, *_OPERATORS])
