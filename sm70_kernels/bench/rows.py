"""Benchmark rows: an operator paired with a baseline, and the facts that are recorded of it.

The baseline is a copy of as many bytes, or another variant of the operator: ``RowIdentity.baseline`` names it.
``measure_pair`` samples, ``row_facts`` turns the samples into the JSON-ready ``extra_info`` of the row.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sm70_kernels.bench.conditions import Conditions, columns
from sm70_kernels.bench.intervals import LEVEL, Interval, Limits, bootstrap_interval, median, outliers
from sm70_kernels.bench.paired import Comparison, Control, compare, control
from sm70_kernels.bench.roofs import Roof, rate, roof_facts
from sm70_kernels.bench.series import Series, sample
from sm70_kernels.bench.timing import SHORT_RESOLUTIONS, Resolution

#: A session has about 50 rows, and is meant to take a minute or two.
ROW_LIMITS = Limits(min_count=25, max_count=60)
#: A warm series is an orientation, not a claim: fewer samples than the comparison may take.
WARM_LIMITS = Limits(min_count=25, max_count=40)


class LaunchedArm(Protocol):
    """What a row needs to know of an arm."""

    @property
    def launches(self) -> int:
        """Launches in one sample."""


ArmT = TypeVar("ArmT", bound=LaunchedArm)
ArmOf_contra = TypeVar("ArmOf_contra", contravariant=True)


class Timer(Protocol[ArmOf_contra]):
    """The part of :class:`sm70_kernels.bench.timing.DeviceTimer` that sampling uses."""

    late_samples: int
    retakes: int
    resolution: Resolution

    @property
    def flush_bytes(self) -> int:
        """Bytes of memset before each sample."""

    def time_arm(self, arm: ArmOf_contra, cold: bool) -> float:
        """Milliseconds a launch."""


@dataclass(frozen=True)
class Arms(Generic[ArmT]):
    """Arms of a row: ``warm`` is the operator launched as often, but always on the same buffers."""

    operator: ArmT
    baseline: ArmT
    warm: ArmT


@dataclass(frozen=True)
class RowSamples:
    """Everything that was measured of a row. A is the operator, B the baseline."""

    comparison: Comparison
    control: Control
    warm: Series
    launches: int
    """Launches in one sample, of each arm."""
    late_samples: int
    retakes: int
    flush_bytes: int
    resolution: Resolution


@dataclass(frozen=True)
class RowIdentity:
    """What a row is about, independent of its times."""

    row: str
    """Unique name of the row."""
    operator: str
    """The operator's folder and library, ``kv_cache`` for instance; the validation label hangs on it."""
    function: str
    bytes_moved: int
    """Bytes that one launch must read plus bytes it must write."""
    device: str
    compute_capability: tuple[int, int]
    image: str
    """``cubin`` or ``ptx (JIT)``: what the launches of this row ran."""
    target: float | None = None
    """Least ratio to the baseline that the row must reach."""
    baseline: str = "copy"
    """What the operator is paired with; the name of that arm."""
    roof: str = "copy"
    """The roof that the rates are a share of: ``copy`` or ``read``."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Operator facts (shape, page, format, ...), recorded as they are."""


def seed_of(row: str) -> int:
    """The row's seed: a function of its name, so that rows don't depend on which others run."""
    return zlib.crc32(row.encode())


def measure_pair(
    row: str,
    arms: Arms[ArmT],
    timer: Timer[ArmT],
    *,
    observe: Callable[[], Conditions | None],
    limits: Limits = ROW_LIMITS,
) -> RowSamples:
    """Sample a row: cold operator against cold baseline, the operator's A/A control, the operator's warm series.

    ``observe`` reads the card's state after each block of the comparison.
    """
    if not arms.operator.launches == arms.baseline.launches == arms.warm.launches:
        raise ValueError(f"row {row!r}: arms have different numbers of launches a sample, want the same")
    seed = seed_of(row)
    late, retakes = timer.late_samples, timer.retakes

    def operator_cold() -> float:
        return timer.time_arm(arms.operator, cold=True)

    def baseline_cold() -> float:
        return timer.time_arm(arms.baseline, cold=True)

    comparison = compare(operator_cold, baseline_cold, seed=seed, limits=limits, observe=observe)
    self_control = control(operator_cold, seed=seed + 1, limits=limits)
    warm = sample(lambda: timer.time_arm(arms.warm, cold=False), seed=seed, limits=WARM_LIMITS)
    return RowSamples(
        comparison=comparison,
        control=self_control,
        warm=warm,
        launches=arms.operator.launches,
        late_samples=timer.late_samples - late,
        retakes=timer.retakes - retakes,
        flush_bytes=timer.flush_bytes,
        resolution=timer.resolution,
    )


def flags(samples: RowSamples, *, right: bool) -> list[str]:
    """Name what a reader must know before trusting the row. All but ``throttled`` forbid a claim."""
    found = []
    if not right:
        found.append("wrong result")
    if not samples.control.passed:
        found.append("control failed")
    fastest = min(median(samples.comparison.a_ms), median(samples.comparison.b_ms))
    if samples.resolution.too_short(fastest * samples.launches):
        found.append("short sample")
    if samples.late_samples:
        found.append("host time in samples")
    if any(reading is not None and reading.throttled for reading in samples.comparison.conditions):
        found.append("throttled")
    return found


