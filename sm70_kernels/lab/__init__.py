"""The laboratory: an emulated V100 that runs real sm_70 machine code, with checkers, statistics and a cycle model.

    from sm70_kernels import lab

    saxpy = lab.compile("saxpy.cu").kernel("saxpy")  # or lab.load("foreign.cubin")
    report = saxpy.launch(grid=4, block=256, args=[np.float32(2), x, y, np.int32(n)], checkers=lab.ALL)
    report.findings, report.statistics, report.hot_spots(), report.estimate(), report.export_accel_sim("traces")

``docs/lab.md`` is its page. The operators of this package run on the same emulator through
:func:`sm70_kernels.lab.emulator.enabled`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm70_kernels.lab.arguments import aligned
    from sm70_kernels.lab.checkers import CHECKERS as ALL
    from sm70_kernels.lab.checkers import Finding
    from sm70_kernels.lab.errors import CompileError, EmulatorError, LabError
    from sm70_kernels.lab.kernel import Kernel
    from sm70_kernels.lab.module import Module, compile, compile_source, from_ptx, load
    from sm70_kernels.lab.report import HotSpot, Report

__all__ = [
    "ALL",
    "CompileError",
    "EmulatorError",
    "Finding",
    "HotSpot",
    "Kernel",
    "LabError",
    "Module",
    "Report",
    "aligned",
    "compile",
    "compile_source",
    "from_ptx",
    "load",
]

#: Name -> module and name in it. They are imported when they are first used: parts of the laboratory, the audit for
#: instance, must work where the emulator's module is not built.
_PLACES = {
    "ALL": ("checkers", "CHECKERS"),
    "Finding": ("checkers", "Finding"),
    "aligned": ("arguments", "aligned"),
    "Kernel": ("kernel", "Kernel"),
    **{name: ("report", name) for name in ("HotSpot", "Report")},
    **{name: ("errors", name) for name in ("CompileError", "EmulatorError", "LabError")},
    **{name: ("module", name) for name in ("Module", "compile", "compile_source", "from_ptx", "load")},
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _PLACES[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
