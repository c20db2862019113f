"""prefill, paired with torch's memory-efficient attention on the same tensors.

Every row is measured once, by the ``measured`` fixture; its two arms then have a test each, which hands the recorded
samples to pytest-benchmark. Rates are of the operations of causal attention (``reference.prefill_flops``), for both
arms, whether or not an arm does more. Without a GPU the cycle model estimates the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from sm70_kernels import reference
from sm70_kernels.bench import (
    Arms,
    EstimatedRow,
    Limits,
    RowIdentity,
    RowSamples,
    capture,
    estimate_row,
    measure_pair,
    rate,
    replay_timer,
)
from sm70_kernels.bench.rows import images_that_ran, row_facts
from sm70_kernels.ops import prefill

#: Tokens of the standard rows: 8000 and 8192 queries over each of these.
CONTEXTS = (128000, 131072, 256000, 262144)
#: The contract: relative L2 against float64.
RELATIVE_L2 = 5e-4
SAMPLED_ROWS = 48
REFERENCE_CHUNK = {"cpu": 16384, "cuda": 65536}
#: A row takes up to a second on a V100: 12 blocks of four samples, and as many in its control.
LIMITS = Limits(min_count=12, max_count=12)


@dataclass(frozen=True)
class Row:
    """One benchmark row: the last ``queries`` of ``keys`` tokens, causally."""

    queries: int
    keys: int
    group: int = 6
    kv_heads: int = 1
    head_dim: int = 256

    @property
    def name(self) -> str:
        """Unique name, also the test's id."""
        return f"prefill-G{self.group}-D{self.head_dim}-Q{self.queries}-KV{self.keys}"

    @property
    def query_heads(self) -> int:
        """Query heads of all KV heads."""
        return self.group * self.kv_heads

    @property
    def flops(self) -> int:
        """Operations of causal attention."""
        return reference.prefill_flops(self.query_heads, self.head_dim, self.queries, self.keys)

    @property
    def bytes_moved(self) -> int:
        """Q, K, V and output once. What tiles read again is not counted: this is no bound here."""
        return 4 * self.head_dim * (self.queries * self.query_heads + self.keys * self.kv_heads)

    @property
    def facts(self) -> dict[str, Any]:
        """The operator facts of the record."""
        return {
            "shape": {
                "queries": self.queries,
                "keys": self.keys,
                "query_heads": self.query_heads,
                "kv_heads": self.kv_heads,
                "head_dim": self.head_dim,
            },
            "layout": "contiguous",
            "causal": True,
            "flops": self.flops,
        }


def _rows() -> Iterator[Row]:
    for queries in (8192, 8000):
        for keys in CONTEXTS:
            yield Row(queries, keys)
    yield Row(1024, 131072)
    yield Row(64, 262144)
    yield Row(8192, 32768, group=4, head_dim=128)


ROWS = {row.name: row for row in _rows()}
#: Of rows that differ in little but length, one is estimated.
ESTIMATED = [Row(8192, 128000), Row(1024, 131072), Row(64, 262144), Row(8192, 32768, group=4, head_dim=128)]


def plan_of(row: Row, device: torch.device) -> prefill.PrefillPlan:
    """The row's plan."""
    return prefill.plan(
        max_seqlen_q=row.queries,
        max_seqlen_k=row.keys,
        query_heads=row.query_heads,
        kv_heads=row.kv_heads,
        head_dim=row.head_dim,
        device=device,
    )


