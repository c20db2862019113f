"""Hands recorded device times to pytest-benchmark.

pytest-benchmark times a callable with a clock of its own. Here the samples exist already: a pair of arms is sampled
together, and each arm has a test. So the clock itself is replaced by one that replays the samples:
``benchmark.pedantic`` reads it before and after each round, and the difference is the next sample, bit for bit.

    @pytest.mark.benchmark(timer=replay_timer)
    def test_arm(benchmark):
        replay(benchmark, samples_ms)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ReplayTimer:
    """A clock that alternates between 0 and the next loaded sample (seconds)."""

    def __init__(self, name: str) -> None:
        """``name`` is what pytest-benchmark records as the timer."""
        self.__name__ = name
        self._pending: list[float] = []
        self._started = False

    def load(self, samples_s: Sequence[float]) -> None:
        """Set the samples to replay, in order, in seconds; what was left of earlier ones is dropped."""
        self._pending = list(reversed(samples_s))
        self._started = False

    @property
    def remaining(self) -> int:
        """How many samples have not been replayed."""
        return len(self._pending)

    def __call__(self) -> float:
        """Seconds: 0 at the start of a round, the round's sample at its end."""
        if not self._pending:
            raise RuntimeError("replay timer: read without samples; call load() and time with pedantic(iterations=1)")
        self._started = not self._started
        return 0.0 if self._started else self._pending.pop()


replay_timer = ReplayTimer("sm70_kernels.bench.replay.replay_timer")


def _no_work() -> None:
    """The work was done when the samples were taken."""


def replay(benchmark: Any, samples_ms: Sequence[float]) -> None:
    """Give pytest-benchmark's fixture these samples (milliseconds) as its rounds.

    The test must carry ``@pytest.mark.benchmark(timer=replay_timer)``. Raises RuntimeError if it does not.
    """
    replay_timer.load([sample / 1000 for sample in samples_ms])
    benchmark.pedantic(_no_work, rounds=len(samples_ms), iterations=1)
    if benchmark.enabled and replay_timer.remaining:
        raise RuntimeError(
            f"replay: {replay_timer.remaining} of {len(samples_ms)} samples were not read; mark the test with "
            "@pytest.mark.benchmark(timer=replay_timer)"
        )
