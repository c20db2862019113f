"""Estimates from few, skewed samples: medians, bootstrap intervals, convergence, outlier flags.

Medians, because device times have a long upper tail. Bootstrap (percentile) intervals, because they assume no
distribution. Every random draw comes from a seed that is recorded beside the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Confidence level of every interval of this package.
LEVEL = 0.95
#: Resamples of a reported interval: the bounds' own error is then well below the interval's width.
RESAMPLES = 4000
#: Resamples of the check that is made while sampling goes on, where time between blocks matters.
CHECK_RESAMPLES = 1000


@dataclass(frozen=True)
class Interval:
    """A 95 % interval, in the unit of the values it was made from."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        """Whether the value lies inside, bounds included."""
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Limits:
    """When sampling stops: at convergence, but never before ``min_count`` and never after ``max_count``.

    Converged means that half the width of the median's 95 % interval is at most ``relative_half_width`` of the
    median. The check runs at ``min_count`` and every ``check_every`` after it. Counts are blocks of a paired
    comparison, or samples of a series.
    """

    min_count: int = 25
    max_count: int = 100
    relative_half_width: float = 0.005
    check_every: int = 5

    def __post_init__(self) -> None:
        """Refuse limits that can't be met."""
        if not 1 <= self.min_count <= self.max_count or self.check_every < 1 or self.relative_half_width <= 0:
            raise ValueError(
                f"Limits: got {self}, want 1 <= min_count <= max_count, check_every >= 1 and relative_half_width > 0"
            )


def median(values: Sequence[float]) -> float:
    """Median of at least one value, in the values' unit."""
    return float(np.median(np.asarray(values, dtype=np.float64)))


def bootstrap_interval(values: Sequence[float], *, seed: int, resamples: int = RESAMPLES) -> Interval:
    """95 % percentile-bootstrap interval of the median. The same values and seed give the same interval."""
    data = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, data.size, size=(resamples, data.size))
    medians = np.median(data[draws], axis=1)
    low, high = np.quantile(medians, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def relative_half_width(values: Sequence[float], interval: Interval) -> float:
    """Half the interval's width as a fraction of the values' median."""
    return (interval.high - interval.low) / 2 / abs(median(values))


def stop_reason(values: Sequence[float], limits: Limits, *, seed: int) -> str | None:
    """Why sampling stops after these values: ``converged``, ``max_count``, or None to go on."""
    count = len(values)
    due = count >= limits.min_count and (count - limits.min_count) % limits.check_every == 0
    if due or count >= limits.max_count:
        interval = bootstrap_interval(values, seed=seed, resamples=CHECK_RESAMPLES)
        if relative_half_width(values, interval) <= limits.relative_half_width:
            return "converged"
    return "max_count" if count >= limits.max_count else None


def outliers(values: Sequence[float], *, deviations: float = 5.0, smallest: float = 0.0) -> tuple[int, ...]:
    """Indices of values more than ``deviations`` median absolute deviations from the median.

    They are flagged for the reader and stay in every estimate. ``smallest`` (same unit) is the least deviation that
    counts as one: the clock's resolution, since samples on one tick have a deviation of zero.
    """
    data = np.asarray(values, dtype=np.float64)
    distance = np.abs(data - np.median(data))
    unit = max(float(np.median(distance)), smallest)
    return tuple(int(index) for index in np.flatnonzero(distance > deviations * unit))
