"""``python -m sm70_kernels.evidence.memory_checks.canary FAULT``: run a bad kernel for a memory checker to catch.

A tool that misses it is blind, and its clean verdict on the operators is worth nothing. The exit code is 0 once the
kernel was launched, also when the fault killed it: compute-sanitizer replaces only a successful program's exit code.

``--emulated`` runs the kernel without a fault and those with one on the emulated V100, all checkers on, and says of
each whether it was reported.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.memory_checks import memcheck

#: What compute-sanitizer's tools must catch, and what they must stay silent about.
FAULTS = ("out_of_bounds", "shared_race", "uninitialised", "divergent_barrier", "none")
EMULATED = "--emulated"
#: What the emulator must stay silent about, and what it must report.
EMULATED_FAULTS = ("none", *memcheck.EMULATED_FAULTS)
LIBRARY = Path("build") / "test_ops" / "canary" / "libsm70_canary.so"

_CAPABILITY_REVISION = 1
#: Fewer than the kernel has threads, so that the thread behind the last element has a place to overrun.
_ELEMENTS = 64
_USAGE, _MISSING = 2, 3


def _launch(path: Path, fault: str) -> None:
    """Launch on the GPU."""
    import torch

    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    out = torch.empty(_ELEMENTS, dtype=torch.int32, device="cuda")
    torch.ops.sm70_kernels_test.canary(out, torch.zeros_like(out), fault)
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"canary: {fault}: {str(error).splitlines()[0]}")


def _emulate(path: Path, fault: str) -> None:
    """Launch on the emulated V100, which runs to the end or raises."""
    import torch

    from sm70_kernels import _native
    from sm70_kernels.lab import checkers as checks
    from sm70_kernels.lab import emulator

    _native.load("canary", _CAPABILITY_REVISION, path)  # the emulator's settings reach only libraries loaded so
    out = torch.full((_ELEMENTS,), -1, dtype=torch.int32)
    ignored = torch.zeros_like(out)
    try:
        with checks.Checks() as watching, emulator.enabled(instruments=watching.instruments):
            watching.undefined(out)
            watching.tainted(ignored)
            torch.ops.sm70_kernels_test.canary(out, ignored, fault)
    except RuntimeError as error:
        print(f"canary: {fault}: {memcheck.REPORTED}{error}")
        return
    right = torch.equal(out, torch.arange(_ELEMENTS, dtype=torch.int32))
    print(f"canary: {fault}: {memcheck.RIGHT_RESULT if right else 'ran to its end with a wrong result'}")


def main(arguments: list[str]) -> int:
    """Launch the canary. Returns 2 for an unknown fault, 3 when its library is not built."""
    emulated = arguments == [EMULATED]
    if not emulated and (len(arguments) != 1 or arguments[0] not in FAULTS):
        print(f"canary: got {arguments}, want one of {', '.join(FAULTS)}, or {EMULATED}", file=sys.stderr)
        return _USAGE
    path = ROOT / LIBRARY
    if not path.is_file():
        print(f"canary: its library {LIBRARY} is missing. Run 'scripts/nox -s build'", file=sys.stderr)
        return _MISSING
    if emulated:
        for fault in EMULATED_FAULTS:
            _emulate(path, fault)
    else:
        _launch(path, arguments[0])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
