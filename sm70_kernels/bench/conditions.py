"""The card's state beside a measurement: clocks, power, temperature and throttle reasons, read through NVML.

What NVML, the driver or a virtual machine does not offer is None in the record; a measurement never fails for it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

#: Bits of NVML's clock event ("throttle") reasons, from nvml.h.
REASONS = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
#: The reasons that mean a clock below what the card would run otherwise.
SLOWDOWNS = frozenset(
    {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)


@dataclass(frozen=True)
class Conditions:
    """One reading. Clocks in MHz, power in watts (NVML averages it over up to a second), temperature in Celsius."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_reasons: tuple[str, ...] | None

    @property
    def throttled(self) -> bool:
        """Whether a slowdown was reported."""
        return bool(SLOWDOWNS.intersection(self.throttle_reasons or ()))


def reason_names(mask: int) -> tuple[str, ...]:
    """Names of the bits of an NVML reason mask; a bit without a name is given in hexadecimal."""
    bits = (1 << shift for shift in range(mask.bit_length()) if mask >> shift & 1)
    return tuple(REASONS.get(bit, hex(bit)) for bit in bits)


class ConditionsReader:
    """Reads one device by its UUID (as torch prints it). Without NVML every reading is None."""

    def __init__(self, uuid: str, nvml: Any = None) -> None:
        """Open NVML. ``nvml`` replaces the ``pynvml`` module in tests."""
        self._handle: Any = None
        #: Why nothing can be read, or None.
        self.unavailable: str | None = None
        if nvml is None:
            try:
                nvml = importlib.import_module("pynvml")
            except ImportError as error:
                self.unavailable = str(error)
                return
        self._nvml: Any = nvml
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        except nvml.NVMLError as error:
            self.unavailable = str(error)

    def read(self) -> Conditions | None:
        """Read the state now, or None without NVML."""
        if self._handle is None:
            return None
        nvml, handle = self._nvml, self._handle
        power_mw = self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        # Throttle reasons were renamed event reasons; drivers of V100 know the old name, later ones both.
        mask = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        if mask is None:
            mask = self._ask(lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
        return Conditions(
            sm_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            memory_clock_mhz=self._ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            power_w=None if power_mw is None else power_mw / 1000,
            temperature_c=self._ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            throttle_reasons=None if mask is None else reason_names(mask),
        )

    def _ask(self, query: Callable[[], int]) -> int | None:
        try:
            return int(query())
        except self._nvml.NVMLError:
            return None


def columns(readings: Sequence[Conditions | None]) -> dict[str, list[Any]] | None:
    """Readings as one list a field, for a compact record; None when nothing was read at all."""
    if all(reading is None for reading in readings):
        return None
    rows = [asdict(reading) if reading is not None else {} for reading in readings]
    return {field.name: [row.get(field.name) for row in rows] for field in fields(Conditions)}