def verdict(interval: Interval, target: float | None, row_flags: list[str]) -> str:
    """``reached`` or ``missed`` when the whole interval is on one side of the target, else ``undecided``.

    ``no target`` for a row without one, ``not claimed`` when a flag forbids a claim.
    """
    if set(row_flags) - {"throttled"}:
        return "not claimed"
    if target is None:
        return "no target"
    if interval.low >= target:
        return "reached"
    return "missed" if interval.high < target else "undecided"


def row_facts(
    identity: RowIdentity, samples: RowSamples, roofs: dict[str, Roof], accuracy: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """``extra_info`` of the row's two tests, by arm: ``operator`` and the baseline. Times in ms, rates in GB/s.

    ``accuracy`` holds at least ``exact``, or ``right`` of an operator whose contract allows errors (bool), and is
    recorded as it is, apart from NaN and infinity, which JSON lacks: they become None.
    """
    comparison = samples.comparison
    row_flags = flags(samples, right=bool(accuracy.get("right", accuracy.get("exact"))))
    common = {
        "row": identity.row,
        "operator": identity.operator,
        "function": identity.function,
        **identity.facts,
        "bytes_moved": identity.bytes_moved,
        "device": identity.device,
        "compute_capability": list(identity.compute_capability),
        "time_label": "V100" if identity.compute_capability == (7, 0) else "not V100",
        "cold": True,
        "launches_per_sample": samples.launches,
        "flags": row_flags,
        "interval_level": LEVEL,
        "roofs": roof_facts(roofs),
    }
    operator = {
        **common,
        "arm": "operator",
        "baseline": identity.baseline,
        "image": identity.image,
        **_arm_facts(comparison.a_ms, comparison, samples, identity, roofs),
        f"ratio_to_{identity.baseline}": comparison.ratio,
        f"ratio_to_{identity.baseline}_interval": _pair(comparison.interval),
        f"target_ratio_to_{identity.baseline}": identity.target,
        "verdict": verdict(comparison.interval, identity.target, row_flags),
        **{key: _json_number(value) for key, value in accuracy.items()},
        "warm": {
            "cold": False,
            "median_ms": samples.warm.median_ms,
            "median_ms_interval": _pair(samples.warm.interval_ms),
            "gbps": rate(identity.bytes_moved, samples.warm.median_ms),
            "stop": samples.warm.stop,
            "samples_ms": list(samples.warm.samples_ms),
        },
        "control": {
            "passed": samples.control.passed,
            "attempts": [
                {**_sampling_facts(attempt), "ratio": attempt.ratio, "interval": _pair(attempt.interval)}
                for attempt in samples.control.attempts
            ],
        },
        "sampling": {
            **_sampling_facts(comparison),
            "conditions": columns(comparison.conditions),
            "retakes": samples.retakes,
            "late_samples": samples.late_samples,
            "flush_bytes": samples.flush_bytes,
            "event_resolution_ms": samples.resolution.ms,
            "event_step_observed_ms": samples.resolution.observed_step_ms,
            "empty_interval_ms": samples.resolution.empty_interval_ms,
            "short_below_resolutions": SHORT_RESOLUTIONS,
        },
    }
    other = _arm_facts(comparison.b_ms, comparison, samples, identity, roofs)
    return {"operator": operator, identity.baseline: {**common, "arm": identity.baseline, **other}}


def _arm_facts(
    samples_ms: tuple[float, ...],
    comparison: Comparison,
    samples: RowSamples,
    identity: RowIdentity,
    roofs: dict[str, Roof],
) -> dict[str, Any]:
    median_ms = median(samples_ms)
    gbps = rate(identity.bytes_moved, median_ms)
    tick_ms = samples.resolution.ms / samples.launches
    return {
        "median_ms": median_ms,
        "median_ms_interval": _pair(bootstrap_interval(samples_ms, seed=comparison.seed)),
        "gbps": gbps,
        "roof": identity.roof,
        f"share_of_{identity.roof}_roof": roofs[identity.roof].share(gbps),
        "outliers": list(outliers(samples_ms, smallest=tick_ms)),
    }


def _sampling_facts(comparison: Comparison) -> dict[str, Any]:
    return {
        "seed": comparison.seed,
        "blocks": len(comparison.orders),
        "stop": comparison.stop,
        "orders": " ".join(comparison.orders),
        "block_ratios": list(comparison.ratios),
    }


def _pair(interval: Interval) -> list[float]:
    return [interval.low, interval.high]


def _json_number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def merge_accuracy(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of several sets of buffers; the smallest floor, which is the strictest."""
    worst: dict[str, Callable[..., Any]] = {"right": min, "finite": min, "relative_l2_floor": min}
    return {key: worst.get(key, max)(result[key] for result in results) for key in results[0]}


def images_that_ran(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> tuple[set[str], str]:
    """Kernels whose launch count grew, and the image that they came from (``cubin``, ``ptx (JIT)``)."""
    grown = {
        (kernel, image)
        for kernel, images in after.items()
        for image, count in images.items()
        if count > before.get(kernel, {}).get(image, 0)
    }
    images = {image for _, image in grown}
    if len(images) != 1:
        raise RuntimeError(f"a benchmark row launched {sorted(grown) or 'no kernel'}, want kernels of one image")
    image = images.pop()
    return {kernel for kernel, _ in grown}, "ptx (JIT)" if image == "ptx" else image
