"""The prefill benchmark's rows, rates and accuracy, without a GPU: a small row on the emulated V100."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest
import torch

from sm70_kernels.lab import emulator
from tests.unit.benchmark_modules import imported


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """The benchmark module, imported without pytest-benchmark's session."""
    with imported("bench_prefill") as loaded:
        yield loaded


def test_rows_asked_for_are_there(module: ModuleType) -> None:
    shapes = {(row.queries, row.keys, row.group, row.head_dim) for row in module.ROWS.values()}
    standard = {(queries, keys, 6, 256) for queries in (8000, 8192) for keys in (128000, 131072, 256000, 262144)}
    assert shapes == standard | {(1024, 131072, 6, 256), (64, 262144, 6, 256), (8192, 32768, 4, 128)}
    assert {row.name for row in module.ESTIMATED} <= module.ROWS.keys() == module.estimates().keys()


def test_operations_and_bytes_of_a_row(module: ModuleType) -> None:
    """8192 queries of 128000 keys: 6.236 TFLOP, which another system does in 80.976 ms at 77.01 TFLOP/s."""
    row = module.Row(8192, 128000)
    assert row.flops / 80.976e-3 == pytest.approx(77.01e12, rel=1e-3)
    assert row.bytes_moved == 2 * 256 * (2 * 8192 * 6 + 2 * 128000)


def test_a_row_runs_and_is_compared(module: ModuleType) -> None:
    job = module.Job(module.Row(5, 70, group=2, head_dim=64), torch.device("cpu"))
    job.other.zero_()
    with emulator.enabled():
        job.launch()
    found = job.accuracy()
    assert found["right"] and found["finite"] and found["sampled_rows"] == 5
    assert found["relative_l2"] < 5e-4 and found["relative_l2_torch"] == 1.0
    job.out[0, 2] = 0.0
    assert not job.accuracy()["right"]


def test_kernels_of_two_images_are_refused(module: ModuleType) -> None:
    with pytest.raises(RuntimeError, match="want kernels of one image"):
        module.images_that_ran({}, {"a": {"ptx": 1}, "b": {"cubin": 1}})
    after = {"a": {"cubin": 2}, "b": {"cubin": 1}}
    assert module.images_that_ran({"a": {"cubin": 1}}, after) == ({"a", "b"}, "cubin")
