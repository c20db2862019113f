"""Timing that can be believed: graph replays, paired comparisons with a control, and the card's own roofs.

The method and its limits: ``docs/benchmark-method.md``. A comparison of two pieces of work on fixed buffers:

    timer = DeviceTimer(torch.device("cuda", 0))
    a, b = capture("a", work_a), capture("b", work_b)
    result = compare(lambda: timer.time_arm(a, cold=True), lambda: timer.time_arm(b, cold=True), seed=0)
    print(result.ratio, result.interval)  # time of b / time of a
"""

from sm70_kernels.bench.conditions import Conditions, ConditionsReader
from sm70_kernels.bench.estimates import EstimatedRow, estimate_row, record, render_estimates
from sm70_kernels.bench.intervals import Interval, Limits, bootstrap_interval, median, outliers
from sm70_kernels.bench.paired import Comparison, Control, compare, control
from sm70_kernels.bench.replay import replay, replay_timer
from sm70_kernels.bench.roofs import Roof, measure_roofs, rate
from sm70_kernels.bench.rows import Arms, RowIdentity, RowSamples, measure_pair, row_facts
from sm70_kernels.bench.series import Series, sample
from sm70_kernels.bench.table import render
from sm70_kernels.bench.timing import DeviceTimer, GraphArm, Resolution, capture

__all__ = [
    "Arms",
    "Comparison",
    "Conditions",
    "ConditionsReader",
    "Control",
    "DeviceTimer",
    "EstimatedRow",
    "GraphArm",
    "Interval",
    "Limits",
    "Resolution",
    "Roof",
    "RowIdentity",
    "RowSamples",
    "Series",
    "bootstrap_interval",
    "capture",
    "compare",
    "control",
    "estimate_row",
    "measure_pair",
    "measure_roofs",
    "median",
    "outliers",
    "rate",
    "record",
    "render",
    "render_estimates",
    "replay",
    "replay_timer",
    "row_facts",
    "sample",
]
