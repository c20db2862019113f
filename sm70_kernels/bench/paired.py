"""Paired comparison of two arms, and the A/A control that shows whether the method can be believed.

A block times A B B A, or B A A B; its ratio is (B + B) / (A + A). A drift that is linear over the block, a clock that
sags for instance, cancels exactly. Which of the two orders a block has is random, in shuffled pairs, so that neither
arm gets the first place more often.

An arm is a callable that takes one sample and returns it in milliseconds; nothing here knows a device.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sm70_kernels.bench.conditions import Conditions
from sm70_kernels.bench.intervals import Interval, Limits, bootstrap_interval, median, stop_reason

ORDERS = ("ABBA", "BAAB")

Arm = Callable[[], float]
Observe = Callable[[], Conditions | None]


def _nothing_observed() -> Conditions | None:
    return None


@dataclass(frozen=True)
class Comparison:
    """Raw samples of two arms and the median ratio B / A (above 1: A is faster)."""

    orders: tuple[str, ...]
    """Order of each block. Samples of an arm are chronological: block ``i`` took samples ``2i`` and ``2i + 1``."""
    a_ms: tuple[float, ...]
    b_ms: tuple[float, ...]
    ratios: tuple[float, ...]
    """(B + B) / (A + A) of each block."""
    ratio: float
    interval: Interval
    stop: str
    """``converged`` or ``max_count``."""
    seed: int
    conditions: tuple[Conditions | None, ...]
    """The card's state after each block."""


@dataclass(frozen=True)
class Control:
    """A/A: an arm compared with itself.

    A sound 95 % interval excludes 1 once in 20 times by chance, so an attempt that does is repeated once with another
    seed. Both attempts are kept; the control failed only if both exclude 1, by chance once in 400 times.
    """

    attempts: tuple[Comparison, ...]

    @property
    def passed(self) -> bool:
        """Whether an attempt's interval contains 1."""
        return any(attempt.interval.contains(1.0) for attempt in self.attempts)


def block_orders(seed: int) -> Iterator[str]:
    """Endless ``ABBA`` and ``BAAB``, one of each in every pair of blocks, the order in a pair drawn from the seed."""
    generator = random.Random(seed)
    while True:
        pair = list(ORDERS)
        generator.shuffle(pair)
        yield from pair


def compare(
    a: Arm, b: Arm, *, seed: int, limits: Limits | None = None, observe: Observe = _nothing_observed
) -> Comparison:
    """Time blocks of both arms until the ratio's interval is narrow enough or ``limits`` ends it.

    ``observe`` is called after each block, outside all timed regions.
    """
    bounds = limits or Limits()
    orders: list[str] = []
    samples: dict[str, list[float]] = {"A": [], "B": []}
    ratios: list[float] = []
    conditions: list[Conditions | None] = []
    arms = {"A": a, "B": b}
    stop = None
    upcoming = block_orders(seed)
    while stop is None:
        order = next(upcoming)
        sums = {"A": 0.0, "B": 0.0}
        for name in order:
            sample = arms[name]()
            samples[name].append(sample)
            sums[name] += sample
        orders.append(order)
        ratios.append(sums["B"] / sums["A"])
        conditions.append(observe())
        stop = stop_reason(ratios, bounds, seed=seed)
    return Comparison(
        orders=tuple(orders),
        a_ms=tuple(samples["A"]),
        b_ms=tuple(samples["B"]),
        ratios=tuple(ratios),
        ratio=median(ratios),
        interval=bootstrap_interval(ratios, seed=seed),
        stop=stop,
        seed=seed,
        conditions=tuple(conditions),
    )


def control(
    first: Arm,
    second: Arm | None = None,
    *,
    seed: int,
    limits: Limits | None = None,
    observe: Observe = _nothing_observed,
) -> Control:
    """Compare an arm with itself, or with a ``second`` one that is meant to be the same; see :class:`Control`."""
    attempts: list[Comparison] = []
    for attempt in range(2):
        attempts.append(compare(first, second or first, seed=seed + attempt, limits=limits, observe=observe))
        if attempts[-1].interval.contains(1.0):
            break
    return Control(tuple(attempts))
