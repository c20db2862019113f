"""verify: draft rows paired with decode's ``scalar``, and the control with FP16 partial results beside them.

Every row is measured once, by the ``measured`` fixture; its two arms then have a test each, which hands the recorded
samples to pytest-benchmark. Beside every time is the error that it buys: against float64, of the rounding alone, of
``scalar``, and of the control (``csrc/test_ops/verify_controls``), the same kernel with partial results in FP16.
Without a GPU the cycle model estimates the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import _native, reference
from sm70_kernels.bench import (
    EstimatedRow,
    RowSamples,
    capture,
    estimate_row,
    replay_timer,
)
from sm70_kernels.bench.paged import (
    CONTEXTS,
    REFERENCE_CHUNK,
    SCALES,
    K,
    launches_of_a_sample,
    measure_against_scalar,
    measure_beside,
    paged_facts,
    planned_for,
    random_pool,
)
from sm70_kernels.bench.pages import page_tables
from sm70_kernels.bench.rows import merge_accuracy, row_facts
from sm70_kernels.ops import decode, verify

#: The contract: relative L2 against float64 within 2 % of what rounding to FP16 costs by itself, and 2e-6.
FLOOR_FACTOR, FLOOR_OFFSET = 1.02, 2e-6
#: Operators of tests, the control among them.
CONTROLS = Path(__file__).resolve().parents[1] / "build" / "test_ops" / "verify_controls" / "libsm70_verify_controls.so"


@dataclass(frozen=True)
class Row:
    """One benchmark row: tokens of each request, of which the last ``q_rows`` are the draft."""

    label: str
    page: int
    totals: tuple[int, ...]
    q_rows: int = 8
    format: str = "e4m3"
    group: int = 6
    kv_heads: int = 1
    head_dim: int = 256

    @property
    def name(self) -> str:
        """Unique name, also the test's id."""
        return f"verify-{self.format}-q{self.q_rows}-G{self.group}-D{self.head_dim}-page{self.page}-{self.label}"

    @property
    def bytes_moved(self) -> int:
        """K and V that must be read once for all rows of a request; nothing else is counted."""
        return sum(self.totals) * 2 * self.kv_heads * self.head_dim

    @property
    def launches(self) -> int:
        """Launches in one sample."""
        return launches_of_a_sample(self.bytes_moved)

    @property
    def has_control(self) -> bool:
        """Whether the control is built for this shape."""
        return self.format == "e4m3" and self.head_dim == 256 and self.kv_heads == 1 and self.group * self.q_rows > 32

    def lengths(self) -> Tensor:
        """int32 ``[B, q_rows]``: each draft token sees itself and what precedes."""
        last = torch.tensor(self.totals, dtype=torch.int32)[:, None]
        return last - torch.arange(self.q_rows - 1, -1, -1, dtype=torch.int32)

    @property
    def facts(self) -> dict[str, Any]:
        """The operator facts of the record."""
        return paged_facts(self, self.totals, q_rows=self.q_rows)


def _rows() -> Iterator[Row]:
    for label, context in CONTEXTS.items():
        yield Row(f"B1-{label}", 3296, (context,))
    yield Row("B1-256K", 848, (256 * K,), q_rows=5)
    yield Row("B4-64K", 3296, (64 * K,) * 4)
    for q_rows in (2, 3, 4, 6, 7):
        yield Row("B1-128K", 3296, (128 * K,), q_rows=q_rows)
    yield Row("B16-8K", 800, (8 * K,) * 16)
    for q_rows in (8, 16):
        yield Row("B1-128K", 3296, (128 * K,), q_rows=q_rows, format="e5m2")


ROWS = {row.name: row for row in _rows()}


def plan_of(row: Row, device: torch.device, table: Tensor) -> verify.VerifyPlan:
    """The row's plan."""
    return verify.plan(requests=len(row.totals), q_rows=row.q_rows, **planned_for(row, table, device))


def scalar_plan_of(row: Row, device: torch.device, table: Tensor) -> decode.DecodePlan:
    """decode's ``scalar`` for the same rows, one after the other."""
    return decode.plan(rows=len(row.totals) * row.q_rows, variant="scalar", **planned_for(row, table, device))


