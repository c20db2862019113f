"""decode: ``xqa`` paired with ``scalar``, and torch's own way beside them.

Every row is measured once, by the ``measured`` fixture; its two arms then have a test each, which hands the recorded
samples to pytest-benchmark. Short rows launch on several sets of buffers in turn, each of them cold. Without a GPU the
cycle model estimates the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.bench import (
    DeviceTimer,
    EstimatedRow,
    RowSamples,
    capture,
    estimate_row,
    replay_timer,
)
from sm70_kernels.bench.paged import (
    CONTEXTS,
    MIN_SAMPLE_BYTES,
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
from sm70_kernels.ops import decode
from sm70_kernels.ops._arguments import FORMATS

BATCHES = (1, 2, 4, 8, 16, 32)
PAGES = (800, 1568)
#: The contract: relative L2 against float64 within 4 % of what rounding to FP16 costs by itself, and 2e-6.
FLOOR_FACTOR, FLOOR_OFFSET = 1.04, 2e-6
#: What torch's way may take of the free memory.
TORCH_SHARE = 0.6


@dataclass(frozen=True)
class Row:
    """One benchmark row: lengths in tokens, one a sequence."""

    label: str
    page: int
    lengths: tuple[int, ...]
    format: str = "e4m3"
    group: int = 6
    kv_heads: int = 1
    head_dim: int = 256

    @property
    def name(self) -> str:
        """Unique name, also the test's id."""
        return f"decode-{self.format}-G{self.group}-D{self.head_dim}-page{self.page}-{self.label}"

    @property
    def token_bytes(self) -> int:
        """Stored bytes of K and V of a token."""
        return 2 * self.kv_heads * self.head_dim * (2 if self.format == "fp16" else 1)

    @property
    def bytes_moved(self) -> int:
        """K and V that must be read once; Q, output, tables and the states between kernels are not counted."""
        return sum(self.lengths) * self.token_bytes

    @property
    def launches(self) -> int:
        """Launches in one sample."""
        return launches_of_a_sample(self.bytes_moved, MIN_SAMPLE_BYTES)

    @property
    def facts(self) -> dict[str, Any]:
        """The operator facts of the record."""
        return paged_facts(self, self.lengths)


def _rows() -> Iterator[Row]:
    for batch in BATCHES:
        for page in PAGES:
            for label, context in CONTEXTS.items():
                yield Row(f"B{batch}-{label}", page, (context,) * batch)
    for page in PAGES:
        yield Row("B32-256K-and-31-of-1K", page, (K,) * 13 + (256 * K,) + (K,) * 18)
    yield Row("B32-9184", 800, (9184,) * 32)  # as many tokens in equal rows
    for batch in BATCHES:
        yield Row(f"B{batch}-256K", 800, (256 * K,) * batch, format="fp16")
    yield Row("B1-256K", 1568, (256 * K,), format="fp16")
    for kv_format in ("e5m2", "fp16"):
        for batch, label in ((1, "128K"), (8, "64K"), (32, "8K")):
            yield Row(f"B{batch}-{label}", 800, (CONTEXTS[label],) * batch, format=kv_format)
    for group, kv_heads, head_dim in ((4, 1, 128), (8, 1, 128), (16, 1, 128), (1, 1, 256), (4, 2, 64)):
        for batch, label in ((1, "128K"), (16, "64K")):
            yield Row(
                f"B{batch}-{label}", 800, (CONTEXTS[label],) * batch, group=group, kv_heads=kv_heads, head_dim=head_dim
            )


ROWS = {row.name: row for row in _rows()}
#: Blocks that are run whole for an estimate of up to a million tokens: they differ by the units that each gets. Where
#: sequences differ all are, since few blocks then combine much.
ESTIMATE_BLOCKS, ESTIMATE_TOKENS, ALL_BLOCKS = 32, 1 << 20, 1 << 20


