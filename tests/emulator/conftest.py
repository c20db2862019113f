"""Fixtures of the emulator's tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from sm70_kernels import lab

from . import KERNELS


@pytest.fixture(scope="session")
def compiled() -> Callable[[str], lab.Module]:
    """Compiles `kernels/<name>.cu` once a session and loads it into the emulator."""
    return functools.cache(lambda name: lab.compile(KERNELS / f"{name}.cu"))
