"""The decode benchmark from set-up to record, on the emulated V100 and with a made-up clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sm70_kernels.bench import paged
from sm70_kernels.bench.conditions import Conditions
from sm70_kernels.bench.roofs import Roof
from sm70_kernels.bench.series import sample
from sm70_kernels.bench.timing import Resolution
from sm70_kernels.lab import emulator
from tests.unit.benchmark_modules import imported

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """The benchmark module, imported without pytest-benchmark's session."""
    with imported("bench_decode") as loaded:
        yield loaded


@dataclass
class RanArm:
    """What capture makes here: the work, done once."""

    name: str
    launches: int


def capture(name: str, work: Any, _device: torch.device | None = None) -> RanArm:
    calls = (work,) if callable(work) else tuple(work)
    for call in calls:
        call()
    return RanArm(name, len(calls))


class Clock:
    """Milliseconds by the arm's name: xqa is 4 times as fast as scalar, and torch takes 10 times as long."""

    late_samples = retakes = 0
    flush_bytes = 1 << 27
    resolution = Resolution(observed_step_ms=None, empty_interval_ms=0.001)
    device = CPU

    def time_arm(self, arm: RanArm, cold: bool) -> float:
        return {"xqa": 1.0, "scalar": 4.0, "warm": 0.9, "torch": 10.0}.get(arm.name.split()[-1], 1.0)


def no_conditions() -> Conditions | None:
    return None


@pytest.fixture
def gpu(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(paged, "capture", capture)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (1 << 30, 1 << 30))
    series = sample(lambda: 1.0, seed=0)
    roofs = {name: Roof(name, name, 1e9, "GB/s", series, None) for name in ("copy", "read", "tensor")}
    conditions = SimpleNamespace(read=no_conditions, unavailable=[])
    return SimpleNamespace(
        device=CPU, name="made up", compute_capability=(9, 0), timer=Clock(), conditions=conditions, roofs=roofs
    )


@pytest.mark.parametrize("kv_format", ["e4m3", "e5m2", "fp16"])
def test_a_row_from_set_up_to_record(module: ModuleType, gpu: SimpleNamespace, kv_format: str) -> None:
    row = module.Row("B2-small", 48, (100, 100), format=kv_format, group=3, head_dim=64)
    module_min, module.MIN_SAMPLE_BYTES = module.MIN_SAMPLE_BYTES, row.bytes_moved * 2
    try:
        with emulator.enabled():
            _, facts = module.measure(row, gpu)
    finally:
        module.MIN_SAMPLE_BYTES = module_min
    operator = facts["operator"]
    assert set(facts) == {"operator", "scalar"}
    assert operator["ratio_to_scalar"] == pytest.approx(4.0) and operator["median_ms"] == 1.0
    assert operator["right"] and operator["finite"] and operator["image"] == "emulated"
    assert operator["share_of_read_roof"] == pytest.approx(row.bytes_moved / 1e9)
    assert operator["launches_per_sample"] == 2 and operator["verdict"] == "no target"
    assert operator["torch"]["ratio_to_operator"] == pytest.approx(10.0)
    assert operator["kernel"] == f"decode_xqa_{kv_format}_d64_r8"
    json.dumps(facts, allow_nan=False)


def test_torch_computes_the_same(module: ModuleType) -> None:
    """The arm beside ours does the work that ours does, to FP16."""
    row = module.Row("B2-small", 48, (100, 100), group=3, kv_heads=2, head_dim=64)
    job = module.Job(row, CPU)
    with emulator.enabled():
        job.launch("xqa")
    expected = job.outputs["xqa"].float()
    assert float((job.torch_attention().float() - expected).norm() / expected.norm()) < 2e-3


def test_a_wrong_result_is_seen(module: ModuleType) -> None:
    job = module.Job(module.Row("B2-small", 48, (100, 7), group=3, head_dim=64), CPU)
    with emulator.enabled():
        for variant in ("xqa", "scalar"):
            job.launch(variant)
    assert job.accuracy()["right"]
    job.outputs["xqa"][1] *= 1.01
    assert not job.accuracy()["right"]


@pytest.mark.parametrize(
    "lengths,free,reason", [((100, 7), 1 << 40, "would need a mask"), ((100, 100), 1000, "MiB are free")]
)
def test_torch_is_left_out_with_a_reason(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...], free: int, reason: str
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (free, free))
    row = module.Row("B2-small", 48, lengths, group=3, head_dim=64)
    facts = module.measure_torch(row, None, SimpleNamespace(device=CPU), 1.0)
    assert reason in facts["not_measured"]


def test_rows_are_those_of_the_method(module: ModuleType) -> None:
    names = list(module.ROWS)
    assert len(set(names)) == len(names)
    for batch in (1, 2, 4, 8, 16, 32):
        for page in (800, 1568):
            for context in ("8K", "64K", "128K", "256K"):
                assert f"decode-e4m3-G6-D256-page{page}-B{batch}-{context}" in names
    mixed = module.ROWS["decode-e4m3-G6-D256-page800-B32-256K-and-31-of-1K"]
    assert sorted(mixed.lengths) == [1024] * 31 + [262144]
    assert mixed.bytes_moved == (31 * 1024 + 262144) * 512
    equal = module.ROWS["decode-e4m3-G6-D256-page800-B32-9184"]
    assert (len(set(equal.lengths)), equal.bytes_moved) == (1, mixed.bytes_moved)
    for batch in (1, 2, 4, 8, 16, 32):
        assert f"decode-fp16-G6-D256-page800-B{batch}-256K" in names


def test_every_row_can_be_estimated(module: ModuleType) -> None:
    """The calls are made, not run: that no shape is refused."""
    made: dict[str, Callable[[], Any]] = module.estimates()
    assert len(made) == 2 * len(module.ROWS)
    for name in ("decode-e4m3-G6-D256-page800-B1-8K", "decode-fp16-G6-D256-page800-B32-8K-scalar"):
        assert callable(made[name]())
