"""The device fixtures: every operator test runs on each target of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch

from sm70_kernels import _variables
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.runs.schema import EvidenceError
from sm70_kernels.evidence.sessions.selection import EMULATED_DEVICE
from sm70_kernels.lab import emulator
from sm70_kernels.lab.checkers import Checks
from tests.ops import marks

try:
    built.require_current()
except EvidenceError as error:  # a test of something older than the sources says nothing
    pytest.exit(f"{error}", returncode=2)


def _gpu() -> tuple[str, str | None]:
    """Name of this machine's GPU target, and why it can't be used, if so."""
    if not torch.cuda.is_available():
        return "V100", "needs sm_70, found no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) == (7, 0):
        return "V100", None
    if _variables.flag("ALLOW_JIT"):
        return "JIT GPU", None
    name = torch.cuda.get_device_name()
    return "V100", f"needs sm_70, found sm_{major}{minor} ({name}) without SM70_KERNELS_ALLOW_JIT=1"


GPU = _gpu()


def _require_gpu() -> torch.device:
    if GPU[1] is not None:
        pytest.skip(GPU[1])
    return torch.device("cuda", torch.cuda.current_device())


@pytest.fixture(params=[GPU[0], EMULATED_DEVICE])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The device that the operators run on: this machine's GPU, then the emulated V100 (CPU tensors).

    The emulated one is watched by all checkers: a test fails at their first finding.
    """
    if request.param == EMULATED_DEVICE:
        with Checks() as checks, marks.reported_to(checks), emulator.enabled(instruments=checks.instruments):
            yield torch.device("cpu")
    else:
        yield _require_gpu()


@pytest.fixture
def unwatched(device: torch.device) -> Iterator[None]:
    """Without the checkers, which make four of a second: for tests of numbers, over accesses that others check."""
    with emulator.enabled() if device.type == "cpu" else nullcontext():
        yield


@pytest.fixture(params=[GPU[0]])
def cuda_device(request: pytest.FixtureRequest) -> torch.device:
    """For tests of what only a GPU has: streams, graphs, several devices."""
    return _require_gpu()
