"""Row facts, verdicts, the table, conditions, and the device timer on a made-up CUDA."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sm70_kernels.bench import Arms, Interval, RowIdentity, measure_pair, render, row_facts, timing
from sm70_kernels.bench.conditions import Conditions, ConditionsReader, columns, reason_names
from sm70_kernels.bench.roofs import Roof, rate
from sm70_kernels.bench.rows import flags, seed_of, verdict
from sm70_kernels.bench.series import sample
from sm70_kernels.bench.timing import DeviceTimer, Resolution

EXACT = {"exact": True, "finite": True, "max_abs_error": 0.0}


@dataclass
class FakeArm:
    """An arm of a fixed time, in milliseconds a launch."""

    cold_ms: float
    warm_ms: float = 0.05
    launches: int = 1


class FakeTimer:
    """Returns the arm's own time."""

    def __init__(self) -> None:
        self.late_samples = self.retakes = 0
        self.flush_bytes = 1 << 27
        self.resolution = Resolution(observed_step_ms=0.000032, empty_interval_ms=0.002)

    def time_arm(self, arm: FakeArm, cold: bool) -> float:
        return arm.cold_ms if cold else arm.warm_ms


def no_conditions() -> Conditions | None:
    return None


def roofs() -> dict[str, Roof]:
    series = sample(lambda: 1.0, seed=0)
    return {
        "copy": Roof("copy", "copy_", 1e9, "GB/s", series, None),
        "read": Roof("read", "sum", 1.1e9, "GB/s", series, None),
        "tensor": Roof("tensor", "matmul", 1e11, "TFLOP/s", series, None),
    }


def identity(**changes: Any) -> RowIdentity:
    base = RowIdentity(
        row="gather-x",
        operator="kv_cache",
        function="gather_paged_kv",
        bytes_moved=90_000_000,
        device="NVIDIA H200",
        compute_capability=(9, 0),
        image="ptx (JIT)",
        target=0.85,
        facts={"page": 800},
    )
    return replace(base, **changes)


def measured(operator_ms: float = 0.1, copy_ms: float = 0.09, launches: int = 1) -> Any:
    arms = Arms(*(FakeArm(ms, launches=launches) for ms in (operator_ms, copy_ms, operator_ms)))
    return measure_pair("gather-x", arms, FakeTimer(), observe=no_conditions)


def test_ratio_rate_and_share_of_a_row() -> None:
    facts = row_facts(identity(), measured(), roofs(), EXACT)["operator"]
    assert facts["ratio_to_copy"] == pytest.approx(0.9)  # copy time / operator time
    assert facts["median_ms"] == 0.1
    assert facts["gbps"] == pytest.approx(900.0)
    assert facts["share_of_copy_roof"] == pytest.approx(0.9)
    assert facts["verdict"] == "reached"
    assert facts["warm"]["median_ms"] == 0.05
    assert facts["page"] == 800


def test_facts_are_json_and_samples_can_be_put_back_in_order() -> None:
    facts = row_facts(identity(), measured(), roofs(), {**EXACT, "max_abs_error": float("nan")})
    text = json.dumps(facts, allow_nan=False)
    assert json.loads(text)["operator"]["max_abs_error"] is None
    sampling = facts["operator"]["sampling"]
    assert len(sampling["orders"].split()) == sampling["blocks"] == len(sampling["block_ratios"])
    assert facts["copy"]["row"] == facts["operator"]["row"]


@pytest.mark.parametrize(("capability", "label"), [((7, 0), "V100"), ((9, 0), "not V100"), ((7, 5), "not V100")])
def test_only_sm_70_makes_a_v100_time(capability: tuple[int, int], label: str) -> None:
    facts = row_facts(identity(compute_capability=capability), measured(), roofs(), EXACT)
    assert {arm["time_label"] for arm in facts.values()} == {label}


def test_a_short_sample_is_flagged_and_not_claimed() -> None:
    facts = row_facts(identity(), measured(0.008, 0.0072), roofs(), EXACT)["operator"]
    assert facts["flags"] == ["short sample"]
    assert facts["verdict"] == "not claimed"


