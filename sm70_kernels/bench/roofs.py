"""The card's own roofs, measured in the session that uses them.

Each is what plain torch reaches on this card now; a rate is given absolutely and as a share of its roof.

copy    ``torch.Tensor.copy_``, the fastest of several sizes; bytes read plus bytes written. One size is not enough: on
        an H200 a copy of 512 MiB ran at 70 % of the rate of one of 96 MiB
read    ``torch.sum`` over 1 GiB of FP32; bytes read
tensor  ``torch.matmul`` of 8192 x 8192 FP16 matrices of normal random values; 2 N^3 floating-point operations
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sm70_kernels.bench.conditions import Conditions
from sm70_kernels.bench.intervals import Limits
from sm70_kernels.bench.series import Series, sample
from sm70_kernels.bench.timing import DeviceTimer, capture

COPY_BYTES = (96 << 20, 160 << 20, 512 << 20)
READ_BYTES = 1 << 30
MATMUL_SIZE = 8192
LIMITS = Limits(min_count=25, max_count=60)
SEED = 70
NAMES = ("copy", "read", "tensor")


@dataclass(frozen=True)
class Roof:
    """One measured roof."""

    name: str
    method: str
    work: float
    """Bytes or floating-point operations of one launch."""
    unit: str
    """``GB/s`` or ``TFLOP/s``, with decimal prefixes."""
    series: Series
    conditions: Conditions | None
    """The card's state right after the series."""

    @property
    def rate(self) -> float:
        """Work over median time, in ``unit``."""
        return rate(self.work, self.series.median_ms, self.unit)

    def share(self, other: float) -> float:
        """A rate of the same unit as a fraction of this roof."""
        return other / self.rate


#: Work per millisecond to the unit.
_PER_MS = {"GB/s": 1e-6, "TFLOP/s": 1e-9}


def rate(work: float, milliseconds: float, unit: str = "GB/s") -> float:
    """Work (bytes for GB/s, operations for TFLOP/s) over milliseconds, in the unit."""
    return work / milliseconds * _PER_MS[unit]


def measure_roofs(timer: DeviceTimer, observe: Callable[[], Conditions | None]) -> dict[str, Roof]:
    """Measure all roofs, cold, by name. Allocates up to 1 GiB at a time."""
    copies = [_measure(_copy(size, timer.device), timer, observe) for size in COPY_BYTES]
    roofs = [
        max(copies, key=lambda roof: roof.rate),
        _measure(_read(timer.device), timer, observe),
        _measure(_matmul(timer.device), timer, observe),
    ]
    return dict(zip(NAMES, roofs, strict=True))


@dataclass(frozen=True)
class _Load:
    """What a roof runs: the arm, and how much work one launch of it is."""

    name: str
    method: str
    work: float
    unit: str
    launch: Callable[[], object]


def _copy(size: int, device: torch.device) -> _Load:
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return _Load("copy", f"torch.Tensor.copy_ of {size} bytes", 2.0 * size, "GB/s", lambda: target.copy_(source))


def _read(device: torch.device) -> _Load:
    values = torch.ones(READ_BYTES // 4, dtype=torch.float32, device=device)
    total = torch.empty((), dtype=torch.float32, device=device)
    method = f"torch.sum of {READ_BYTES} bytes of float32"
    return _Load("read", method, float(READ_BYTES), "GB/s", lambda: torch.sum(values, dim=0, out=total))


def _matmul(device: torch.device) -> _Load:
    # Random values: products of constants draw less power and run faster than real ones.
    shape = (MATMUL_SIZE, MATMUL_SIZE)
    left, right = (torch.randn(shape, dtype=torch.float16, device=device) for _ in range(2))
    product = torch.empty_like(left)
    method = f"torch.matmul of {MATMUL_SIZE}^2 float16"
    return _Load("tensor", method, 2.0 * MATMUL_SIZE**3, "TFLOP/s", lambda: torch.matmul(left, right, out=product))


def _measure(load: _Load, timer: DeviceTimer, observe: Callable[[], Conditions | None]) -> Roof:
    arm = capture(f"{load.name} roof", load.launch, timer.device)
    series = sample(lambda: timer.time_arm(arm, cold=True), seed=SEED, limits=LIMITS)
    return Roof(load.name, load.method, load.work, load.unit, series, observe())


def roof_facts(roofs: dict[str, Roof]) -> dict[str, dict[str, Any]]:
    """The roofs' rates for the record of a row."""
    return {name: {"rate": roof.rate, "unit": roof.unit, "method": roof.method} for name, roof in roofs.items()}
