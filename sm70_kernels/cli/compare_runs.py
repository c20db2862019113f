"""``sm70-kernels compare A B``: the rows of two runs, paired, with verdicts that respect the noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from sm70_kernels.cli import output
from sm70_kernels.evidence.integrity import sums
from sm70_kernels.evidence.runs import samples
from sm70_kernels.evidence.runs.schema import MANIFEST, SCHEMA_VERSION, EvidenceError, Manifest, Record, read

Verdict = Literal["SAME", "FASTER", "SLOWER"]


class RefusedError(ValueError):
    """The runs can't be compared: the message says why."""


class Estimate(Record, kw_only=True, frozen=True):
    """A median and its 95 % interval, bootstrapped from the raw samples."""

    median: float
    low: float
    high: float


class Pairing(Record, kw_only=True, frozen=True):
    """A quantity of a row in both runs. ``percent`` is how far B's median is above A's."""

    a: Estimate
    b: Estimate
    percent: float
    verdict: Verdict


class ComparedRow(Record, kw_only=True, frozen=True):
    """A row that both runs have."""

    operator: str
    row: str
    arm: str
    time_ms: Pairing
    ratio: Pairing | None
    """Of rows that were paired with a baseline: clock and temperature of the card cancel out."""
    flags_a: list[str]
    flags_b: list[str]


class Comparison(Record, kw_only=True, frozen=True):
    """Two runs of one device."""

    schema_version: int = SCHEMA_VERSION
    a: str
    b: str
    device: str
    kind: str
    same_library: bool
    """Whether both runs mapped the same DSOs: differences are then the session's, not the code's."""
    rows: list[ComparedRow]
    only_a: list[str]
    only_b: list[str]


def _estimate(values: Sequence[float]) -> Estimate:
    import statistics

    low, high = samples.interval(values)
    return Estimate(median=statistics.median(values), low=low, high=high)


def pair(a: Sequence[float], b: Sequence[float], *, more_is_faster: bool) -> Pairing:
    """Two sets of samples: SAME when the intervals of their medians overlap."""
    first, second = _estimate(a), _estimate(b)
    verdict: Verdict = "SAME"
    if first.high < second.low or second.high < first.low:
        verdict = "FASTER" if (second.median > first.median) == more_is_faster else "SLOWER"
    return Pairing(a=first, b=second, percent=100 * (second.median / first.median - 1), verdict=verdict)


def _load(folder: Path) -> tuple[Manifest, list[samples.Row]]:
    try:
        wrong = list(sums.check(folder))
        if wrong:
            raise RefusedError(f"run {folder.name} is not intact: {wrong[0].path} {wrong[0].what}")
        return read(folder / MANIFEST, Manifest), samples.read_rows(folder)
    except EvidenceError as error:
        raise RefusedError(str(error)) from error


def _kinds(rows: Sequence[samples.Row]) -> set[tuple[str, str]]:
    return {(row.kind, row.device) for row in rows}


def _flags(row: samples.Row) -> list[str]:
    return [str(flag) for flag in row.facts.get("flags", ())]


def _choose(a: Sequence[samples.Row], b: Sequence[samples.Row]) -> tuple[str, str]:
    """The kind and device that both runs are about. Raises RefusedError when they are not about the same."""
    # Rows of the emulator's own speed stand beside a device's; they count where there is nothing else.
    first, second = ({kind for kind in _kinds(rows) if kind[0] != samples.HOST} or _kinds(rows) for rows in (a, b))
    kinds, devices = (
        ({kind for kind, _ in first}, {kind for kind, _ in second}),
        (
            {device for _, device in first},
            {device for _, device in second},
        ),
    )
    if kinds[0] != kinds[1] or len(kinds[0]) != 1:
        raise RefusedError(
            f"A has {_list(kinds[0])} times and B has {_list(kinds[1])} times: an estimate can't "
            "be compared with a measurement"
        )
    if devices[0] != devices[1] or len(devices[0]) != 1:
        raise RefusedError(
            f"A ran on {_list(devices[0])} and B ran on {_list(devices[1])}: times of different devices "
            "can't be compared"
        )
    return next(iter(kinds[0])), next(iter(devices[0]))


def _list(values: set[str]) -> str:
    return " and ".join(sorted(values)) or "no rows"


def compare(first: Path, second: Path) -> Comparison:
    """Pair the rows of two run folders. Raises RefusedError."""
    (manifest_a, a), (manifest_b, b) = _load(first.resolve()), _load(second.resolve())
    kind, device = _choose(a, b)
    ours, theirs = (
        {row.key: row for row in rows if (row.kind, row.device) == (kind, device) and row.samples_ms} for rows in (a, b)
    )
    images = [{str(row.facts["image"]) for row in rows.values() if "image" in row.facts} for rows in (ours, theirs)]
    if images[0] != images[1]:
        raise RefusedError(f"A ran {_list(images[0])} and B ran {_list(images[1])}: different machine code by design")
    rows = [_row(row, theirs[key]) for key, row in ours.items() if key in theirs]
    libraries = [
        {library.operator: library.sha256 for library in manifest.libraries} for manifest in (manifest_a, manifest_b)
    ]
    return Comparison(
        a=first.resolve().name,
        b=second.resolve().name,
        device=device,
        kind=kind,
        same_library=libraries[0] == libraries[1],
        rows=rows,
        only_a=[" ".join(key) for key in ours if key not in theirs],
        only_b=[" ".join(key) for key in theirs if key not in ours],
    )


def _row(a: samples.Row, b: samples.Row) -> ComparedRow:
    return ComparedRow(
        operator=a.operator,
        row=a.name,
        arm=a.arm,
        time_ms=pair(a.samples_ms, b.samples_ms, more_is_faster=False),
        ratio=pair(a.ratios, b.ratios, more_is_faster=True) if a.ratios and b.ratios else None,
        flags_a=_flags(a),
        flags_b=_flags(b),
    )


def _shown(pairing: Pairing | None, digits: int) -> tuple[str, str, str]:
    if pairing is None:
        return "", "", ""
    verdict = pairing.verdict if pairing.verdict == "SAME" else f"{pairing.verdict} {abs(pairing.percent):.1f} %"
    return f"{pairing.a.median:.{digits}f}", f"{pairing.b.median:.{digits}f}", verdict


def show(comparison: Comparison, *, as_json: bool) -> None:
    """Print the comparison."""
    if as_json:
        output.json(comparison)
        return
    rows = [
        (
            row.row if row.arm in ("", "operator") else f"{row.row} ({row.arm})",
            *_shown(row.time_ms, 4),
            *_shown(row.ratio, 3),
            ", ".join(sorted({*row.flags_a, *row.flags_b})),
        )
        for row in comparison.rows
    ]
    title = f"A {comparison.a}, B {comparison.b}: {comparison.kind} on {comparison.device}"
    columns = ("row", "A ms", "B ms", "time", "A ratio", "B ratio", "ratio", "flags")
    output.table(title, columns, rows)
    for name, missing in (("A", comparison.only_a), ("B", comparison.only_b)):
        for row in missing:
            print(f"only in {name}: {row}")
    library = "the same libraries" if comparison.same_library else "different libraries"
    counts = [
        sum(row.time_ms.verdict == verdict for row in comparison.rows) for verdict in ("SAME", "FASTER", "SLOWER")
    ]
    print(f"{len(comparison.rows)} rows, {library}: time {counts[0]} SAME, {counts[1]} FASTER, {counts[2]} SLOWER")
