"""The paired comparison, its control and its estimates, on clocks that are made up."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from sm70_kernels.bench.conditions import Conditions
from sm70_kernels.bench.intervals import Interval, Limits, bootstrap_interval, median, outliers, stop_reason
from sm70_kernels.bench.paired import block_orders, compare, control
from sm70_kernels.bench.series import sample


def constant(value: float) -> Callable[[], float]:
    """An arm without noise."""
    return lambda: value


def noisy(value: float, spread: float, seed: int) -> Callable[[], float]:
    """An arm with lognormal noise of a relative spread."""
    generator = np.random.default_rng(seed)
    return lambda: value * math.exp(spread * generator.standard_normal())


class DriftingClock:
    """Samples that get slower by a fixed share of the arm's time with every sample taken of either arm."""

    def __init__(self, share_per_sample: float) -> None:
        self.share, self.taken = share_per_sample, itertools.count()

    def arm(self, value: float) -> Callable[[], float]:
        return lambda: value * (1 + self.share * next(self.taken))


class FirstPlacePenalty:
    """The first sample of every block of four is slower, whichever arm it is."""

    def __init__(self, penalty: float) -> None:
        self.penalty, self.taken = penalty, itertools.count()

    def arm(self, value: float) -> Callable[[], float]:
        return lambda: value * (1 + (self.penalty if next(self.taken) % 4 == 0 else 0.0))


def test_block_orders_are_balanced_in_every_pair_of_blocks() -> None:
    orders = list(itertools.islice(block_orders(seed=3), 200))
    assert Counter(orders) == {"ABBA": 100, "BAAB": 100}
    assert all({first, second} == {"ABBA", "BAAB"} for first, second in zip(orders[::2], orders[1::2], strict=True))


def test_block_orders_are_random_and_follow_from_the_seed() -> None:
    def first(seed: int) -> tuple[str, ...]:
        return tuple(itertools.islice(block_orders(seed), 40))

    assert first(1) == first(1)
    assert len({first(seed) for seed in range(20)}) == 20
    starts = Counter(first(seed)[0] for seed in range(200))
    assert min(starts["ABBA"], starts["BAAB"]) > 60


def test_arms_are_called_in_the_recorded_order() -> None:
    calls: list[str] = []

    def arm(name: str) -> Callable[[], float]:
        return lambda: (calls.append(name), 1.0)[1]

    result = compare(arm("A"), arm("B"), seed=5)
    assert "".join(calls) == "".join(result.orders)
    assert len(result.a_ms) == len(result.b_ms) == 2 * len(result.orders) == 2 * len(result.ratios)


def test_ratio_is_time_of_b_over_time_of_a() -> None:
    result = compare(constant(2.0), constant(3.0), seed=0)
    assert result.ratio == 1.5
    assert result.interval == Interval(1.5, 1.5)


def test_linear_drift_cancels() -> None:
    """Times that double over the session would bias A-then-B by a percent; here nothing is left."""
    clock = DriftingClock(0.01)
    result = compare(clock.arm(2.0), clock.arm(3.0), seed=0)
    assert max(abs(ratio - 1.5) for ratio in result.ratios) < 1e-12


def test_a_penalty_on_the_first_place_does_not_favour_an_arm() -> None:
    clock = FirstPlacePenalty(0.02)
    result = compare(clock.arm(1.0), clock.arm(1.0), seed=0, limits=Limits(min_count=40, max_count=40))
    assert Counter(ratio > 1 for ratio in result.ratios) == {True: 20, False: 20}
    assert result.interval.contains(1.0)


def test_the_same_seed_gives_the_same_result() -> None:
    def run(seed: int) -> object:
        return compare(noisy(1.0, 0.01, 1), noisy(1.1, 0.01, 2), seed=seed)

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_bootstrap_interval_covers_the_median() -> None:
    """Of 95 % intervals from 25 skewed values, about 95 % hold the true median (here 1)."""
    generator = np.random.default_rng(0)
    trials = 300
    covered = sum(
        bootstrap_interval(np.exp(generator.normal(0, 0.1, 25)).tolist(), seed=trial, resamples=1000).contains(1.0)
        for trial in range(trials)
    )
    assert 0.90 <= covered / trials <= 0.99


def test_control_of_equal_arms_passes() -> None:
    results = [control(noisy(1.0, 0.02, seed), seed=seed) for seed in range(10)]
    assert all(result.passed for result in results)


def test_control_detects_arms_that_should_be_equal_and_are_not() -> None:
    result = control(noisy(1.0, 0.01, 1), noisy(1.02, 0.01, 2), seed=0)
    assert not result.passed
    assert len(result.attempts) == 2
    assert result.attempts[0].seed != result.attempts[1].seed


def test_an_attempt_that_fails_by_chance_is_repeated_and_kept() -> None:
    blocks = Limits(min_count=25, max_count=25)
    state = {"samples": 0}

    def second() -> float:
        state["samples"] += 1
        return 1.05 if state["samples"] <= 50 else 1.0

    result = control(constant(1.0), second, seed=0, limits=blocks)
    assert [attempt.interval.contains(1.0) for attempt in result.attempts] == [False, True]
    assert result.passed


def test_sampling_stops_at_convergence() -> None:
    result = compare(constant(1.0), constant(1.0), seed=0)
    assert (result.stop, len(result.orders)) == ("converged", 25)


def test_sampling_goes_on_until_the_interval_is_narrow() -> None:
    limits = Limits(min_count=25, max_count=400, relative_half_width=0.005)
    result = compare(noisy(1.0, 0.02, 1), noisy(1.0, 0.02, 2), seed=0, limits=limits)
    assert result.stop == "converged"
    assert 25 < len(result.orders) < 400


def test_sampling_stops_at_the_maximum() -> None:
    limits = Limits(min_count=25, max_count=33, relative_half_width=1e-4)
    result = compare(noisy(1.0, 0.1, 1), noisy(1.0, 0.1, 2), seed=0, limits=limits)
    assert (result.stop, len(result.orders)) == ("max_count", 33)


def test_convergence_is_not_looked_at_before_the_minimum() -> None:
    assert stop_reason([1.0] * 24, Limits(), seed=0) is None
    assert stop_reason([1.0] * 25, Limits(), seed=0) == "converged"


@pytest.mark.parametrize("wrong", [{"min_count": 0}, {"min_count": 5, "max_count": 4}, {"relative_half_width": 0.0}])
def test_limits_that_can_not_be_met_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Limits: got"):
        Limits(**wrong)  # type: ignore[arg-type]


def test_outliers_are_flagged_and_stay_in_the_samples() -> None:
    taken = itertools.count()

    def hiccup() -> float:
        index = next(taken)
        return 9.0 if index == 10 else 1.0 + 0.001 * (index % 5)

    series = sample(hiccup, seed=0)
    assert series.samples_ms[10] == 9.0
    assert outliers(series.samples_ms) == (10,)
    assert series.median_ms == median(series.samples_ms)


def test_samples_one_clock_tick_apart_are_no_outliers() -> None:
    values = [1.0] * 20 + [1.0005] * 3
    assert outliers(values) == (20, 21, 22)
    assert outliers(values, smallest=0.0005) == ()


def test_conditions_are_read_once_a_block() -> None:
    readings = itertools.count()

    def observe() -> Conditions:
        return Conditions(next(readings), None, None, None, None)

    result = compare(constant(1.0), constant(1.0), seed=0, observe=observe)
    assert [reading.sm_clock_mhz for reading in result.conditions if reading] == list(range(25))
