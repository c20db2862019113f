"""The GPUs of this machine, from the driver alone: no torch, no CUDA context."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from sm70_kernels import _variables

#: CUDA driver API, ``CUdevice_attribute``.
_SM_COUNT, _MAJOR, _MINOR = 16, 75, 76
_NO_DEVICE = 100

VOLTA = (7, 0)


@dataclass(frozen=True)
class Device:
    """A visible CUDA device."""

    index: int
    name: str
    capability: tuple[int, int]
    sm_count: int
    pci_bus_id: str

    def sm(self) -> str:
        """Its architecture, ``sm_70``."""
        return f"sm_{self.capability[0]}{self.capability[1]}"


@dataclass(frozen=True)
class Survey:
    """The visible devices, or why there are none."""

    devices: tuple[Device, ...]
    reason: str | None


def _none(reason: str) -> Survey:
    return Survey((), reason)


def survey() -> Survey:
    """Ask the CUDA driver. Never raises: a machine without driver or GPU is a normal answer."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return _none("no NVIDIA driver: libcuda.so.1 was not found")
    code = driver.cuInit(0)
    if code == _NO_DEVICE:
        return _none("no CUDA device is visible to the driver")
    if code != 0:
        return _none(f"the CUDA driver can't be initialised: cuInit returned {code}")
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for index in range(count.value):
        name, bus, value = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32), ctypes.c_int()
        driver.cuDeviceGetName(name, len(name), index)
        driver.cuDeviceGetPCIBusId(bus, len(bus), index)
        values = []
        for attribute in (_SM_COUNT, _MAJOR, _MINOR):
            driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, index)
            values.append(value.value)
        devices.append(Device(index, name.value.decode(), (values[1], values[2]), values[0], bus.value.decode()))
    return Survey(tuple(devices), None if devices else "no CUDA device is visible to the driver")


def unusable(found: Survey, allow_jit: bool | None = None) -> str | None:
    """Why the operators can't run on the first device, as torch picks it; None when they can.

    ``allow_jit`` is SM70_KERNELS_ALLOW_JIT unless given.
    """
    if not found.devices:
        return f"needs sm_70, found no GPU ({found.reason})"
    device = found.devices[0]
    if device.capability == VOLTA:
        return None
    if allow_jit is None:
        allow_jit = _variables.flag("ALLOW_JIT")
    sentence = f"needs sm_70, found {device.sm()} ({device.name})"
    if device.capability < VOLTA:
        return sentence
    return None if allow_jit else f"{sentence} without {_variables.PREFIX}ALLOW_JIT=1"
