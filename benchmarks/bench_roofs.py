"""The card's roofs as benchmark rows of their own."""

from __future__ import annotations

from typing import Any

import pytest

from sm70_kernels.bench import replay, replay_timer
from sm70_kernels.bench.roofs import NAMES


@pytest.mark.benchmark(timer=replay_timer, group="roof")
@pytest.mark.parametrize("name", NAMES)
def test_roof(name: str, gpu: Any, benchmark: Any) -> None:
    """A roof's samples, taken before any row of the session."""
    roof = gpu.roofs[name]
    replay(benchmark, roof.series.samples_ms)
    conditions = roof.conditions
    benchmark.extra_info.update(
        row=f"roof {name}",
        method=roof.method,
        work=roof.work,
        rate=roof.rate,
        unit=roof.unit,
        device=gpu.name,
        compute_capability=list(gpu.compute_capability),
        time_label="V100" if gpu.compute_capability == (7, 0) else "not V100",
        median_ms=roof.series.median_ms,
        median_ms_interval=[roof.series.interval_ms.low, roof.series.interval_ms.high],
        stop=roof.series.stop,
        sm_clock_mhz=conditions and conditions.sm_clock_mhz,
        power_w=conditions and conditions.power_w,
        throttle_reasons=conditions and list(conditions.throttle_reasons or ()),
        nvml_unavailable=gpu.conditions.unavailable,
    )
