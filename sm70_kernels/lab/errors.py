"""What the laboratory refuses, and what stops a launch."""

from __future__ import annotations

from sm70_kernels import _emulator

#: A fault that stops a launch, or machine code that is not implemented: a RuntimeError.
EmulatorError = _emulator.EmulatorError

__all__ = ["CompileError", "EmulatorError", "LabError"]


class LabError(ValueError):
    """Refused before anything ran: the message names the argument, what it got, what it wants, and the remedy."""


class CompileError(LabError):
    """NVRTC, ptxas or nvdisasm did not take its input: the message holds the tool's own text."""
