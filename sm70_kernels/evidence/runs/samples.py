"""Raw samples of benchmark rows: reading them, intervals of their medians, and figures that are not theirs.

The bootstrap is that of ``sm70_kernels.bench.intervals``, which can't be imported without torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from sm70_kernels.evidence.runs.schema import BENCHMARK, EvidenceError
from sm70_kernels.evidence.sessions.benchmarks import EMULATOR_LABEL

_RESAMPLES = 4000
#: Figures are doubles that went through JSON; sums may be taken in another order.
_TOLERANCE = 1e-9

#: What a row's time is: of a device, of the timing model, or of the emulator as a program.
MEASURED, ESTIMATED, HOST = "measured", "estimated", "emulator speed"


@dataclass(frozen=True)
class Row:
    """A benchmark row, as one arm of it was sampled."""

    operator: str
    name: str
    arm: str
    device: str
    kind: str
    samples_ms: tuple[float, ...]
    ratios: tuple[float, ...]
    """Time of the baseline over the operator's, per block; empty where the row has none beside it."""
    facts: Mapping[str, Any]

    @property
    def baseline(self) -> str:
        """What the operator is paired with."""
        return baseline(self.facts)

    @property
    def ratio(self) -> float:
        """Time of the baseline over the operator's: the median of the blocks."""
        return float(self.facts[f"ratio_to_{self.baseline}"])

    @property
    def ratio_interval(self) -> tuple[float, float]:
        """Its 95 % interval."""
        low, high = self.facts[f"ratio_to_{self.baseline}_interval"]
        return float(low), float(high)

    @property
    def key(self) -> tuple[str, str, str]:
        """What pairs it with a row of another run."""
        return self.operator, self.name, self.arm


def baseline(facts: Mapping[str, Any]) -> str:
    """The arm that an operator is paired with. Earlier rows call it ``yardstick``; the earliest have a copy alone."""
    return str(facts.get("baseline", facts.get("yardstick", "copy")))


def _kind(facts: Mapping[str, Any]) -> str:
    label = str(facts.get("time_label", ""))
    if facts.get("label") == EMULATOR_LABEL:
        return HOST
    return ESTIMATED if label.startswith("estimated") else MEASURED


def read_rows(folder: Path) -> list[Row]:
    """The rows of a run. Raises EvidenceError when it has none."""
    path = folder / BENCHMARK
    try:
        found = msgspec.json.decode(path.read_bytes())
        processor = found.get("machine_info", {}).get("cpu", {}).get("brand_raw", "unknown processor")
        return [_row(entry, processor) for entry in found["benchmarks"]]
    except OSError as error:
        raise EvidenceError(f"run {folder.name} has no {BENCHMARK}: it measured nothing") from error
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise EvidenceError(f"{BENCHMARK} of {folder.name} can't be read ({type(error).__name__}: {error})") from error


def _row(entry: dict[str, Any], processor: str) -> Row:
    facts = entry["extra_info"]
    kind = _kind(facts)
    return Row(
        operator=facts.get("operator") or "",
        name=facts.get("row") or entry["name"],
        arm=facts.get("arm") or "",
        device=processor if kind == HOST else facts.get("device") or "unknown device",
        kind=kind,
        samples_ms=tuple(1e3 * seconds for seconds in entry["stats"]["data"]),
        ratios=tuple(facts.get("sampling", {}).get("block_ratios", ())),
        facts=facts,
    )


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """95 % percentile-bootstrap interval of the median."""
    import numpy as np

    data = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(0, data.size, size=(_RESAMPLES, data.size))
    low, high = np.quantile(np.median(data[draws], axis=1), [0.025, 0.975])
    return float(low), float(high)


def _differs(stated: float, found: float) -> bool:
    return not math.isclose(stated, found, rel_tol=_TOLERANCE)


def contradictions(entries: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A sentence for each figure that does not follow from the raw samples beside it."""
    arms: dict[tuple[str, str], list[float]] = {}
    for entry in entries:
        facts, data = entry["extra_info"], entry["stats"]["data"]
        arms[entry["group"] or entry["name"], facts.get("arm", "")] = data
        median = statistics.median(data)
        if _differs(entry["stats"]["median"], median) or (
            "median_ms" in facts and _differs(facts["median_ms"], 1e3 * median)
        ):
            yield f"{entry['name']}: the median is not that of its samples"
    for entry in entries:
        facts = entry["extra_info"]
        stated = facts.get("sampling", {}).get("block_ratios")
        if not stated:
            continue
        other = baseline(facts)
        ours, theirs = (arms.get((entry["group"] or entry["name"], arm), []) for arm in ("operator", other))
        blocks = range(min(len(ours), len(theirs)) // 2)
        found = [sum(theirs[2 * block : 2 * block + 2]) / sum(ours[2 * block : 2 * block + 2]) for block in blocks]
        if len(found) != len(stated) or any(map(_differs, stated, found)):
            yield f"{entry['name']}: the blocks' ratios are not those of the samples of its two arms"
        elif _differs(facts[f"ratio_to_{other}"], statistics.median(stated)):
            yield f"{entry['name']}: the ratio to the {other} is not the median of its blocks"
