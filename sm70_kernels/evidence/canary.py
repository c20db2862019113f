"""``python -m sm70_kernels.evidence.canary FAULT``: run a deliberately bad kernel, for compute-sanitizer to catch.

A tool that misses it is blind, and its clean verdict on the operators is worth nothing. The exit code is 0 once the
kernel was launched, also when the fault killed it: compute-sanitizer replaces only a successful program's exit code.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sm70_kernels.build.settings import ROOT

FAULTS = ("out_of_bounds", "shared_race", "uninitialised", "divergent_barrier", "none")
LIBRARY = Path("build") / "test_ops" / "canary" / "libsm70_canary.so"

#: Fewer than the kernel has threads, so that the thread behind the last element has a place to overrun.
_ELEMENTS = 64
_USAGE, _MISSING = 2, 3


def main(arguments: list[str]) -> int:
    """Launch the canary with a fault. Returns 2 for an unknown fault, 3 when its library is not built."""
    if len(arguments) != 1 or arguments[0] not in FAULTS:
        print(f"canary: got {arguments}, want one of {', '.join(FAULTS)}", file=sys.stderr)
        return _USAGE
    path = ROOT / LIBRARY
    if not path.is_file():
        print(f"canary: its library {LIBRARY} is missing. Run 'scripts/nox -s build'", file=sys.stderr)
        return _MISSING
    import torch

    torch.ops.load_library(str(path))  # type: ignore[no-untyped-call]
    out = torch.empty(_ELEMENTS, dtype=torch.int32, device="cuda")
    torch.ops.sm70_kernels_test.canary(out, arguments[0])
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"canary: {arguments[0]}: {str(error).splitlines()[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