def whole_blocks(row: Row, variant: str) -> int | None:
    """Blocks to run from start to end for an estimate; None leaves it to the cycle model."""
    if len(set(row.lengths)) > 1:
        return ALL_BLOCKS
    return ESTIMATE_BLOCKS if sum(row.lengths) <= ESTIMATE_TOKENS and variant == "xqa" else None


#: scalar is estimated for these alone: its blocks are long.
SCALAR_ESTIMATES = ("B1-8K", "B32-8K")


def plan_of(row: Row, variant: str, device: torch.device, table: Tensor) -> decode.DecodePlan:
    """The row's plan."""
    return decode.plan(rows=len(row.lengths), variant=variant, **planned_for(row, table, device))


class Job:
    """One set of buffers of a row: a pool of random values, Q, and for each variant its output and workspace."""

    def __init__(self, row: Row, device: torch.device, seed: int = 0) -> None:
        self.row = row
        self.caches, table, on_device = random_pool(row, row.lengths, device, seed)
        self.table = table.to(device)
        self.lengths = torch.tensor(row.lengths, dtype=torch.int32, device=device)
        heads = row.group * row.kv_heads
        self.q = torch.randn(
            (len(row.lengths), heads, row.head_dim), dtype=torch.float16, device=device, generator=on_device
        )
        self.plans = {variant: plan_of(row, variant, device, table) for variant in decode.VARIANTS}
        self.outputs = {variant: torch.full_like(self.q, math.nan) for variant in decode.VARIANTS}
        self.workspaces = {variant: planned.new_workspace() for variant, planned in self.plans.items()}

    def launch(self, variant: str = "xqa") -> None:
        """Decode all sequences."""
        self.plans[variant].run(
            self.q,
            *self.caches,
            self.table,
            self.lengths,
            **SCALES,
            out=self.outputs[variant],
            workspace=self.workspaces[variant],
        )

    def accuracy(self) -> dict[str, Any]:
        """Both variants against float64 on the same bytes."""
        exact = reference.decode_attention(
            self.q, *self.caches, self.table, self.lengths, **SCALES,
            kv_format=self.row.format, softmax_scale=self.row.head_dim**-0.5,
            chunk_keys=REFERENCE_CHUNK[self.q.device.type],
        ).out  # fmt: skip
        xqa, scalar = (self.outputs[variant] for variant in ("xqa", "scalar"))
        found = {
            "relative_l2": reference.relative_l2(xqa, exact),
            "relative_l2_scalar": reference.relative_l2(scalar, exact),
            "relative_l2_floor": reference.fp16_rounding_floor(exact),
            "max_abs_error": reference.max_abs_error(xqa, exact),
            "differing_from_scalar": reference.fraction_differing(xqa, scalar),
            "finite": bool(xqa.isfinite().all() and scalar.isfinite().all()),
        }
        bound = FLOOR_FACTOR * found["relative_l2_floor"] + FLOOR_OFFSET
        return {"right": max(found["relative_l2"], found["relative_l2_scalar"]) <= bound, **found}

    def torch_attention(self) -> Tensor:
        """What torch offers: gather the pages, convert to FP16, attend. For sequences of one length."""
        (length,) = set(self.row.lengths)

        def gathered(cache: Tensor, scale: float) -> Tensor:
            stored = cache[self.table.long()].flatten(1, 2)[:, :length]
            values = stored if self.row.format == "fp16" else stored.view(FORMATS[self.row.format]).to(torch.float16)
            return (values * scale).transpose(1, 2)

        q = self.q.view(len(self.row.lengths), self.row.kv_heads, self.row.group, self.row.head_dim)
        key, value = (gathered(cache, scale) for cache, scale in zip(self.caches, SCALES.values(), strict=True))
        return torch.nn.functional.scaled_dot_product_attention(q, key, value).view(self.q.shape)


def make_job(row: Row, device: torch.device, seed: int = 0) -> Job:
    """One set of buffers of a row, ready to launch."""
    return Job(row, device, seed)


