"""The environment's record."""

from __future__ import annotations

import getpass
import platform
import re
import sys
from pathlib import Path

import pytest
from small_checkout import Tree

from sm70_kernels.evidence.machine import environment, gpu, places
from sm70_kernels.evidence.runs import schema

NO_DRIVER = gpu.Survey((), "no NVIDIA driver: libcuda.so.1 was not found")
V100 = gpu.Device(0, "Tesla V100-PCIE-32GB", (7, 0), 80, "0000:00:1e.0")
NEWER = gpu.Device(0, "NVIDIA H200", (9, 0), 132, "0000:00:1e.0")
OLDER = gpu.Device(0, "Tesla P100", (6, 0), 56, "0000:00:1e.0")


def test_no_absolute_path_host_or_user(tree: Tree) -> None:
    text = schema.encode(environment.collect(tree.root)).decode()
    assert not re.search(r'"/', text)
    for secret in (platform.node(), getpass.getuser(), str(Path.home()), sys.prefix, sys.base_prefix):
        assert not re.search(rf"\b{re.escape(secret)}\b", text) or len(secret) < 5, secret


def test_a_machine_without_driver_is_recorded_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "survey", lambda: NO_DRIVER)
    _, gpus, reason = environment.devices()
    assert gpus == []
    assert reason == NO_DRIVER.reason


def test_build_facts_stand_beside_those_of_the_process(tree: Tree) -> None:
    (tree.root / "uv.lock").write_text("lock\n")
    found = environment.collect(tree.root, loaded=False)
    assert found.build_versions["gcc"] == "12.2.0"
    assert found.versions["python"] == platform.python_version()
    assert found.lock_sha256 is not None
    assert [file.path for file in found.installed] == ["sm70_kernels/_emulator.so", "sm70_kernels/lib/libsm70_fake.so"]
    assert found.loaded == []


def test_variables_that_matter_with_relative_paths() -> None:
    here = places.here()
    found = environment.variables(
        {"CUDA_VISIBLE_DEVICES": "1", "SM70_KERNELS_CXX": "/opt/gcc/bin/g++-12", "SECRET": "x", "HOME": "/home/ada"},
        here,
    )
    assert found == {"CUDA_VISIBLE_DEVICES": "1", "SM70_KERNELS_CXX": "g++-12"}


@pytest.mark.parametrize(
    "survey,allow_jit,reason",
    [
        (gpu.Survey((V100,), None), False, None),
        (gpu.Survey((NEWER,), None), True, None),
        (gpu.Survey((NEWER,), None), False, "needs sm_70, found sm_90 (NVIDIA H200) without SM70_KERNELS_ALLOW_JIT=1"),
        (gpu.Survey((OLDER,), None), True, "needs sm_70, found sm_60 (Tesla P100)"),
        (NO_DRIVER, True, "needs sm_70, found no GPU (no NVIDIA driver: libcuda.so.1 was not found)"),
    ],
)
def test_unusable(survey: gpu.Survey, allow_jit: bool, reason: str | None) -> None:
    assert gpu.unusable(survey, allow_jit) == reason
