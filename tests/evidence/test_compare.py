"""``sm70-kernels compare``: SAME within noise, and what is refused."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sm70_kernels.cli import main
from sm70_kernels.cli.compare_runs import pair
from sm70_kernels.evidence.runs import run, samples, schema
from sm70_kernels.evidence.sessions.benchmarks import EMULATOR_LABEL


def noisy(median: float, seed: int, count: int = 60) -> list[float]:
    generator = random.Random(seed)
    return [median * (1 + generator.gauss(0, 0.01)) for _ in range(count)]


@pytest.mark.parametrize(
    "scale,more_is_faster,verdict",
    [
        (1.0, False, "SAME"),
        (0.95, False, "FASTER"),
        (1.05, False, "SLOWER"),
        (1.05, True, "FASTER"),
        (0.95, True, "SLOWER"),
    ],
)
def test_verdicts(scale: float, more_is_faster: bool, verdict: str) -> None:
    found = pair(noisy(1.0, 1), noisy(scale, 2), more_is_faster=more_is_faster)
    assert found.verdict == verdict
    assert found.percent == pytest.approx(100 * (scale - 1), abs=1)
    assert found.a.low < found.a.median < found.a.high


def test_runs_of_the_same_thing_are_rarely_told_apart() -> None:
    verdicts = [pair(noisy(1.0, 2 * n), noisy(1.0, 2 * n + 1), more_is_faster=False).verdict for n in range(40)]
    assert verdicts.count("SAME") >= 38  # disjoint 95 % intervals: less than 1 in 100 by chance


def row(name: str, scale: float, seed: int, **facts: Any) -> dict[str, Any]:
    settings = {
        "row": name,
        "operator": "fake",
        "arm": "operator",
        "device": "Tesla V100-SXM2-32GB",
        "time_label": "V100",
        "image": "cubin",
        "flags": [],
        "sampling": {"block_ratios": noisy(0.9 / scale, seed + 100)},
    } | facts
    data = [1e-3 * sample for sample in noisy(scale, seed)]
    return {"name": f"test[{name}]", "group": name, "extra_info": settings, "stats": {"data": data}}


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Makes a sealed bench run of given rows."""

    def make(second: int, rows: list[dict[str, Any]], sha256: str = "a" * 64) -> Path:
        folder = tmp_path / f"20260102T0304{second:02}Z-nogit-bench"
        folder.mkdir()
        library = schema.Library(
            operator="fake",
            path="sm70_kernels/lib/libsm70_fake.so",
            sha256=sha256,
            cubin_sha256="c" * 64,
            ptx_sha256="d" * 64,
            capability_revision=1,
            mapped=True,
            launches={},
        )
        manifest = schema.Manifest(
            session="bench",
            status="pass",
            reason="",
            commit=None,
            dirty=None,
            build_commit=None,
            command=[],
            start=f"2026-01-02T03:04:{second:02}Z",
            end=None,
            libraries=[library],
        )
        schema.write(folder / schema.MANIFEST, manifest)
        (folder / schema.BENCHMARK).write_text(json.dumps({"benchmarks": rows}))
        run.seal(folder)
        return folder

    return make


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


def test_rows_are_paired_by_name_and_each_gets_its_verdict(record: Callable[..., Path]) -> None:
    a = record(1, [row("slow", 1.0, 1), row("same", 1.0, 2), row("gone", 1.0, 3)])
    b = record(2, [row("same", 1.0, 4), row("slow", 1.1, 5), row("new", 1.0, 6, flags=["throttled"])], sha256="b" * 64)
    found = json.loads(invoke(a, b, "--json").output)
    verdicts = {entry["row"]: entry["time_ms"]["verdict"] for entry in found["rows"]}
    assert verdicts == {"slow": "SLOWER", "same": "SAME"}
    assert {entry["row"]: entry["ratio"]["verdict"] for entry in found["rows"]} == verdicts
    assert (found["only_a"], found["only_b"]) == (["fake gone operator"], ["fake new operator"])
    assert not found["same_library"]
    shown = invoke(a, b)
    assert shown.exit_code == 0
    assert re.search(r"SLOWER (9|10)\.\d %", shown.output)
    assert "2 rows, different libraries: time 1 SAME, 0 FASTER, 1 SLOWER" in shown.output
    assert "only in B: fake new operator" in shown.output


@pytest.mark.parametrize(
    "facts,sentence",
    [
        ({"device": "NVIDIA H200", "time_label": "not V100"}, "times of different devices"),
        ({"time_label": "estimated (emulated V100)"}, "A has measured times and B has estimated times"),
        ({"label": EMULATOR_LABEL}, "A has measured times and B has emulator speed times"),
        ({"image": "ptx (JIT)"}, "A ran cubin and B ran ptx (JIT)"),
    ],
)
def test_what_can_not_be_compared_is_refused(record: Callable[..., Path], facts: dict[str, str], sentence: str) -> None:
    done = invoke(record(1, [row("row", 1.0, 1)]), record(2, [row("row", 1.0, 2, **facts)]))
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())


def test_a_run_that_mixes_devices_a_tampered_one_and_one_without_rows_are_refused(record: Callable[..., Path]) -> None:
    good = record(1, [row("row", 1.0, 1)])
    mixed = record(2, [row("row", 1.0, 1), row("other", 1.0, 1, device="NVIDIA H200")])
    empty, changed = record(3, []), record(4, [row("row", 1.0, 1)])
    (changed / schema.BENCHMARK).write_text("{}")
    for other, sentence in ((mixed, "NVIDIA H200 and"), (empty, "no rows"), (changed, "is not intact")):
        done = invoke(good, other)
        assert done.exit_code == 2
        assert sentence in " ".join(done.output.split())


def test_the_baseline_of_rows_of_every_age() -> None:
    assert samples.baseline({}) == "copy"
    assert samples.baseline({"yardstick": "scalar"}) == "scalar"
    assert samples.baseline({"baseline": "torch"}) == "torch"
