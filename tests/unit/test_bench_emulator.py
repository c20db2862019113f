"""The emulator's benchmark rows: what they record and how they are shown. Nothing is measured here."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest

from sm70_kernels.evidence.sessions.benchmarks import EMULATOR_LABEL
from tests.unit.benchmark_modules import imported


@pytest.fixture(scope="module")
def module() -> Iterator[ModuleType]:
    """The benchmark module, imported without pytest-benchmark's session."""
    with imported("bench_emulator") as loaded:
        yield loaded


def test_a_row_of_instructions(module: ModuleType) -> None:
    row = module.facts("integer", 2, [0.5, 0.25, 1.0], 20_000_000)
    assert row == {
        "row": "emulator integer",
        "label": EMULATOR_LABEL,
        "threads": 2,
        "warp_instructions": 20_000_000,
        "minstr_per_s": 40.0,  # of the median
        "rate": 40.0,
        "best_rate": 80.0,
        "unit": "M warp instructions/s",
        "target": 30.0,
        "met": True,
    }


def test_a_row_of_steps_has_its_own_target(module: ModuleType) -> None:
    row = module.facts("tensor core", 1, [1.0], 3_000_000, hmma_steps=2_000_000)
    assert (row["rate"], row["minstr_per_s"], row["target"], row["met"]) == (2.0, 3.0, 2.5, False)


def test_a_row_under_the_checkers(module: ModuleType) -> None:
    row = module.facts("integer, all checkers", 2, [1.0], 7_000_000, target=module.TARGET_CHECKED)
    assert (row["rate"], row["target"], row["met"]) == (7.0, 6.0, True)


def test_the_table(module: ModuleType) -> None:
    plain = module.facts("integer", 1, [1.0], 10_000_000)
    real = module.facts("gather", 2, [1.0], 7_000_000)
    real |= {"target": None, "met": None, "peak_bytes": 56e6, "peak_limit_bytes": 276e6}
    lines = module.render([plain, real]).splitlines()
    assert lines[0].split() == ["row", "threads", "rate", "best", "unit", "target", "result", "peak", "memory"]
    assert lines[1].split()[-2:] == ["15.0", "missed"]
    assert lines[2].endswith("no target  56 of 276 MB")
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize(
    "name",
    [
        "integer",
        "single_precision",
        "load_global_32",
        "load_global_128",
        "load_shared",
        "tensor_core",
        "tile_shared_128",
    ],
)
def test_inputs_are_as_large_as_the_kernels_read(module: ModuleType, name: str) -> None:
    (kernel,) = (kernel for kernel in module.CHECKED_KERNELS if kernel.name == name)
    data, out, *scalars = kernel.arguments()
    threads = module.BLOCKS * module.BLOCK
    least = {"load_global_32": 4 * (module.WORDS + 2048), "load_global_128": 16 * (module.WORDS + 2048)}
    assert data.nbytes >= least.get(name, {"tensor_core": 16, "tile_shared_128": 16}.get(name, 4) * threads)
    assert out.nbytes == 4 * threads
    assert all(scalar.nbytes == np.dtype(np.int32).itemsize for scalar in scalars)
    assert f"{name}(" in module.SOURCE.read_text()
