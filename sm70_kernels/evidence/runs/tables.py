"""The tables of README and docs, from committed run folders and ``docs/published.json``.

A generated block lies between two comments, ``<!-- generated: NAME -->`` and ``<!-- end generated -->``. Committed are
the runs that ``results/INDEX`` names; of each session the latest passing one counts. Of a run through the PTX JIT on
another GPU only ratios to a copy are shown, never times: a memory-bound kernel keeps up with a copy or doesn't.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.integrity import currency, sums
from sm70_kernels.evidence.runs import readme_table, samples
from sm70_kernels.evidence.runs.schema import (
    BENCHMARK,
    ENVIRONMENT,
    MANIFEST,
    Environment,
    EvidenceError,
    Manifest,
    Record,
    read,
)
from sm70_kernels.evidence.sessions.benchmarks import EMULATOR_LABEL

PUBLISHED = "docs/published.json"
#: Files with generated blocks, and no measured figure elsewhere.
README, RESULTS = "README.md", "docs/results.md"

_BLOCK = re.compile(r"(<!-- generated: ([a-z-]+) -->\n)(.*?)(<!-- end generated -->)", re.DOTALL)
_CONTEXT = "128K"


class Source(Record, kw_only=True, frozen=True):
    """Where a figure was published."""

    title: str
    where: str
    url: str

    @property
    def link(self) -> str:
        """Its name, as a Markdown link."""
        return f"[{self.where}]({self.url})"


class Roof(Record, kw_only=True, frozen=True):
    """What a V100 reached, or is said to reach, as a device."""

    what: str
    hardware: str
    kind: str
    value: str
    unit: str
    source: str


class Figure(Record, kw_only=True, frozen=True):
    """What another system reached on V100."""

    operator: str
    row: str
    bench_row: str | None
    """The row of ``benchmarks/`` that is the same work, where there is one."""
    milliseconds: str | None
    rate: str | None
    remark: str | None
    source: str


class Published(Record, kw_only=True, frozen=True):
    """docs/published.json: figures of others, as they were written."""

    schema_version: int
    accessed: str
    sources: dict[str, Source]
    roofs: list[Roof]
    operators: list[Figure]


@dataclass(frozen=True)
class Run:
    """A committed run."""

    folder: Path
    manifest: Manifest
    environment: Environment

    @property
    def where(self) -> str:
        """What was measured on what, in the words that stand beside each figure."""
        device = self.environment.gpus[0] if self.environment.gpus else None
        images = {image for library in self.manifest.libraries for image in library.images()}
        if device is None:
            return "run on the emulated V100 (CPU; no times)"
        if images == {"cubin"} and device.capability == "7.0":
            return f"measured on {device.name}"
        return f"measured on {device.name} (PTX JIT; not V100 times)"

    @property
    def machine(self) -> str:
        """What ran it."""
        return self.environment.gpus[0].name if self.environment.gpus else "no GPU, two CPU cores"

    @property
    def date(self) -> str:
        """The day, UTC."""
        return self.manifest.start[:10]


def latest(root: Path, session: str, *, gpu: bool = True) -> Run:
    """The latest passing committed run of a session, on a GPU or without. Raises EvidenceError when there is none."""
    results = root / "results"
    for name in sorted(sums.read_index(results)[0], reverse=True):
        folder = results / name
        manifest = read(folder / MANIFEST, Manifest)
        if manifest.session == session and manifest.status == "pass" and not manifest.narrowed:
            run = Run(folder, manifest, read(folder / ENVIRONMENT, Environment))
            if bool(run.environment.gpus) == gpu:
                return run
    raise EvidenceError(f"results/{sums.INDEX} names no passing {session} run {'on' if gpu else 'without'} a GPU")


def published(root: Path) -> Published:
    """docs/published.json, read strictly: every figure names a known source."""
    found = msgspec.json.decode((root / PUBLISHED).read_bytes(), type=Published)
    for name in [roof.source for roof in found.roofs] + [figure.source for figure in found.operators]:
        if name not in found.sources:
            raise EvidenceError(f"{PUBLISHED}: {name!r} is no source")
    return found


def kernel_label(run: Run, root: Path) -> str | None:
    """``same kernel`` or ``older``; None when nothing is built here, or from other sources than these.

    ``current`` is left to ``sm70-kernels check-results``: the host side of a DSO changes with every commit and with
    the compiler, and the text of the docs must not.
    """
    try:
        build = built.read(root)
    except EvidenceError:
        return None
    if any(path.startswith(("csrc/ops/", "csrc/device/")) for path in built.stale_sources(build, root)):
        return None
    found = currency.of_run(run.manifest.libraries, build)
    return "same kernel" if found == "current" else found


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _ratios(run: Run) -> list[samples.Row]:
    """The operators' rows beside a copy, at the context that has a target."""
    rows = [row for row in samples.read_rows(run.folder) if row.arm == "operator" and row.ratios]
    rows = [row for row in rows if row.baseline == "copy"]
    return [row for row in rows if row.name.endswith(f"-{_CONTEXT}") and row.kind == samples.MEASURED]


