"""Fixtures of the emulator's tests."""

from __future__ import annotations

import pytest

from . import toolchain


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> toolchain.Compiler:
    """Compiles `kernels/<name>.cu` once a session and loads it into the emulator."""
    return toolchain.Compiler(tmp_path_factory.mktemp("cubins"))
