"""The kv_cache benchmark from set-up to record, with the reference in place of the GPU operator and a made-up clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.bench.conditions import Conditions
from sm70_kernels.bench.roofs import Roof
from sm70_kernels.bench.series import sample
from sm70_kernels.bench.timing import Resolution
from sm70_kernels.ops import kv_cache
from tests.unit.benchmark_modules import imported


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """The benchmark module, imported without pytest-benchmark's session."""
    with imported("bench_kv_cache") as loaded:
        yield loaded


class ReferenceOps:
    """The operator module's interface, by its own signatures, on CPU tensors; counts launches like the library."""

    FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16}  # noqa: RUF012
    TILE_TOKENS = 16

    def __init__(self, corrupt: Callable[[Tensor], object] | None = None) -> None:
        self.counts: dict[str, dict[str, int]] = {}
        self.library = SimpleNamespace(launch_counts=lambda: {name: dict(of) for name, of in self.counts.items()})
        self.corrupt = corrupt or (lambda _tensor: None)

    def _count(self, kernel: str) -> None:
        images = self.counts.setdefault(kernel, {"ptx": 0})
        images["ptx"] += 1

    def gather_paged_kv(self, *arguments: Any, k_out: Tensor, v_out: Tensor, **kinds: Any) -> None:
        inspect.signature(kv_cache.gather_paged_kv).bind(*arguments, k_out=k_out, v_out=v_out, **kinds)
        self._count("kv_cache_gather")
        reference.gather_paged_kv(*arguments, k_out=k_out, v_out=v_out, **kinds)
        self.corrupt(k_out)

    def write_paged_kv(self, *arguments: Any, **kinds: Any) -> None:
        inspect.signature(kv_cache.write_paged_kv).bind(*arguments, **kinds)
        self._count("kv_cache_write")
        reference.write_paged_kv(*arguments, **kinds)
        self.corrupt(arguments[2])


class Clock:
    """Arms take the time that their name calls for."""

    def __init__(self) -> None:
        self.late_samples = self.retakes = 0
        self.flush_bytes = 1
        self.resolution = Resolution(None, 0.0)

    def time_arm(self, arm: Any, cold: bool) -> float:
        return 0.9 if arm.name.endswith(" copy") else 1.0


def run_once(name: str, work: Any, _device: torch.device) -> Any:
    """Stands for ``capture``: every callable runs once."""
    calls: Sequence[Callable[[], object]] = (work,) if callable(work) else work
    for call in calls:
        call()
    return SimpleNamespace(name=name, launches=len(calls))


def gpu() -> Any:
    series = sample(lambda: 1.0, seed=0)
    roof = {name: Roof(name, name, 1e9, "GB/s", series, None) for name in ("copy", "read", "tensor")}
    observed: list[Conditions | None] = [None]
    return SimpleNamespace(
        device=torch.device("cpu"),
        name="made up",
        compute_capability=(7, 0),
        timer=Clock(),
        roofs=roof,
        conditions=SimpleNamespace(read=lambda: observed[0], unavailable="none here"),
    )


@pytest.fixture
def small(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module on the CPU, with few tokens a row."""
    monkeypatch.setattr(module, "kv_cache", ReferenceOps())
    monkeypatch.setattr(module, "capture", run_once)
    monkeypatch.setattr(module, "HEAD_DIM", 16)
    return module


ROWS = [
    ("gather", "e4m3", "scaled", (100,)),
    ("gather", "e5m2", "unit", (99, 49, 1)),
    ("gather", "fp16", "unit", (64,)),
    ("write", "e4m3", "scaled", (100,)),
    ("write", "e5m2", "scaled", (97,)),
    ("write", "fp16", "unit", (90,)),
]


@pytest.mark.parametrize("case", ROWS)
def test_a_row_is_set_up_measured_checked_and_recorded(
    small: ModuleType, monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, str, tuple[int, ...]]
) -> None:
    function, kind, scale, lengths = case
    row = small.Row(function, kind, scale, 48, lengths, "test")
    monkeypatch.setattr(small, "MIN_SAMPLE_BYTES", 2 * row.bytes_moved)
    samples, facts = small.measure(row, gpu())
    record = facts["operator"]
    assert record["exact"] and record["finite"]
    assert record["max_abs_error"] == 0.0
    assert record["relative_l2"] == record["relative_l2_floor"]
    assert record["launches_per_sample"] == 2
    assert record["ratio_to_copy"] == pytest.approx(0.9)
    assert record["image"] == "ptx (JIT)"
    assert record["kernel"] == f"kv_cache_{function}"
    assert record["tokens"] == list(lengths)
    assert facts["copy"]["median_ms"] == pytest.approx(0.9)
    assert len(samples.comparison.a_ms) == 50


@pytest.mark.parametrize("function", ["gather", "write"])
def test_a_wrong_result_is_seen(small: ModuleType, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    def first_element_goes_wrong(tensor: Tensor) -> None:
        tensor[0, 0, 0, 0] = 3

    monkeypatch.setattr(small, "kv_cache", ReferenceOps(corrupt=first_element_goes_wrong))
    monkeypatch.setattr(small, "MIN_SAMPLE_BYTES", 1)
    row = small.Row(function, "e4m3", "unit", 48, (47,), "test")
    _samples, facts = small.measure(row, gpu())
    assert not facts["operator"]["exact"]
    assert facts["operator"]["verdict"] == "not claimed"
    assert facts["operator"]["flags"] == ["wrong result"]


def test_bytes_of_a_row(module: ModuleType) -> None:
    """E4M3 at 128K: 1 byte read and 2 written, or the reverse, for each element of K and V."""
    elements = 2 * 131072 * 256
    assert module.GATHER_ROWS["gather-e4m3-unit-page800-B1-128K"].bytes_moved == 3 * elements
    assert module.WRITE_ROWS["write-fp16-unit-page1568-B1-128K"].bytes_moved == 4 * elements
    mixed = module.Row("gather", "e4m3", "unit", 800, (17, 1), "test")
    assert mixed.bytes_moved == 2 * 256 * (18 + 2 * (32 + 16))


def test_rows_asked_for_are_there(module: ModuleType) -> None:
    rows = {**module.GATHER_ROWS, **module.WRITE_ROWS}
    assert len(rows) == 30 + 20
    assert {row.page for row in rows.values()} == {800, 1568}
    assert {row.format for row in rows.values()} == {"e4m3", "e5m2", "fp16"}
    assert all(1 <= row.launches <= 8 for row in rows.values())
    assert all(row.bytes_moved % 2 == 0 for row in rows.values())


def test_two_kernels_in_a_row_are_refused(module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="want exactly one"):
        module.image_that_ran({}, {"a": {"ptx": 1}, "b": {"ptx": 1}})
    assert module.image_that_ran({"a": {"cubin": 1}}, {"a": {"cubin": 2}}) == ("a", "cubin")