def test_several_launches_make_a_short_kernel_measurable() -> None:
    facts = row_facts(identity(), measured(0.008, 0.0072, launches=8), roofs(), EXACT)["operator"]
    assert facts["flags"] == []
    assert facts["launches_per_sample"] == 8


def test_the_limit_of_a_short_sample_is_twenty_resolutions() -> None:
    resolution = Resolution(observed_step_ms=None, empty_interval_ms=0.002)
    assert resolution.ms == 0.0005
    assert resolution.too_short(0.0099)
    assert not resolution.too_short(0.0101)
    assert Resolution(observed_step_ms=0.001, empty_interval_ms=0.002).ms == 0.001


@pytest.mark.parametrize(
    ("interval", "target", "expected"),
    [
        (Interval(0.86, 0.90), 0.85, "reached"),
        (Interval(0.80, 0.84), 0.85, "missed"),
        (Interval(0.84, 0.86), 0.85, "undecided"),
        (Interval(0.80, 0.84), None, "no target"),
    ],
)
def test_verdict(interval: Interval, target: float | None, expected: str) -> None:
    assert verdict(interval, target, []) == expected
    assert verdict(interval, target, ["throttled"]) == expected
    assert verdict(interval, target, ["control failed"]) == "not claimed"


def test_flags_name_what_is_wrong() -> None:
    good = measured()
    throttled = Conditions(1000, 877, 300.0, 70, ("sw_power_cap",))
    comparison = replace(good.comparison, conditions=(throttled,) * len(good.comparison.orders))
    assert flags(good, right=True) == []
    assert flags(good, right=False) == ["wrong result"]
    assert flags(replace(good, late_samples=1), right=True) == ["host time in samples"]
    assert flags(replace(good, comparison=comparison), right=True) == ["throttled"]
    biased = replace(good.control.attempts[0], interval=Interval(1.01, 1.02))
    assert flags(replace(good, control=replace(good.control, attempts=(biased,))), right=True) == ["control failed"]


def test_the_row_decides_its_seed() -> None:
    assert seed_of("a") == seed_of("a") != seed_of("b")


def test_arms_of_different_launches_are_refused() -> None:
    with pytest.raises(ValueError, match="different numbers of launches"):
        measure_pair(
            "r", Arms(FakeArm(1.0), FakeArm(1.0, launches=2), FakeArm(1.0)), FakeTimer(), observe=no_conditions
        )


def test_rates() -> None:
    assert rate(1e9, 1.0) == 1000.0
    assert rate(1e11, 1.0, "TFLOP/s") == pytest.approx(100.0)


def test_table_shows_rows_and_is_plain_when_piped() -> None:
    missed = row_facts(identity(row="write-y"), measured(0.12), roofs(), EXACT)["operator"]
    reached = row_facts(identity(), measured(), roofs(), EXACT)["operator"]
    text = render([reached, missed], width=80, fancy=False)
    assert "0.900 [0.900, 0.900]" in text
    assert "not V100" in text
    assert "2 rows: 1 missed, 1 reached" in text
    assert "write-y" in text
    assert text.isascii()
    assert "\x1b[" not in text
    assert "\x1b[" in render([missed], width=120, fancy=True)
    assert render([], width=80, fancy=False) == ""


class FakeNvml:
    """NVML of a card that does not tell its power."""

    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    class NVMLError(Exception):
        """As pynvml's."""

    def __init__(self, *, present: bool = True) -> None:
        self.present = present
        self.asked = ""

    def nvmlInit(self) -> None:  # noqa: N802
        if not self.present:
            raise self.NVMLError("Driver Not Loaded")

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        self.asked = uuid
        return uuid

    def nvmlDeviceGetClockInfo(self, _handle: str, clock: int) -> int:  # noqa: N802
        return {1: 1530, 2: 877}[clock]

    def nvmlDeviceGetPowerUsage(self, _handle: str) -> int:  # noqa: N802
        raise self.NVMLError("Not Supported")

    def nvmlDeviceGetTemperature(self, _handle: str, _sensor: int) -> int:  # noqa: N802
        return 41

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: str) -> int:  # noqa: N802
        return 0x4 | 0x20


