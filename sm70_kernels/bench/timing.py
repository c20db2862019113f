"""Device time of one CUDA graph replay.

``capture`` turns work on fixed buffers into a graph; ``DeviceTimer.time_arm`` returns the time between two CUDA events
around one replay of it. What the host does is kept out: the stream is given untimed work first (the L2 flush), and
while the device is busy with that the host enqueues event, replay, event. A sample whose first event had already
passed when the host was done holds host time; it is taken again behind more untimed work.

Cold: a memset of at least twice the L2 size comes right before the first event. The memset leaves dirty lines in L2,
whose write-back falls into the timed region, for every arm alike. Warm: the flush, then untimed replays, then the
timed one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

WARM_UPS = 20
#: Untimed replays between flush and timed replay of a warm sample.
WARM_REPLAYS = 3
#: The flush also gives the host time to enqueue: at least this much, 40 to 160 microseconds of memset.
MIN_FLUSH_BYTES = 128 << 20
#: Flushes in a row before a sample is accepted although the host was late.
MAX_FLUSHES = 32
#: "around 0.5 microseconds": CUDA runtime API, cudaEventElapsedTime.
DOCUMENTED_RESOLUTION_MS = 0.0005
#: A sample shorter than this many resolutions is flagged: its rounding error alone is 5 %.
SHORT_RESOLUTIONS = 20
RESOLUTION_SAMPLES = 200

Work = Callable[[], object]

#: torch leaves streams and events without types.
_cuda: Any = torch.cuda


@dataclass(frozen=True)
class GraphArm:
    """A captured graph of ``launches`` calls."""

    name: str
    graph: Any
    launches: int
    work: tuple[Work, ...]
    """The captured callables; they keep the buffers alive that the graph points to."""


@dataclass(frozen=True)
class Resolution:
    """What the event clock can tell apart, in milliseconds."""

    observed_step_ms: float | None
    """Smallest difference seen between readings of empty intervals; None when all were equal."""
    empty_interval_ms: float
    """Median time between two events with nothing between them. It is part of every sample and not subtracted."""

    @property
    def ms(self) -> float:
        """The resolution that counts: the documented one, or the observed step where that is coarser."""
        return max(DOCUMENTED_RESOLUTION_MS, self.observed_step_ms or 0.0)

    def too_short(self, sample_ms: float) -> bool:
        """Whether a whole sample (all launches of a replay, milliseconds) is too short to be trusted."""
        return sample_ms < SHORT_RESOLUTIONS * self.ms


def capture(name: str, work: Work | Sequence[Work], device: torch.device | None = None) -> GraphArm:
    """Warm up 20 times on a side stream, then capture the calls into one graph, in order.

    Each callable works on buffers that exist already and stay where they are. Several callables on distinct buffers
    make one sample of several launches, each of them cold: for kernels too short for the event clock.
    """
    calls = (work,) if callable(work) else tuple(work)
    if not calls:
        raise ValueError(f"capture: arm {name!r}: got no work, want at least one callable")
    with torch.cuda.device(device):
        torch.cuda.synchronize()  # buffers may have been filled on another stream
        stream = _cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                for call in calls:
                    call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for call in calls:
                call()
        graph.replay()  # the first launch of a graph also uploads it
        torch.cuda.synchronize()
    return GraphArm(name, graph, len(calls), calls)


class DeviceTimer:
    """Times graph arms on one device, on a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        """Allocate the flush buffer and measure the resolution of the event clock."""
        self.device = device
        with torch.cuda.device(device):
            self.l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
            self._stream = _cuda.Stream()
            self._flush = torch.empty(max(2 * self.l2_bytes, MIN_FLUSH_BYTES), dtype=torch.uint8, device=device)
            self._start = _cuda.Event(enable_timing=True)
            self._end = _cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
        self.flushes = 1
        """Flushes before each sample; doubled when the host turned out to be slower than the flush."""
        self.retakes = 0
        """Samples that were discarded and taken again because they held host time."""
        self.late_samples = 0
        """Samples that hold host time nevertheless: the limit of flushes was reached."""
        self.resolution = self._measure_resolution()

    @property
    def flush_bytes(self) -> int:
        """Size of the memset before each sample."""
        return self._flush.numel()

    def time_arm(self, arm: GraphArm, cold: bool) -> float:
        """Milliseconds a launch: one graph replay between two events, divided by the arm's launches."""
        return self._time_replay(arm.graph.replay, warm_replays=0 if cold else WARM_REPLAYS) / arm.launches

    def _time_replay(self, replay: Callable[[], None], *, warm_replays: int) -> float:
        with torch.cuda.device(self.device), torch.cuda.stream(self._stream):
            while True:
                for _ in range(self.flushes):
                    self._flush.zero_()
                for _ in range(warm_replays):
                    replay()
                self._start.record(self._stream)
                replay()
                self._end.record(self._stream)
                late = self._start.query()
                self._end.synchronize()
                if not late:
                    break
                if self.flushes >= MAX_FLUSHES:
                    self.late_samples += 1
                    break
                self.flushes *= 2
                self.retakes += 1
        return float(self._start.elapsed_time(self._end))

    def _measure_resolution(self) -> Resolution:
        readings = sorted(self._time_replay(lambda: None, warm_replays=0) for _ in range(RESOLUTION_SAMPLES))
        # Readings are FP32 milliseconds: a difference below a nanosecond is their rounding, not the clock's step.
        steps = [b - a for a, b in itertools.pairwise(readings) if b - a > 1e-6]
        return Resolution(min(steps) if steps else None, readings[len(readings) // 2])