def estimated_call(row: Row, variant: str = "xqa") -> Callable[[], object]:
    """The row's launch on CPU tensors of no particular values, for the cycle model: only tables and lengths matter."""
    pages, table = page_tables(row.lengths, row.page, torch.Generator().manual_seed(0))
    dtype = torch.float16 if row.format == "fp16" else torch.uint8
    caches = torch.empty((pages, 2, row.page, row.kv_heads, row.head_dim), dtype=dtype).unbind(1)
    q = torch.zeros(len(row.lengths), row.group * row.kv_heads, row.head_dim, dtype=torch.float16)
    out, lengths = torch.empty_like(q), torch.tensor(row.lengths, dtype=torch.int32)
    planned = plan_of(row, variant, torch.device("cpu"), table)
    return partial(planned.run, q, *caches, table, lengths, out=out, workspace=planned.new_workspace())


def estimates() -> dict[str, Callable[[], Callable[[], object]]]:
    """Rows by name, for ``sm70-kernels estimate benchmarks/bench_decode.py:ROW``."""
    return {
        name if variant == "xqa" else f"{name}-{variant}": partial(estimated_call, row, variant)
        for name, row in ROWS.items()
        for variant in decode.VARIANTS
    }


def measure_torch(row: Row, job: Job, timer: DeviceTimer, operator_ms: float) -> dict[str, Any]:
    """torch's way on the same bytes, or why it was not measured."""
    what = "pages gathered by indexing, converted to FP16, scaled_dot_product_attention"
    halves = 2 * sum(row.lengths) * row.kv_heads * row.head_dim * 2
    free = torch.cuda.mem_get_info(timer.device)[0]
    if len(set(row.lengths)) > 1:
        return {"what": what, "not_measured": "sequences of several lengths would need a mask"}
    if 3 * halves > TORCH_SHARE * free:
        return {"what": what, "not_measured": f"needs about {3 * halves >> 20} MiB, {free >> 20} MiB are free"}
    arm = capture(f"{row.name} torch", job.torch_attention, timer.device)
    return measure_beside(row, what, arm, timer, operator_ms)


def measure(row: Row, gpu: Any) -> tuple[RowSamples, dict[str, dict[str, Any]]]:
    """Measure a row: its samples, and the facts of its arms."""
    jobs = [make_job(row, gpu.device, seed) for seed in range(row.launches)]
    routes = [jobs[0].plans[variant].route for variant in decode.VARIANTS]
    samples, identity = measure_against_scalar(
        row, jobs, decode.library, operator="decode", arm="xqa", routes=routes, gpu=gpu
    )
    facts = row_facts(identity, samples, gpu.roofs, merge_accuracy([job.accuracy() for job in jobs]))
    facts["operator"]["torch"] = measure_torch(row, jobs[0], gpu.timer, facts["operator"]["median_ms"])
    return samples, facts


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("arm", ["operator", "scalar"])
@pytest.mark.parametrize("measured", ROWS, indirect=True, scope="module")
def test_decode(measured: Any, arm: str, report: Any) -> None:
    """``xqa`` against ``scalar``. A wrong result fails; times are a record."""
    report(measured, arm)


def _estimated_rows() -> Iterator[tuple[Row, str]]:
    for row in ROWS.values():
        yield row, "xqa"
        if row.label in SCALAR_ESTIMATES and row.page == PAGES[0]:
            yield row, "scalar"


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("row,variant", tuple(_estimated_rows()), ids=lambda value: getattr(value, "name", value))
def test_estimate(row: Row, variant: str, record_estimate: Any) -> None:
    """The same rows by the cycle model, where no GPU measures them."""
    about = EstimatedRow(
        row=row.name if variant == "xqa" else f"{row.name}-{variant}",
        operator="decode",
        function="decode",
        bytes_moved=row.bytes_moved,
        facts={**row.facts, "variant": variant},
    )
    call = estimated_call(row, variant)
    record_estimate(estimate_row(about, call, whole_blocks=whole_blocks(row, variant))[1])
