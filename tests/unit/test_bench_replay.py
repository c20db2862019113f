"""pytest-benchmark receives exactly the recorded samples, and benchmarks without a GPU skip with the reason."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import sm70_kernels.ops.kv_cache  # noqa: F401  the inner sessions must not register its operators a second time
from sm70_kernels.bench.replay import ReplayTimer, replay

pytest_plugins = ["pytester"]

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SAMPLES_MS = [0.1, 0.30000000000000004, 1e-3, 7.25, 0.1]

REPLAYED = f"""
    import pytest
    from sm70_kernels.bench.replay import replay, replay_timer

    @pytest.mark.benchmark(timer=replay_timer)
    @pytest.mark.parametrize("factor", [1, 2])
    def test_arm(benchmark, factor):
        replay(benchmark, [factor * sample for sample in {SAMPLES_MS}])
        benchmark.extra_info["factor"] = factor
"""


def test_pytest_benchmark_receives_the_recorded_samples(pytester: pytest.Pytester) -> None:
    # Describing the machine takes seconds and is not what is tested.
    pytester.makeconftest("def pytest_benchmark_generate_machine_info(config):\n    return {}\n")
    pytester.makepyfile(test_replayed=REPLAYED)
    results = pytester.path / "out.json"
    pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--benchmark-json={results}").assert_outcomes(passed=2)
    rows = json.loads(results.read_text())["benchmarks"]
    assert len(rows) == 2
    for row in rows:
        factor = row["extra_info"]["factor"]
        assert row["stats"]["data"] == [factor * sample / 1000 for sample in SAMPLES_MS]  # bit for bit, in order
        assert row["stats"]["rounds"] == len(SAMPLES_MS)
        assert row["stats"]["iterations"] == 1
        assert row["options"]["timer"] == "sm70_kernels.bench.replay.replay_timer"


def test_a_test_that_forgets_the_timer_is_told() -> None:
    """pytest-benchmark then reads its own clock and leaves the samples where they are."""
    unmarked = SimpleNamespace(enabled=True, pedantic=lambda *_args, **_kwargs: None)
    with pytest.raises(RuntimeError, match="2 of 2 samples were not read; mark the test"):
        replay(unmarked, [1.0, 2.0])


def test_replay_works_with_benchmarks_disabled() -> None:
    replay(SimpleNamespace(enabled=False, pedantic=lambda *_args, **_kwargs: None), [1.0, 2.0])


def test_a_clock_without_samples_is_refused() -> None:
    timer = ReplayTimer("t")
    timer.load([2.0])
    assert (timer(), timer()) == (0.0, 2.0)
    with pytest.raises(RuntimeError, match="without samples"):
        timer()


def test_without_a_gpu_every_measurement_skips_with_the_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "-q",
        "-rs",
        "-o",
        "python_files=bench_*.py",
        "-k",
        "(B1-8K or roof) and not estimate",
        str(BENCHMARKS),
    )
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"skipped", "deselected"}
    result.stdout.fnmatch_lines(["SKIPPED*needs a CUDA device, found none"])


def test_another_gpu_is_not_measured_without_being_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("benchmarks_conftest_under_test", BENCHMARKS / "conftest.py")
    assert spec is not None and spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, conftest)  # dataclasses look their module up
    spec.loader.exec_module(conftest)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA H200")
    monkeypatch.delenv("SM70_KERNELS_ALLOW_JIT", raising=False)
    with pytest.raises(pytest.skip.Exception, match=r"^needs a CUDA device of sm_70, found sm_90 \(NVIDIA H200\); "):
        conftest.require_gpu()
    monkeypatch.setenv("SM70_KERNELS_ALLOW_JIT", "1")
    assert conftest.require_gpu() == torch.device("cuda", 0)
