"""Fixtures of the benchmarks: the GPU with its timer and roofs, and the table of rows at the end of the session."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from sm70_kernels import _variables
from sm70_kernels.bench import (
    ConditionsReader,
    DeviceTimer,
    Roof,
    RowSamples,
    measure_roofs,
    record,
    render,
    render_estimates,
    replay,
)

_ROWS = pytest.StashKey[list[dict[str, Any]]]()
_ESTIMATES = pytest.StashKey[list[dict[str, Any]]]()


@dataclass(frozen=True)
class Gpu:
    """The device under test, for the whole session."""

    device: torch.device
    name: str
    compute_capability: tuple[int, int]
    timer: DeviceTimer
    conditions: ConditionsReader
    roofs: dict[str, Roof]


def require_gpu() -> torch.device:
    """Return the current CUDA device, or skip with the reason why nothing can be measured."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device, found none")
    device = torch.device("cuda", torch.cuda.current_device())
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) != (7, 0) and not _variables.flag("ALLOW_JIT"):
        pytest.skip(
            f"needs a CUDA device of sm_70, found sm_{major}{minor} ({torch.cuda.get_device_name(device)}); "
            "SM70_KERNELS_ALLOW_JIT=1 measures it through PTX"
        )
    return device


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    """The GPU with its roofs measured, before any row."""
    device = require_gpu()
    properties = torch.cuda.get_device_properties(device)
    timer = DeviceTimer(device)
    conditions = ConditionsReader(str(properties.uuid))
    return Gpu(
        device=device,
        name=properties.name,
        compute_capability=(properties.major, properties.minor),
        timer=timer,
        conditions=conditions,
        roofs=measure_roofs(timer, conditions.read),
    )


@pytest.fixture
def record_row(request: pytest.FixtureRequest) -> Callable[[dict[str, Any]], None]:
    """Put an operator row into the table that ends the session."""
    return request.config.stash[_ROWS].append


@pytest.fixture
def record_estimate(request: pytest.FixtureRequest, benchmark: Any) -> Callable[[dict[str, Any]], None]:
    """Record a row of the cycle model, and put it into the table that ends the session. Skips where a GPU measures."""
    if torch.cuda.is_available():
        pytest.skip("a CUDA device is here, and measures this row")

    def take(facts: dict[str, Any]) -> None:
        record(benchmark, facts)
        request.config.stash[_ESTIMATES].append(facts)

    return take


@pytest.fixture(scope="module")
def measured(request: pytest.FixtureRequest, gpu: Gpu) -> tuple[RowSamples, dict[str, dict[str, Any]]]:
    """A row, measured once for the tests of both arms: a parameter of the module's ROWS, by its ``measure``."""
    module: Any = request.module
    samples, facts = module.measure(module.ROWS[request.param], gpu)
    return samples, facts


@pytest.fixture
def report(benchmark: Any, record_row: Callable[[dict[str, Any]], None]) -> Callable[[Any, str], None]:
    """Hand a measured arm to pytest-benchmark. A missed target is a verdict in the record; a wrong result fails."""

    def take(measured: tuple[RowSamples, dict[str, dict[str, Any]]], arm: str) -> None:
        samples, facts = measured
        found = facts[arm]
        benchmark.group = found["row"]
        benchmark.extra_info.update(found)
        replay(benchmark, samples.comparison.a_ms if arm == "operator" else samples.comparison.b_ms)
        if arm == "operator":
            record_row(found)
            right = found["right"] if "right" in found else found["exact"]
            assert right and found["finite"], f"{found['row']}: result differs from the reference"

    return take


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let the rows' own table replace pytest-benchmark's, which knows no pairs; --benchmark-verbose brings it back."""
    config.stash[_ROWS], config.stash[_ESTIMATES] = [], []
    if not config.getoption("benchmark_verbose"):
        config.option.benchmark_quiet = True


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the rows."""
    rows = config.stash[_ROWS]
    if rows:
        terminalreporter.section("benchmark rows")
        fancy = terminalreporter.hasmarkup
        terminalreporter.write(render(rows, width=shutil.get_terminal_size().columns, fancy=fancy))
    estimates = config.stash[_ESTIMATES]
    if estimates:
        terminalreporter.section("estimated rows")
        terminalreporter.write(render_estimates(estimates))
