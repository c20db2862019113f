"""kv_cache: gather and write, each paired with a torch copy of as many bytes.

Every row is measured once, by the ``measured`` fixture; its two arms then have a test each, which hands the recorded
samples to pytest-benchmark. A row of 8K tokens is too short for one launch a sample: it launches on several sets of
buffers in turn, each of them cold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.bench import (
    Arms,
    EstimatedRow,
    RowIdentity,
    RowSamples,
    capture,
    estimate_row,
    measure_pair,
    replay_timer,
)
from sm70_kernels.bench.pages import page_tables
from sm70_kernels.bench.rows import row_facts
from sm70_kernels.ops import kv_cache
from sm70_kernels.ops._arguments import FORMATS

KV_HEADS, HEAD_DIM = 1, 256
PAGES = (800, 1568)
TOKENS = {"8K": (8192,), "128K": (131072,)}
#: 98304 in all, so that the copy beside it moves whole MiB: a captured copy of another size ran at 2.6 instead of
#: 3.8 TB/s on an H200, and would flatter the gather.
MIXED_LENGTHS = (65536, 23952, 8784, 32)
#: k_scale and v_scale: no powers of two, so that the product is rounded.
SCALES = {"unit": (1.0, 1.0), "scaled": (0.0371, 1.93)}
KINDS = (("e4m3", "unit"), ("e4m3", "scaled"), ("e5m2", "unit"), ("e5m2", "scaled"), ("fp16", "unit"))
#: Least ratio to copy at 128K tokens.
TARGET = 0.85
#: Bytes a sample must move to last well beyond the event clock's resolution: 25 us at 4 TB/s, 120 us at 0.8 TB/s.
MIN_SAMPLE_BYTES = 96 << 20
SAMPLED_TOKENS = 256


@dataclass(frozen=True)
class Row:
    """One benchmark row: lengths in tokens, one a batch row."""

    function: str
    format: str
    scale: str
    page: int
    lengths: tuple[int, ...]
    label: str

    @property
    def name(self) -> str:
        """Unique name, also the test's id."""
        return f"{self.function}-{self.format}-{self.scale}-page{self.page}-{self.label}"

    @property
    def stored_bytes(self) -> int:
        """Bytes of a stored element."""
        return 2 if self.format == "fp16" else 1

    @property
    def bytes_moved(self) -> int:
        """K and V payload that must be read and written once; tables and slots are not counted."""
        live = sum(self.lengths)
        halves = live
        if self.function == "gather":  # the output is zeroed to whole tiles
            halves = sum(map(padded, self.lengths))
        return 2 * KV_HEADS * HEAD_DIM * (live * self.stored_bytes + halves * 2)

    @property
    def launches(self) -> int:
        """Launches in one sample."""
        return max(1, math.ceil(MIN_SAMPLE_BYTES / self.bytes_moved))

    @property
    def facts(self) -> dict[str, Any]:
        """The operator facts of the record."""
        k_scale, v_scale = SCALES[self.scale]
        return {
            "shape": {"batch": len(self.lengths), "kv_heads": KV_HEADS, "head_dim": HEAD_DIM},
            "layout": "[pages, 2, page, Hkv, D].unbind(1), shuffled pages",
            "page": self.page,
            "format": self.format,
            "k_scale": k_scale,
            "v_scale": v_scale,
            "tokens": list(self.lengths),
        }


