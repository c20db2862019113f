"""A series of samples of one arm: roofs, and warm times beside the cold comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sm70_kernels.bench.intervals import Interval, Limits, bootstrap_interval, median, stop_reason


@dataclass(frozen=True)
class Series:
    """Chronological raw samples of one arm with the median and its 95 % interval, all in milliseconds."""

    samples_ms: tuple[float, ...]
    median_ms: float
    interval_ms: Interval
    stop: str
    """``converged`` or ``max_count``."""


def sample(arm: Callable[[], float], *, seed: int, limits: Limits | None = None) -> Series:
    """Call ``arm`` (one sample, in milliseconds) until its median is known well enough or ``limits`` ends it."""
    bounds = limits or Limits()
    samples: list[float] = []
    stop = None
    while stop is None:
        samples.append(arm())
        stop = stop_reason(samples, bounds, seed=seed)
    return Series(tuple(samples), median(samples), bootstrap_interval(samples, seed=seed), stop)
