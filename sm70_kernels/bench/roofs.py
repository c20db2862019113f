"""The card's own roofs, measured in the session that uses them.

Each is what plain torch reaches on this card now; a rate is given absolutely and as a share of its roof.

copy    ``torch.Tensor.copy_`` of 512 MiB; bytes read plus bytes written
read    ``torch.sum`` over 1 GiB of FP32; bytes read
tensor  ``torch.matmul`` of 8192 x 8192 FP16 matrices of normal random values; 2 N^3 floating-point operations
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sm70_kernels.bench.conditions import Conditions
from sm70_kernels.bench.estimate import Limits
from sm70_kernels.bench.series import Series, sample
from sm70_kernels.bench.timing import DeviceTimer, capture

COPY_BYTES = 512 << 20
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
    return {name: _measure(name, timer, observe) for name in NAMES}


def _measure(name: str, timer: DeviceTimer, observe: Callable[[], Conditions | None]) -> Roof:
    device = timer.device
    if name == "copy":
        source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        arm = capture("copy roof", lambda: target.copy_(source), device)
        method, work, unit = f"torch.Tensor.copy_ of {COPY_BYTES} bytes", 2.0 * COPY_BYTES, "GB/s"
    elif name == "read":
        values = torch.ones(READ_BYTES // 4, dtype=torch.float32, device=device)
        total = torch.empty((), dtype=torch.float32, device=device)
        arm = capture("read roof", lambda: torch.sum(values, dim=0, out=total), device)
        method, work, unit = f"torch.sum of {READ_BYTES} bytes of float32", float(READ_BYTES), "GB/s"
    else:
        # Random values: products of constants draw less power and run faster than real ones.
        shape = (MATMUL_SIZE, MATMUL_SIZE)
        left, right = (torch.randn(shape, dtype=torch.float16, device=device) for _ in range(2))
        product = torch.empty_like(left)
        arm = capture("tensor roof", lambda: torch.matmul(left, right, out=product), device)
        method, work, unit = f"torch.matmul of {MATMUL_SIZE}^2 float16", 2.0 * MATMUL_SIZE**3, "TFLOP/s"
    series = sample(lambda: timer.time_arm(arm, cold=True), seed=SEED, limits=LIMITS)
    return Roof(name, method, work, unit, series, observe())


def roof_facts(roofs: dict[str, Roof]) -> dict[str, dict[str, Any]]:
    """The roofs' rates for the record of a row."""
    return {name: {"rate": roof.rate, "unit": roof.unit, "method": roof.method} for name, roof in roofs.items()}