def padded(tokens: int) -> int:
    """Tokens rounded up to whole tiles."""
    return -(-tokens // kv_cache.TILE_TOKENS) * kv_cache.TILE_TOKENS


def _rows(function: str) -> Iterator[Row]:
    for kind, scale in KINDS:
        for page in PAGES:
            for label, lengths in TOKENS.items():
                yield Row(function, kind, scale, page, lengths, f"B1-{label}")
            if function == "gather":
                yield Row(function, kind, scale, page, MIXED_LENGTHS, "B4-mixed")


GATHER_ROWS = {row.name: row for row in _rows("gather")}
WRITE_ROWS = {row.name: row for row in _rows("write")}
#: By name, with :func:`make_job`, for whatever runs a row: the command line's ``hotspots`` for one.
ROWS = {**GATHER_ROWS, **WRITE_ROWS}


class Job(Protocol):
    """One set of buffers of a row."""

    def launch(self) -> None:
        """Enqueue the operator."""

    def accuracy(self) -> dict[str, Any]:
        """Compare what the last launch left with the reference."""


def sample_tokens(length: int, page: int, generator: torch.Generator) -> Tensor:
    """Token indices to check: both ends, both sides of the first page boundaries, and random ones (sorted, int64)."""
    edges = [*range(16), *range(length - 17, length)]
    edges += [boundary + offset for boundary in (page, 2 * page) for offset in (-1, 0)]
    drawn = torch.randint(0, length, (SAMPLED_TOKENS,), generator=generator).tolist()
    return torch.tensor(sorted({*drawn, *(token for token in edges if 0 <= token < length)}))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of uint8 or FP16 hold the same bits."""
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def errors(actual: Tensor, expected: Tensor, exact: Tensor) -> dict[str, float]:
    """Errors of sampled values: against the reference's result, and of both against the unrounded real values."""
    return {
        "max_abs_error": reference.max_abs_error(actual, expected),
        "relative_l2": reference.relative_l2(actual, exact),
        "relative_l2_floor": reference.relative_l2(expected, exact),
    }


class GatherJob:
    """A pool of random values, and outputs of NaN."""

    def __init__(self, row: Row, device: torch.device, seed: int) -> None:
        self.row, self.generator = row, torch.Generator().manual_seed(seed)
        pages, table = page_tables(row.lengths, row.page, self.generator)
        on_device = torch.Generator(device).manual_seed(seed)
        pool = torch.randn(
            (pages, 2, row.page, KV_HEADS, HEAD_DIM), dtype=torch.float16, device=device, generator=on_device
        )
        if row.format != "fp16":
            pool = pool.to(FORMATS[row.format]).view(torch.uint8)
        self.caches = pool.unbind(1)
        self.table = table.to(device)
        self.lengths = torch.tensor(row.lengths, dtype=torch.int32, device=device)
        shape = (len(row.lengths), padded(max(row.lengths)), KV_HEADS, HEAD_DIM)
        self.outputs = [torch.full(shape, math.nan, dtype=torch.float16, device=device) for _ in range(2)]

    def launch(self) -> None:
        """Gather all rows."""
        k_cache, v_cache = self.caches
        k_scale, v_scale = SCALES[self.row.scale]
        kv_cache.gather_paged_kv(
            k_cache,
            v_cache,
            self.table,
            self.lengths,
            k_scale=k_scale,
            v_scale=v_scale,
            kv_format=self.row.format,
            k_out=self.outputs[0],
            v_out=self.outputs[1],
        )

    def accuracy(self) -> dict[str, Any]:
        """Sampled tokens against the reference; finiteness and zero filling of everything written."""
        exact, finite, sampled = True, True, 0
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for index, length in enumerate(self.row.lengths):
            tokens = sample_tokens(length, self.row.page, self.generator).to(self.table.device)
            sampled += len(tokens)
            pages = self.table[index].to(torch.int64)[tokens // self.row.page]
            for cache, output, scale in zip(self.caches, self.outputs, SCALES[self.row.scale], strict=True):
                stored = cache[pages, tokens % self.row.page]
                expected = reference.dequantize_fp16(stored, scale, self.row.format)
                actual = output[index, tokens]
                written = output[index, : padded(length)]
                exact &= same_bits(actual, expected) and not written[length:].any()
                finite &= bool(written.isfinite().all())
                parts.append((actual, expected, reference.dequantize(stored, scale, self.row.format)))
        joined = (torch.cat(group) for group in zip(*parts, strict=True))
        return {"exact": exact, "finite": finite, "sampled_tokens": sampled, **errors(*joined)}


class WriteJob:
    """Random FP16 tokens, caches of NaN, and slots that fill shuffled pages in order."""

    def __init__(self, row: Row, device: torch.device, seed: int) -> None:
        self.row, self.generator = row, torch.Generator().manual_seed(seed)
        (length,) = row.lengths
        pages, table = page_tables(row.lengths, row.page, self.generator)
        tokens = torch.arange(length)
        slots = table[0].to(torch.int64)[tokens // row.page] * row.page + tokens % row.page
        self.slots = slots.to(device)
        on_device = torch.Generator(device).manual_seed(seed)
        shape = (length, KV_HEADS, HEAD_DIM)
        self.inputs = [torch.randn(shape, dtype=torch.float16, device=device, generator=on_device) for _ in range(2)]
        # 0xFF is NaN in both FP8 formats, 0xFFFF in FP16.
        pool = torch.full(
            (pages, 2, row.page, KV_HEADS, HEAD_DIM * row.stored_bytes), 0xFF, dtype=torch.uint8, device=device
        )
        self.caches = (pool.view(torch.float16) if row.format == "fp16" else pool).unbind(1)

    def launch(self) -> None:
        """Write all tokens."""
        (k, v), (k_cache, v_cache) = self.inputs, self.caches
        k_scale, v_scale = SCALES[self.row.scale]
        kv_cache.write_paged_kv(
            k, v, k_cache, v_cache, self.slots, k_scale=k_scale, v_scale=v_scale, kv_format=self.row.format
        )

    def accuracy(self) -> dict[str, Any]:
        """Sampled tokens against the reference; finiteness of everything written."""
        exact, finite = True, True
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        kind, page = self.row.format, self.row.page
        tokens = sample_tokens(self.row.lengths[0], page, self.generator).to(self.slots.device)
        for values, cache, scale in zip(self.inputs, self.caches, SCALES[self.row.scale], strict=True):
            written = cache[self.slots // page, self.slots % page]
            stored = written[tokens]
            expected = reference.quantize(values[tokens], scale, kind)
            exact &= same_bits(stored, expected)
            finite &= bool(written.view(FORMATS[kind]).to(torch.float16).isfinite().all())
            parts.append(
                (
                    reference.dequantize(stored, scale, kind),
                    reference.dequantize(expected, scale, kind),
                    values[tokens].to(torch.float64),
                )
            )
        joined = (torch.cat(group) for group in zip(*parts, strict=True))
        return {"exact": exact, "finite": finite, "sampled_tokens": len(tokens), **errors(*joined)}


def make_job(row: Row, device: torch.device, seed: int = 0) -> Job:
    """One set of buffers of a row, ready to launch."""
    make: Callable[[Row, torch.device, int], Job] = GatherJob if row.function == "gather" else WriteJob
    return make(row, device, seed)


def estimated_call(row: Row) -> Callable[[], None]:
    """The row's launch on CPU tensors of no particular values, for the cycle model: only tables and slots matter."""
    generator = torch.Generator().manual_seed(0)
    pages, table = page_tables(row.lengths, row.page, generator)
    dtype = torch.float16 if row.format == "fp16" else torch.uint8
    caches = torch.empty((pages, 2, row.page, KV_HEADS, HEAD_DIM), dtype=dtype).unbind(1)
    k_scale, v_scale = SCALES[row.scale]
    kinds = {"k_scale": k_scale, "v_scale": v_scale, "kv_format": row.format}
    if row.function == "gather":
        lengths = torch.tensor(row.lengths, dtype=torch.int32)
        shape = (len(row.lengths), padded(max(row.lengths)), KV_HEADS, HEAD_DIM)
        k_out, v_out = (torch.empty(shape, dtype=torch.float16) for _ in range(2))
        gather = kv_cache.gather_paged_kv
        return lambda: gather(*caches, table, lengths, **kinds, k_out=k_out, v_out=v_out) and None
    (length,) = row.lengths
    tokens = torch.arange(length)
    slots = table[0].to(torch.int64)[tokens // row.page] * row.page + tokens % row.page
    k, v = (torch.empty((length, KV_HEADS, HEAD_DIM), dtype=torch.float16) for _ in range(2))
    return lambda: kv_cache.write_paged_kv(k, v, *caches, slots, **kinds)


def estimates() -> dict[str, Callable[[], Callable[[], None]]]:
    """Rows by name, for ``sm70-kernels estimate benchmarks/bench_kv_cache.py:ROW``."""
    return {name: partial(estimated_call, row) for name, row in (GATHER_ROWS | WRITE_ROWS).items()}


def merge_accuracy(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The worst of several sets of buffers."""
    worst: dict[str, Callable[..., Any]] = {"exact": min, "finite": min, "sampled_tokens": sum}
    return {key: worst.get(key, max)(result[key] for result in results) for key in results[0]}


def image_that_ran(before: dict[str, dict[str, int]], after: dict[str, dict[str, int]]) -> tuple[str, str]:
    """Kernel and image (``cubin``, ``ptx (JIT)``) whose launch count grew; exactly one must have."""
    grown = [
        (kernel, image)
        for kernel, images in after.items()
        for image, count in images.items()
        if count > before.get(kernel, {}).get(image, 0)
    ]
    if len(grown) != 1:
        raise RuntimeError(f"a benchmark row launched {grown or 'no kernel'}, want exactly one kernel and image")
    kernel, image = grown[0]
    return kernel, "ptx (JIT)" if image == "ptx" else image


def measure(row: Row, gpu: Any) -> tuple[RowSamples, dict[str, dict[str, Any]]]:
    """Measure a row: its samples, and the facts of its arms."""
    jobs = [make_job(row, gpu.device, seed) for seed in range(row.launches)]
    copies = []
    for _ in jobs:
        source = torch.randint(0, 256, (row.bytes_moved // 2,), dtype=torch.uint8, device=gpu.device)
        copies.append(partial(torch.empty_like(source).copy_, source))
    before = kv_cache.library.launch_counts()
    operator = capture(row.name, [job.launch for job in jobs], gpu.device)
    kernel, image = image_that_ran(before, kv_cache.library.launch_counts())
    warm = operator if len(jobs) == 1 else capture(f"{row.name} warm", [jobs[0].launch] * len(jobs), gpu.device)
    arms = Arms(operator, capture(f"{row.name} copy", copies, gpu.device), warm)
    samples = measure_pair(row.name, arms, gpu.timer, observe=gpu.conditions.read)
    identity = RowIdentity(
        row=row.name,
        operator="kv_cache",
        function=f"{row.function}_paged_kv",
        bytes_moved=row.bytes_moved,
        device=gpu.name,
        compute_capability=gpu.compute_capability,
        image=image,
        target=TARGET if row.lengths == TOKENS["128K"] else None,
        facts={**row.facts, "kernel": kernel, "nvml_unavailable": gpu.conditions.unavailable},
    )
    accuracy = merge_accuracy([job.accuracy() for job in jobs])
    return samples, row_facts(identity, samples, gpu.roofs, accuracy)


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("arm", ["operator", "copy"])
@pytest.mark.parametrize("measured", GATHER_ROWS, indirect=True, scope="module")
def test_gather(measured: Any, arm: str, report: Any) -> None:
    """``gather_paged_kv`` against ``torch.Tensor.copy_``."""
    report(measured, arm)


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("arm", ["operator", "copy"])
@pytest.mark.parametrize("measured", WRITE_ROWS, indirect=True, scope="module")
def test_write(measured: Any, arm: str, report: Any) -> None:
    """``write_paged_kv`` against ``torch.Tensor.copy_``."""
    report(measured, arm)


@pytest.mark.benchmark(timer=replay_timer)
@pytest.mark.parametrize("row", (GATHER_ROWS | WRITE_ROWS).values(), ids=lambda row: row.name)
def test_estimate(row: Row, record_estimate: Any) -> None:
    """The same rows by the cycle model, where no GPU measures them."""
    about = EstimatedRow(
        row=row.name,
        operator="kv_cache",
        function=f"{row.function}_paged_kv",
        bytes_moved=row.bytes_moved,
        facts=row.facts,
    )
    record_estimate(estimate_row(about, estimated_call(row))[1])