def _least(rows: Sequence[samples.Row]) -> str:
    worst = min(rows, key=lambda row: row.ratio)
    low, high = worst.ratio_interval
    return f"{worst.ratio:.2f} [{low:.2f}, {high:.2f}]"


def overview(root: Path, label: Callable[[Run], str]) -> str:
    """README's table: one line a fact, each with where, when, and whether the kernel is still that."""
    bench, test, memcheck = (latest(root, session) for session in ("bench", "test", "memcheck"))
    rows = []

    def add(what: str, found: str, run: Run) -> None:
        rows.append((what, found, run.where, run.date, label(run)))

    functions: dict[str, list[samples.Row]] = {}
    for row in _ratios(bench):
        functions.setdefault(row.facts["function"], []).append(row)
    for function, group in sorted(functions.items()):
        what = f"`{function}`, {_CONTEXT} tokens: time of a copy / its time, least of {len(group)} rows [95 %]"
        add(what, _least(group), bench)
    counts = test.manifest.counts
    if counts is not None:
        add("operator tests", f"{counts.passed} passed, {counts.failed + counts.errors} failed", test)
    clean = [sweep.tool for sweep in memcheck.manifest.sweeps if sweep.passed]
    tools = f"{len(clean)} of {len(memcheck.manifest.sweeps)} tools clean, each caught its canary"
    add("memory checks", tools, memcheck)
    return table(("what", "result", "where", "date", "kernel"), rows)


def kv_cache(root: Path) -> str:
    """Every row of the context that has a target."""
    run = latest(root, "bench")
    rows = []
    for row in sorted(_ratios(run), key=lambda row: row.name):
        facts = row.facts
        low, high = row.ratio_interval
        target = facts["target_ratio_to_copy"]
        accuracy = "bit-equal to the reference" if facts["exact"] else "differs"
        rows.append(
            (
                f"`{row.name}`",
                f"{row.ratio:.3f} [{low:.3f}, {high:.3f}]",
                "none" if target is None else f"{target:.2f}: {facts['verdict']}",
                accuracy,
                facts["validation"],
            )
        )
    words = f"Ratios to a copy, {run.where}, {run.date}, run `{run.folder.name}`:\n\n"
    return words + table(("row", "time of a copy / its time [95 %]", "target", "values", "library"), rows)


def emulator(root: Path) -> str:
    """How fast the emulator is, on the machine that ran it."""
    run = latest(root, "bench", gpu=False)
    found = json.loads((run.folder / BENCHMARK).read_bytes())["benchmarks"]
    rows = []
    for facts in (entry["extra_info"] for entry in found):
        if facts.get("label") != EMULATOR_LABEL:
            continue
        target = facts["target"]
        verdict = "" if target is None else f"{target:g}: {'reached' if facts['met'] else 'missed'}"
        peak = f"{facts['peak_bytes'] / 1e6:.0f} MB" if "peak_bytes" in facts else ""
        rows.append((facts["row"], str(facts["threads"]), f"{facts['rate']:.1f} {facts['unit']}", verdict, peak))
    words = (
        f"Speed of the emulator itself on a two-core host CPU, {run.date}, run `{run.folder.name}`; no V100 times:\n\n"
    )
    return words + table(("row", "threads", "rate (median)", "target", "peak memory above start"), rows)


