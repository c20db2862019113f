"""What this process runs with: GPU, driver, versions, variables, shared objects."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.binaries import built, mapped
from sm70_kernels.evidence.machine import gpu, places
from sm70_kernels.evidence.runs.schema import Environment, EvidenceError, FileHash, Gpu

#: Distributions whose versions are recorded beside torch's.
_DISTRIBUTIONS = (
    "hypothesis",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime-cu12",
    "numpy",
    "pytest",
    "pytest-benchmark",
    "triton",
)
#: Prefixes of environment variables that change what runs or how fast.
_VARIABLE_PREFIXES = ("SM70_KERNELS_", "CUDA_", "PYTORCH_", "TORCH_")

_Value = TypeVar("_Value")


def version(distribution: str) -> str | None:
    """Version of an installed distribution, None without it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _versions() -> dict[str, str | None]:
    """Versions of this process; from torch itself when it is loaded."""
    torch = sys.modules.get("torch")
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "torch": str(torch.__version__) if torch else version("torch"),
        "torch_cuda": torch.version.cuda if torch else None,
    }
    return found | {name: version(name) for name in _DISTRIBUTIONS}


def _ask(question: Callable[[], _Value]) -> _Value | None:
    """What the driver answers; None where this board has no such value."""
    import pynvml

    try:
        return question()
    except pynvml.NVMLError:
        return None


def _board(device: gpu.Device) -> dict[str, Any]:
    """Clocks, power cap and memory of a device, from NVML."""
    import pynvml

    handle = _ask(lambda: pynvml.nvmlDeviceGetHandleByPciBusId(device.pci_bus_id.encode()))
    if handle is None:
        return {}
    clocks = {
        "sm_clock_mhz": (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM),
        "max_sm_clock_mhz": (pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM),
        "memory_clock_mhz": (pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM),
        "max_memory_clock_mhz": (pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM),
    }
    found: dict[str, Any] = {}
    for name, (get, clock) in clocks.items():
        found[name] = _ask(lambda get=get, clock=clock: get(handle, clock))  # type: ignore[misc]
    milliwatts = _ask(lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
    found["power_limit_w"] = None if milliwatts is None else milliwatts / 1000
    found["memory_bytes"] = None if memory is None else int(memory.total)
    return found


def devices() -> tuple[str | None, list[Gpu], str | None]:
    """Driver version, the visible GPUs, and why something is missing. Never raises: no driver is a normal answer."""
    survey = gpu.survey()
    reason = survey.reason
    driver: str | None = None
    boards: dict[int, dict[str, Any]] = {}
    try:
        import pynvml

        pynvml.nvmlInit()
        try:
            answer = pynvml.nvmlSystemGetDriverVersion()
            driver = answer.decode() if isinstance(answer, bytes) else answer
            boards = {device.index: _board(device) for device in survey.devices}
        finally:
            pynvml.nvmlShutdown()
    except ImportError:
        reason = reason or "clocks and power: the Python package 'nvidia-ml-py' is not installed"
    except Exception as error:  # pynvml raises a class of its own for each code
        reason = reason or f"clocks and power: NVML does not answer ({error})"
    found = [
        Gpu(
            name=device.name,
            capability="{}.{}".format(*device.capability),
            sm_count=device.sm_count,
            **boards.get(device.index, {}),
        )
        for device in survey.devices
    ]
    return driver, found, reason


def variables(environment: Mapping[str, str], names: places.Places) -> dict[str, str]:
    """The environment variables that matter, with paths made relative."""
    return {
        name: names.path(value) if value.startswith("/") else names.text(value)
        for name, value in sorted(environment.items())
        if name.startswith(_VARIABLE_PREFIXES)
    }


def collect(root: Path = ROOT, *, loaded: bool = True) -> Environment:
    """Describe this process. ``loaded=False`` leaves out the mapped shared objects, for a process that runs nothing."""
    names = places.here(root)
    driver, gpus, reason = devices()
    try:
        build_versions, installed = built.read(root).versions, built.files(root)
    except EvidenceError:
        build_versions, installed = {}, {}
    files = mapped.mapped_files() if loaded else []
    digests = mapped.hashes(files)
    lock = root / "uv.lock"
    return Environment(
        driver=driver,
        gpus=gpus,
        gpu_reason=reason,
        versions=_versions(),
        build_versions=build_versions,
        lock_sha256=sha256(lock) if lock.is_file() else None,
        variables=variables(os.environ, names),
        loaded=sorted(
            (FileHash(path=names.path(file.path), sha256=digests[file.path]) for file in files),
            key=lambda file: file.path,
        ),
        installed=[FileHash(path=path, sha256=digest) for path, digest in sorted(installed.items())],
    )