class Job:
    """One set of buffers of a row: a pool of random values, Q, and for each arm its output and workspace."""

    def __init__(self, row: Row, device: torch.device, seed: int = 0) -> None:
        self.row = row
        self.caches, table, on_device = random_pool(row, row.totals, device, seed)
        self.table = table.to(device)
        self.lengths = row.lengths().to(device)
        requests, heads = len(row.totals), row.group * row.kv_heads
        self.requests = torch.arange(requests, dtype=torch.int32, device=device).repeat_interleave(row.q_rows)
        self.q = torch.randn(
            (requests, row.q_rows, heads, row.head_dim), dtype=torch.float16, device=device, generator=on_device
        )
        self.plan, self.scalar_plan = plan_of(row, device, table), scalar_plan_of(row, device, table)
        arms = ("verify", "scalar", *(["control"] if row.has_control else []))
        self.outputs = {arm: torch.full_like(self.q, math.nan) for arm in arms}
        self.workspaces = {arm: (self.scalar_plan if arm == "scalar" else self.plan).new_workspace() for arm in arms}

    def launch(self, arm: str = "verify") -> None:
        """Verify all rows."""
        out, workspace = self.outputs[arm], self.workspaces[arm]
        if arm == "verify":
            self.plan.run(
                self.q,
                *self.caches,
                self.table,
                self.lengths,
                **SCALES,
                out=out,
                workspace=workspace,
            )
        elif arm == "scalar":
            self.scalar_plan.run(
                self.q.flatten(0, 1),
                *self.caches,
                self.table,
                self.lengths.flatten(),
                **SCALES,
                row_requests=self.requests,
                out=out.flatten(0, 1),
                workspace=workspace,
            )
        else:
            torch.ops.sm70_kernels_test.verify_controls(
                self.q,
                *self.caches,
                self.table,
                self.lengths,
                out,
                workspace,
                "halves",
                self.row.head_dim**-0.5,
                *SCALES.values(),
            )

    def accuracy(self) -> dict[str, Any]:
        """All arms against float64 on the same bytes."""
        exact = reference.verify_attention(
            self.q, *self.caches, self.table, self.lengths, **SCALES,
            kv_format=self.row.format, softmax_scale=self.row.head_dim**-0.5,
            chunk_keys=REFERENCE_CHUNK[self.q.device.type],
        ).out  # fmt: skip
        result = self.outputs["verify"]
        found: dict[str, Any] = {
            "relative_l2": reference.relative_l2(result, exact),
            "relative_l2_scalar": reference.relative_l2(self.outputs["scalar"], exact),
            "relative_l2_floor": reference.fp16_rounding_floor(exact),
            "max_abs_error": reference.max_abs_error(result, exact),
            "differing_from_rounded_exact": reference.differing_elements(result, reference.round_to_fp16(exact)),
            "elements": result.numel(),
            "finite": bool(result.isfinite().all()),
        }
        if "control" in self.outputs:
            control = self.outputs["control"]
            changes = reference.group_changes(result, control, exact)
            found |= {
                "relative_l2_control": reference.relative_l2(control, exact),
                "groups_better_than_control": changes.improved,
                "groups_worse_than_control": changes.worsened,
            }
        bound = FLOOR_FACTOR * found["relative_l2_floor"] + FLOOR_OFFSET
        return {"right": found["relative_l2"] <= bound, **found}


def make_job(row: Row, device: torch.device, seed: int = 0) -> Job:
    """One set of buffers of a row, ready to launch."""
    return Job(row, device, seed)


def estimated_call(row: Row, arm: str = "verify") -> Callable[[], object]:
    """The row's launch on CPU tensors of zeros, for the cycle model: only tables and lengths matter."""
    pages, table = page_tables(row.totals, row.page, torch.Generator().manual_seed(0))
    caches = torch.zeros((pages, 2, row.page, row.kv_heads, row.head_dim), dtype=torch.uint8).unbind(1)
    q = torch.zeros(len(row.totals), row.q_rows, row.group * row.kv_heads, row.head_dim, dtype=torch.float16)
    out, lengths, cpu = torch.empty_like(q), row.lengths(), torch.device("cpu")
    if arm == "verify":
        planned = plan_of(row, cpu, table)
        return partial(planned.run, q, *caches, table, lengths, out=out, workspace=planned.new_workspace())
    requests = torch.arange(len(row.totals), dtype=torch.int32).repeat_interleave(row.q_rows)
    scalar = scalar_plan_of(row, cpu, table)
    return partial(
        scalar.run,
        q.flatten(0, 1),
        *caches,
        table,
        lengths.flatten(),
        row_requests=requests,
        out=out.flatten(0, 1),
        workspace=scalar.new_workspace(),
    )


def estimates() -> dict[str, Callable[[], Callable[[], object]]]:
    """Rows by name, for ``sm70-kernels estimate benchmarks/bench_verify.py:ROW``."""
    return {
        name if arm == "verify" else f"{name}-{arm}": partial(estimated_call, row, arm)
        for name, row in ROWS.items()
        for arm in ("verify", "scalar")
    }


def measure_control(row: Row, jobs: list[Job], gpu: Any, operator_ms: float) -> dict[str, Any]:
    """The kernel with normalised partial results in FP16, or why it was not measured."""
    what = "the same kernel with normalised partial results in FP16"
    if not row.has_control:
        return {"what": what, "not_measured": "not built for this shape"}
    calls = [partial(job.launch, "control") for job in jobs]
    arm = capture(f"{row.name} control", calls, gpu.device)
    return measure_beside(row, what, arm, gpu.timer, operator_ms)


def measure(row: Row, gpu: Any) -> tuple[RowSamples, dict[str, dict[str, Any]]]:
    """Measure a row: its samples, and the facts of its arms."""
    _native.load("verify_controls", 1, CONTROLS)
    jobs = [make_job(row, gpu.device, seed) for seed in range(row.launches)]
    samples, identity = measure_against_scalar(
        row, jobs, verify.library, operator="verify", arm="verify", routes=[jobs[0].plan.route], gpu=gpu
    )
    for job in jobs if row.has_control else []:
        job.launch("control")
    facts = row_facts(identity, samples, gpu.roofs, merge_accuracy([job.accuracy() for job in jobs]))
    facts["operator"]["fp16_partials"] = measure_control(row, jobs, gpu, facts["operator"]["median_ms"])
    return samples, facts


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("arm", ["operator", "scalar"])
@pytest.mark.parametrize("measured", ROWS, indirect=True, scope="module")
def test_verify(measured: Any, arm: str, report: Any) -> None:
    """``verify`` against ``scalar``. A wrong result fails; times are a record."""
    report(measured, arm)


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_estimate(row: Row, record_estimate: Any) -> None:
    """The same rows by the cycle model, where no GPU measures them."""
    about = EstimatedRow(
        row=row.name, operator="verify", function="verify", bytes_moved=row.bytes_moved, facts=dict(row.facts)
    )
    record_estimate(estimate_row(about, estimated_call(row))[1])
