"""What plans need beside the shapes: the device's SMs, and numbers of a DSO while torch.compile traces."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec

import torch

from sm70_kernels import _native

P = ParamSpec("P")


def called_while_tracing(function: Callable[P, int]) -> Callable[P, int]:
    """torch.compile takes the result for a constant: it can't trace ctypes.

    This is what torch.compiler.assume_constant_result does, but that imports torch._dynamo, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@called_while_tracing
def multiprocessors(operator: str, device_type: str, index: int | None) -> int:
    """SMs of a CUDA device, or of the emulated V100 that an operator's library runs on in this thread.

    The operator is given by name: torch.compile takes no other constants than plain values.
    """
    if device_type == "cpu":
        return _native.loaded()[operator].call_int64("sm70_kernels_emulated_multiprocessors")
    return int(torch.cuda.get_device_properties(index).multi_processor_count)