def estimates(root: Path) -> str:
    """Every row that the cycle model estimated, one table per operator, beside what another system took on V100."""
    run = latest(root, "bench", gpu=False)
    rows = [row for row in samples.read_rows(run.folder) if row.kind == samples.ESTIMATED]
    bases = {json.dumps([row.facts["machine"], row.facts["estimated_clock_mhz"], row.device]) for row in rows}
    if len(bases) != 1:
        raise EvidenceError(f"{run.folder.name}: estimated rows rest on {len(bases)} machines, want one")
    machine, clock, device = json.loads(bases.pop())
    replaced = {figure.bench_row: figure for figure in published(root).operators if figure.bench_row}
    parts = [
        f"Estimated, not measured, by the cycle model: {device} at {clock:g} MHz and {machine['dram_gbps']:g} GB/s, "
        f"machine table revision {machine['revision']}, {run.date}, run `{run.folder.name}`. `docs/cycle-model.md` has "
        "the error to expect. Rates are of what a call must move or compute; the share of the roof is that of the "
        "busier of DRAM and tensor cores, with all that the kernels move. Published figures are others' measurements "
        "on V100, with their sources below.\n"
    ]
    for operator in sorted({row.operator for row in rows}):
        lines = []
        for row in sorted((row for row in rows if row.operator == operator), key=_natural):
            facts, figure = row.facts, replaced.get(row.name)
            busy = facts["estimated_utilisation"]
            by_tensor = facts["estimated_tflops"] is not None and busy["tensor"] > busy["dram"]
            rate = f"{facts['estimated_tflops']:.1f} TFLOP/s" if by_tensor else f"{facts['estimated_gbps']:.0f} GB/s"
            lines.append(
                (
                    f"`{row.name}`",
                    f"{facts['estimated_ms']:.4f} ms",
                    rate,
                    f"{facts['estimated_share_of_roof']:.0%}".replace("%", " %"),
                    facts["estimated_bound"],
                    f"{figure.milliseconds} ms" if figure and figure.milliseconds else "",
                )
            )
        columns = ("row", "estimated", "rate", "of roof", "bound", "replaced system, as published")
        parts.append(f"### {operator}, estimated\n\n{table(columns, lines)}")
    return "\n".join(parts)


def replaced(root: Path) -> str:
    """README's times: estimated for a V100, beside what the replaced system published."""
    run = latest(root, "bench", gpu=False)
    rows = (row for row in samples.read_rows(run.folder) if row.kind == samples.ESTIMATED)
    return table(readme_table.TIMES, readme_table.times(rows, published(root)))


def durations(root: Path) -> str:
    """How long each session took in the latest committed run of it, on a GPU and without."""
    runs = [Run(*found) for found in readme_table.latest_sessions(root / "results")]
    return table(
        readme_table.DURATIONS, [(*readme_table.duration(run.manifest), run.machine, run.date) for run in runs]
    )


def _natural(row: samples.Row) -> list[tuple[int, str]]:
    """Sorts numbers in names by their value."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", row.name)]


def roofs(root: Path) -> str:
    """What others say of the card."""
    found = published(root)
    rows = [
        (roof.what, roof.hardware, f"{roof.value} {roof.unit}", roof.kind, found.sources[roof.source].link)
        for roof in found.roofs
    ]
    return table(("roof", "hardware", "value", "kind", "source"), rows) + f"\nAccessed {found.accessed}.\n"


def others(root: Path) -> str:
    """What another system reached on V100."""
    found = published(root)
    rows = [
        (
            entry.operator,
            entry.row,
            f"{entry.milliseconds} ms" if entry.milliseconds else "",
            entry.rate or "",
            entry.remark or "",
            found.sources[entry.source].link,
        )
        for entry in found.operators
    ]
    used = sorted({entry.source for entry in found.operators})
    words = "".join(f"- {found.sources[name].link}: {found.sources[name].title}.\n" for name in used)
    body = table(("operator", "row", "time", "rate", "remark", "source"), rows)
    return f"{body}\nPublished by others, measured by them on V100, accessed {found.accessed}:\n\n{words}"


def blocks(root: Path, label: Callable[[Run], str]) -> dict[str, str]:
    """Name -> text of every generated block."""
    return {
        "results": overview(root, label),
        "replaced": replaced(root),
        "durations": durations(root),
        "kv-cache": kv_cache(root),
        "emulator": emulator(root),
        "estimates": estimates(root),
        "published-roofs": roofs(root),
        "published-operators": others(root),
    }


def _labels_in(text: str) -> dict[str, str]:
    """The label that a text has now for each session's run, for where nothing is built."""
    sessions = {"operator tests": "test", "memory checks": "memcheck"}
    rows = re.findall(r"^\| ([^|]+?) \|.*\| (same kernel|older) \|$", text, re.MULTILINE)
    return {sessions.get(what, "bench"): label for what, label in rows}


def render(root: Path, name: str) -> str:
    """A file with its blocks as they should be. Raises EvidenceError for a block that nothing generates."""
    text = (root / name).read_text()
    before = _labels_in(text)
    made = blocks(root, lambda run: kernel_label(run, root) or before.get(run.manifest.session, "unknown"))
    unknown = {match.group(2) for match in _BLOCK.finditer(text)} - made.keys()
    if unknown:
        raise EvidenceError(f"{name}: nothing generates the block {min(unknown)!r}")
    return _BLOCK.sub(lambda match: f"{match[1]}\n{made[match[2]]}\n{match[4]}", text)


def outside(text: str) -> str:
    """A file's text without its generated blocks, line numbers kept."""
    return _BLOCK.sub(lambda match: "\n" * match[0].count("\n"), text)