class Job:
    """The buffers of a row: normal values, an output for each arm, a workspace."""

    def __init__(self, row: Row, device: torch.device, seed: int = 0) -> None:
        self.row = row
        generator = torch.Generator(device).manual_seed(seed)
        shapes = ((row.queries, row.query_heads), (row.keys, row.kv_heads), (row.keys, row.kv_heads))
        self.q, self.k, self.v = (
            torch.randn((1, *shape, row.head_dim), dtype=torch.float16, device=device, generator=generator)
            for shape in shapes
        )
        self.plan = plan_of(row, device)
        self.workspace = self.plan.new_workspace()
        self.out = torch.full_like(self.q, math.nan)
        self.other = torch.full_like(self.q, math.nan)

    def launch(self) -> None:
        """One prefill."""
        self.plan.run(self.q, self.k, self.v, out=self.out, workspace=self.workspace)

    def torch_attention(self) -> None:
        """torch's memory-efficient attention: causal from the lower right, KV heads repeated by strides."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.bias import causal_lower_right

        q = self.q.transpose(1, 2)
        k, v = (
            t.transpose(1, 2).unsqueeze(2).expand(-1, -1, self.row.group, -1, -1).flatten(1, 2)
            if self.row.kv_heads > 1
            else t.transpose(1, 2).expand(-1, self.row.group, -1, -1)
            for t in (self.k, self.v)
        )
        mask = causal_lower_right(self.row.queries, self.row.keys)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            result = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        self.other.copy_(result.transpose(1, 2))

    def accuracy(self) -> dict[str, Any]:
        """Sampled rows of both arms against float64; finiteness of everything."""
        rows = torch.linspace(0, self.row.queries - 1, min(SAMPLED_ROWS, self.row.queries), dtype=torch.float64)
        rows = rows.round().long().to(self.q.device)
        exact = reference.prefill_attention(
            self.q, self.k, self.v, self.row.head_dim**-0.5, rows=rows, chunk_keys=REFERENCE_CHUNK[self.q.device.type]
        ).out
        found = {
            "relative_l2": reference.relative_l2(self.out[:, rows], exact),
            "relative_l2_torch": reference.relative_l2(self.other[:, rows], exact),
            "relative_l2_floor": reference.fp16_rounding_floor(exact),
            "max_abs_error": reference.max_abs_error(self.out[:, rows], exact),
            "sampled_rows": len(rows),
            "finite": bool(self.out.isfinite().all()),
        }
        return {"right": found["relative_l2"] <= RELATIVE_L2, **found}


def estimated_call(row: Row) -> Callable[[], object]:
    """The row's launch on CPU tensors of no particular values, for the cycle model."""
    q = torch.zeros(1, row.queries, row.query_heads, row.head_dim, dtype=torch.float16)
    k, v = (torch.zeros(1, row.keys, row.kv_heads, row.head_dim, dtype=torch.float16) for _ in range(2))
    planned = plan_of(row, torch.device("cpu"))
    return partial(planned.run, q, k, v, out=torch.empty_like(q), workspace=planned.new_workspace())


def estimates() -> dict[str, Callable[[], Callable[[], object]]]:
    """Rows by name, for ``sm70-kernels estimate benchmarks/bench_prefill.py:ROW``."""
    return {name: partial(estimated_call, row) for name, row in ROWS.items()}


def measure(row: Row, gpu: Any) -> tuple[RowSamples, dict[str, dict[str, Any]]]:
    """Measure a row: its samples, and the facts of its arms."""
    job = Job(row, gpu.device)
    before = prefill.library.launch_counts()
    operator = capture(row.name, job.launch, gpu.device)
    kernels, image = images_that_ran(before, prefill.library.launch_counts())
    route = job.plan.route_for(job.k, job.v)
    if kernels - {f"prefill_combine_d{row.head_dim}"} != {route}:
        raise RuntimeError(f"row {row.name} launched {sorted(kernels)}, want {route}")
    baseline = capture(f"{row.name} torch", job.torch_attention, gpu.device)
    arms = Arms(operator, baseline, operator)
    samples = measure_pair(row.name, arms, gpu.timer, observe=gpu.conditions.read, limits=LIMITS)
    identity = RowIdentity(
        row=row.name,
        operator="prefill",
        function="prefill",
        bytes_moved=row.bytes_moved,
        device=gpu.name,
        compute_capability=gpu.compute_capability,
        image=image,
        baseline="torch",
        facts={
            **row.facts,
            "kernel": route,
            "kernels": sorted(kernels),
            "nvml_unavailable": gpu.conditions.unavailable,
        },
    )
    facts = row_facts(identity, samples, gpu.roofs, job.accuracy())
    for arm in facts.values():
        arm["tflops"] = rate(row.flops, arm["median_ms"], "TFLOP/s")
        arm["share_of_tensor_roof"] = gpu.roofs["tensor"].share(arm["tflops"])
    facts["torch"]["what"] = "scaled_dot_product_attention, memory-efficient backend, and a copy of its output"
    return samples, facts


@pytest.mark.timeout(900)
@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("arm", ["operator", "torch"])
@pytest.mark.parametrize("measured", ROWS, indirect=True, scope="module")
def test_prefill(measured: Any, arm: str, report: Any) -> None:
    """The operator against torch's. A wrong result fails; times are a record."""
    report(measured, arm)


@pytest.mark.timeout(900)
@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("row", ESTIMATED, ids=lambda row: row.name)
def test_estimate(row: Row, record_estimate: Any) -> None:
    """The same rows by the cycle model, where no GPU measures them."""
    about = EstimatedRow(
        row=row.name,
        operator="prefill",
        function="prefill",
        bytes_moved=row.bytes_moved,
        flops=row.flops,
        facts=row.facts,
    )
    # Blocks differ by a tile at most, and one of them is half a billion instructions.
    record_estimate(estimate_row(about, estimated_call(row), whole_blocks=1)[1])
