"""The emulator's tests, and the CUDA sources that they share with others."""

from __future__ import annotations

from pathlib import Path

#: CUDA sources of the tests.
KERNELS = Path(__file__).parent / "kernels"
