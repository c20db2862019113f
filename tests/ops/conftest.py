"""The device fixture: every operator test runs on each target of this machine."""

from __future__ import annotations

import os

import pytest
import torch


def _target() -> tuple[str, str | None]:
    """Name of this machine's target, and why it can't be used, if so."""
    if not torch.cuda.is_available():
        return "V100", "needs sm_70, found no CUDA device"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) == (7, 0):
        return "V100", None
    if os.environ.get("SM70_KERNELS_ALLOW_JIT") == "1":
        return "JIT GPU", None
    name = torch.cuda.get_device_name()
    return "V100", f"needs sm_70, found sm_{major}{minor} ({name}) without SM70_KERNELS_ALLOW_JIT=1"


@pytest.fixture(params=[_target()], ids=lambda target: target[0])
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device that the operators run on; skips with the reason where there is none."""
    _, reason = request.param
    if reason is not None:
        pytest.skip(reason)
    return torch.device("cuda", torch.cuda.current_device())
