"""Which test run speaks for a DSO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sm70_kernels.evidence.integrity import validated
from sm70_kernels.evidence.machine.places import here
from sm70_kernels.evidence.runs import run, schema
from sm70_kernels.evidence.sessions import selection
from sm70_kernels.evidence.sessions.benchmarks import Rows, complete, row_label

NEW, OLD = "a" * 64, "b" * 64


def record(results: Path, second: int, *, digest: str = NEW, launches: int = 4, **fields: Any) -> Path:
    """A sealed run of the test session."""
    folder = results / f"20260102T0304{second:02}Z-0123456-test"
    folder.mkdir(parents=True)
    library = schema.Library(
        operator="fake",
        path="sm70_kernels/lib/libsm70_fake.so",
        sha256=digest,
        cubin_sha256="c" * 64,
        ptx_sha256="d" * 64,
        capability_revision=1,
        mapped=True,
        launches={"fake_copy": {"cubin": 0, "ptx": launches}},
    )
    settings: dict[str, Any] = {"session": "test", "status": "pass", "narrowed": False} | fields
    manifest = schema.Manifest(
        reason="",
        commit=None,
        dirty=None,
        build_commit=None,
        command=[],
        start="2026-01-02T03:04:05Z",
        end="2026-01-02T03:04:06Z",
        libraries=[library],
        **settings,
    )
    schema.write(folder / schema.MANIFEST, manifest)
    run.seal(folder)
    return folder


def label(results: Path) -> tuple[str, str | None]:
    verdict = validated.judge(results, {"fake": NEW})["fake"]
    return verdict.label, verdict.run


def test_a_passing_run_with_this_dso_validates(tmp_path: Path) -> None:
    folder = record(tmp_path, 1)
    assert label(tmp_path) == ("validated", folder.name)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "fail"},
        {"status": "superseded"},
        {"session": "bench"},
        {"narrowed": True},
        {"launches": 0},  # a machine without a GPU
    ],
)
def test_runs_that_validate_nothing(tmp_path: Path, fields: dict[str, Any]) -> None:
    record(tmp_path, 1, **fields)
    assert label(tmp_path) == ("unvalidated", None)


def test_no_results_at_all(tmp_path: Path) -> None:
    assert label(tmp_path / "results") == ("unvalidated", None)


def test_the_latest_run_that_launched_the_operator_counts(tmp_path: Path) -> None:
    record(tmp_path, 1, digest=NEW)
    later = record(tmp_path, 2, digest=OLD)
    record(tmp_path, 3, digest=OLD, launches=0)
    assert label(tmp_path) == ("unvalidated", later.name)


def test_a_killed_or_altered_run_validates_nothing(tmp_path: Path) -> None:
    killed, altered = record(tmp_path, 1), record(tmp_path, 2)
    (killed / schema.SUMS).unlink()
    path = altered / schema.MANIFEST
    path.write_text(path.read_text().replace('"dirty": null', '"dirty": false'))
    assert label(tmp_path) == ("unvalidated", None)


def test_rows_follow_their_operator() -> None:
    verdicts = {
        "a": schema.Validation(label="validated", run="r", reason=""),
        "b": schema.Validation(label="unvalidated", run=None, reason=""),
    }
    assert row_label({"extra_info": {"operator": "a"}}, verdicts) == "validated"
    assert row_label({"extra_info": {"operator": "b"}}, verdicts) == "unvalidated"
    assert row_label({}, verdicts) == "unvalidated"
    assert row_label({}, {"a": verdicts["a"]}) == "validated"
    assert row_label({}, {}) == "unvalidated"


def test_an_empty_benchmark_file_goes(tmp_path: Path) -> None:
    path = tmp_path / schema.BENCHMARK
    path.write_text("")  # pytest-benchmark's, when everything was skipped
    assert complete(path, {}, here()) == Rows(0, 0)
    assert not path.exists()


@pytest.mark.parametrize(
    "arguments,narrowed",
    [
        ([], False),
        (["-q", "-x", "-p", "no:cacheprovider"], False),
        (["tests"], False),
        (["tests/ops/"], False),
        (["tests/unit", "tests/ops"], False),
        (["tests/unit"], True),
        (["tests/ops/test_a.py"], True),
        (["tests/ops/test_a.py::test_b"], True),
        (["-k", "gather"], True),
        (["-mslow"], True),
        (["--deselect=tests/ops/test_a.py"], True),
        (["--lf"], True),
    ],
)
def test_narrowing(tmp_path: Path, arguments: list[str], narrowed: bool) -> None:
    for name in ("tests/ops", "tests/unit"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "tests/ops/test_a.py").touch()
    assert selection.narrows(arguments, tmp_path) == narrowed
