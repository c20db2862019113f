"""What tests say about bytes, to the checkers that watch the emulated device; on a GPU nobody listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from sm70_kernels.lab.checkers import Checks

_listening: list[Checks] = []


@contextmanager
def reported_to(checks: Checks) -> Iterator[None]:
    """Hand what follows to these checkers."""
    _listening.append(checks)
    try:
        yield
    finally:
        _listening.pop()


def tainted(*tensors: Tensor) -> None:
    """These elements must not matter to any result."""
    for checks in _listening[-1:]:
        checks.tainted(*(tensor for tensor in tensors if tensor.device.type == "cpu"))


def clean(*tensors: Tensor) -> None:
    """The test has written these elements, and they matter."""
    for checks in _listening[-1:]:
        checks.clean(*(tensor for tensor in tensors if tensor.device.type == "cpu"))


def undefined(*tensors: Tensor) -> None:
    """Nothing has written these elements."""
    for checks in _listening[-1:]:
        checks.undefined(*(tensor for tensor in tensors if tensor.device.type == "cpu"))
