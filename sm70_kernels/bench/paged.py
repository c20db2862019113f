"""What the rows of operators over a paged cache share: contexts, scales, facts, and a pool of random values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.bench.intervals import Limits
from sm70_kernels.bench.pages import page_tables
from sm70_kernels.bench.roofs import rate
from sm70_kernels.bench.rows import Arms, RowIdentity, RowSamples, images_that_ran, measure_pair, seed_of
from sm70_kernels.bench.series import sample
from sm70_kernels.bench.timing import capture
from sm70_kernels.ops._arguments import FORMATS

K = 1024
CONTEXTS = {"8K": 8 * K, "64K": 64 * K, "128K": 128 * K, "256K": 256 * K}
#: Bytes a sample must move to last well beyond the event clock's resolution: 25 us at 4 TB/s, 120 us at 0.8 TB/s.
MIN_SAMPLE_BYTES = 96 << 20
#: k_scale and v_scale: no powers of two, so that nothing is exact by chance.
SCALES = {"k_scale": 0.53, "v_scale": 1.93}
#: Keys that the reference reads at once.
REFERENCE_CHUNK = {"cpu": 16384, "cuda": 65536}
#: What stands beside the two arms of a row is an orientation, and rows are long.
BESIDE_LIMITS = Limits(min_count=25, max_count=25)


class PagedRow(Protocol):
    """A row over a paged cache."""

    @property
    def name(self) -> str: ...
    @property
    def bytes_moved(self) -> int: ...
    @property
    def page(self) -> int: ...
    @property
    def format(self) -> str: ...
    @property
    def group(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def facts(self) -> dict[str, Any]: ...


def planned_for(row: PagedRow, table: Tensor, device: torch.device) -> dict[str, Any]:
    """The arguments of a plan that follow from heads, cache and table."""
    return {
        "query_heads": row.group * row.kv_heads, "kv_heads": row.kv_heads, "head_dim": row.head_dim,
        "max_tokens": table.shape[1] * row.page, "kv_format": row.format, "device": device,
    }  # fmt: skip


def paged_facts(row: PagedRow, tokens: Sequence[int], **shape: int) -> dict[str, Any]:
    """The operator facts of the record."""
    heads = {"query_heads": row.group * row.kv_heads, "kv_heads": row.kv_heads, "head_dim": row.head_dim}
    return {
        "shape": {"batch": len(tokens), **shape, **heads},
        "layout": "[pages, 2, page, Hkv, D].unbind(1), shuffled pages",
        "page": row.page,
        "format": row.format,
        **SCALES,
        "tokens": list(tokens),
    }


def random_pool(
    row: PagedRow, tokens: Sequence[int], device: torch.device, seed: int
) -> tuple[tuple[Tensor, ...], Tensor, torch.Generator]:
    """Caches of random values, a block table on the CPU, and the generator on the device, for what follows."""
    pages, table = page_tables(tokens, row.page, torch.Generator().manual_seed(seed))
    on_device = torch.Generator(device).manual_seed(seed)
    shape = (pages, 2, row.page, row.kv_heads, row.head_dim)
    pool = torch.randn(shape, dtype=torch.float16, device=device, generator=on_device)
    if row.format != "fp16":
        pool = pool.to(FORMATS[row.format]).view(torch.uint8)
    return pool.unbind(1), table, on_device


def measure_against_scalar(
    row: PagedRow,
    jobs: Sequence[Any],
    library: _native.Library,
    *,
    operator: str,
    arm: str,
    routes: Sequence[str],
    gpu: Any,
) -> tuple[RowSamples, RowIdentity]:
    """Measure an operator's ``arm`` paired with ``scalar``, on several sets of buffers in turn.

    Args:
        jobs: the sets of buffers; ``launch(arm)`` launches on one.
        library: the operator's DSO.
        routes: the kernels that it must launch beside its combine kernel, that of ``arm`` first.

    Raises:
        RuntimeError: other kernels ran.
    """
    before = library.launch_counts()
    arms = {
        name: capture(f"{row.name} {name}", [partial(job.launch, name) for job in jobs], gpu.device)
        for name in (arm, "scalar")
    }
    kernels, image = images_that_ran(before, library.launch_counts())
    wanted = {*routes, f"{operator}_combine"}
    if kernels != wanted:
        raise RuntimeError(f"row {row.name} launched {sorted(kernels)}, want {sorted(wanted)}")
    warm = arms[arm] if len(jobs) == 1 else capture(f"{row.name} warm", [jobs[0].launch] * len(jobs), gpu.device)
    samples = measure_pair(row.name, Arms(arms[arm], arms["scalar"], warm), gpu.timer, observe=gpu.conditions.read)
    identity = RowIdentity(
        row=row.name,
        operator=operator,
        function=operator,
        bytes_moved=row.bytes_moved,
        device=gpu.name,
        compute_capability=gpu.compute_capability,
        image=image,
        baseline="scalar",
        roof="read",
        facts={**row.facts, "kernel": routes[0], "nvml_unavailable": gpu.conditions.unavailable},
    )
    return samples, identity


def measure_beside(
    row: PagedRow, what: str, arm: Any, timer: Any, operator_ms: float, limits: Limits = BESIDE_LIMITS
) -> dict[str, Any]:
    """Facts of a way that stands beside the two arms of a row, and is not paired with either."""
    series = sample(lambda: timer.time_arm(arm, cold=True), seed=seed_of(row.name), limits=limits)
    return {
        "what": what,
        "median_ms": series.median_ms,
        "gbps": rate(row.bytes_moved, series.median_ms),
        "ratio_to_operator": series.median_ms / operator_ms,
        "samples_ms": list(series.samples_ms),
    }


def launches_of_a_sample(bytes_moved: int, least: int = MIN_SAMPLE_BYTES) -> int:
    """Launches that move at least this many bytes."""
    return max(1, math.ceil(least / bytes_moved))