def test_conditions_are_read_and_what_is_missing_is_none() -> None:
    nvml = FakeNvml()
    reader = ConditionsReader("abc", nvml)
    reading = reader.read()
    assert nvml.asked == "GPU-abc"
    assert reading == Conditions(1530, 877, None, 41, ("sw_power_cap", "sw_thermal_slowdown"))
    assert reading.throttled
    assert reader.unavailable is None


def test_without_nvml_there_are_no_conditions() -> None:
    reader = ConditionsReader("abc", FakeNvml(present=False))
    assert reader.read() is None
    assert reader.unavailable == "Driver Not Loaded"
    assert columns([None, None]) is None


def test_conditions_are_recorded_by_column() -> None:
    table = columns([Conditions(1, 2, 3.0, 4, ()), None])
    assert table is not None
    assert table["power_w"] == [3.0, None]
    assert reason_names(0x1 | 0x4000) == ("gpu_idle", "0x4000")


@pytest.fixture
def fake_timer(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], tuple[DeviceTimer, list[str]]]:
    """A DeviceTimer whose device needs the given number of flushes to stay busy while the host enqueues."""

    class Flush:
        def __init__(self, log: list[str]) -> None:
            self.log = log

        def zero_(self) -> None:
            self.log.append("flush")

        def numel(self) -> int:
            return 1 << 27

    class Nothing:
        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    def make(needed: int) -> tuple[DeviceTimer, list[str]]:
        log: list[str] = []

        def event(*, enable_timing: bool) -> Any:
            def late() -> bool:
                last = max((index for index, entry in enumerate(log) if entry == "sync"), default=0)
                return log[last:].count("flush") < needed

            def synchronize() -> None:
                log.append("sync")

            return SimpleNamespace(
                record=lambda _stream: log.append("event"),
                query=late,
                synchronize=synchronize,
                elapsed_time=lambda _end: 0.5,
            )

        monkeypatch.setattr(timing, "_cuda", SimpleNamespace(Stream=object, Event=event))
        monkeypatch.setattr(torch.cuda, "device", Nothing)
        monkeypatch.setattr(torch.cuda, "stream", Nothing)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda _device: SimpleNamespace(L2_cache_size=50 << 20)
        )
        monkeypatch.setattr(torch, "empty", lambda *_args, **_kwargs: Flush(log))
        timer = DeviceTimer(torch.device("cuda", 0))
        log.clear()
        return timer, log

    return make


def arm_that_logs(log: list[str], launches: int) -> timing.GraphArm:
    return timing.GraphArm("x", SimpleNamespace(replay=lambda: log.append("replay")), launches, ())


def test_a_cold_sample_is_flush_event_replay_event(fake_timer: Any) -> None:
    timer, log = fake_timer(1)
    assert timer.time_arm(arm_that_logs(log, launches=4), cold=True) == 0.5 / 4
    assert log == ["flush", "event", "replay", "event", "sync"]
    assert timer.resolution == Resolution(None, 0.5)


def test_a_warm_sample_replays_between_flush_and_events(fake_timer: Any) -> None:
    timer, log = fake_timer(1)
    timer.time_arm(arm_that_logs(log, launches=1), cold=False)
    assert log == ["flush", *["replay"] * timing.WARM_REPLAYS, "event", "replay", "event", "sync"]


def test_samples_with_host_time_are_taken_again_behind_more_work(fake_timer: Any) -> None:
    timer, log = fake_timer(4)
    timer.time_arm(arm_that_logs(log, launches=1), cold=True)
    # One flush, then two, then four: settled by the first samples, those of the event resolution.
    assert (timer.flushes, timer.retakes, timer.late_samples) == (4, 2, 0)
    assert log == [*["flush"] * 4, "event", "replay", "event", "sync"]


def test_a_host_that_is_always_late_is_recorded(fake_timer: Any) -> None:
    timer, log = fake_timer(10_000)
    before = timer.late_samples
    timer.time_arm(arm_that_logs(log, launches=1), cold=True)
    assert timer.flushes == timing.MAX_FLUSHES
    assert timer.late_samples == before + 1
