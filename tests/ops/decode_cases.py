"""Builders of decode calls for tests: data, page orders, poison, and what a result is compared with."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import decode
from sm70_kernels.ops._arguments import FORMATS as _STORED
from sm70_kernels.reference import AttentionResult
from tests.ops import attention_cases, marks
from tests.ops.attention_cases import SCORE_ERROR, PagedCase, Result, check_same_bits
from tests.ops.kv_cases import FORMATS, POISON, make_cache, make_rows, storage_dtype

__all__ = ["FORMATS", "LEAF", "VARIANTS", "Result", "check_same_bits"]

VARIANTS = decode.VARIANTS
LEAF = decode.LEAF_TOKENS

#: The contract of both variants: relative L2 against float64 within 4 % of what rounding to FP16 costs by itself, and
#: 2e-6 for results whose rounding costs nothing.
FLOOR_FACTOR, FLOOR_OFFSET = 1.04, 2e-6
#: xqa against scalar: FP16 spacings of the larger value, share of elements, and four roundings of an FP32 sum.
MAX_ULP, MAX_DIFFERING, SUM_ERROR = 1.0, 0.005, 2.0**-22


@dataclass(frozen=True)
class Case(PagedCase):
    """The arguments of a decode call."""

    row_requests: Tensor | None = None

    def plan(self, variant: str = "xqa") -> decode.DecodePlan:
        return decode.plan(rows=self.q.shape[0], variant=variant, **self.planned_for)

    def run(self, variant: str = "xqa", into: Result | None = None, workspace: Tensor | None = None) -> Result:
        """Run in a workspace of NaN."""
        planned = self.plan(variant)
        result, buffers = self.buffers(planned, into, workspace)
        planned.run(*self.tensors, **self.scales, row_requests=self.row_requests, **buffers)
        return result

    def exact(self) -> AttentionResult:
        """The float64 reference."""
        table = self.block_table if self.row_requests is None else self.block_table[self.row_requests.long()]
        return reference.decode_attention(self.q, *self.caches, table, self.seq_lens, **self.of_reference)


@functools.lru_cache(maxsize=16)
def _normals(count: int, kv_format: str, seed: int) -> Tensor:
    return attention_cases.sampled_normals(count, _STORED[kv_format], seed).view(storage_dtype(kv_format))


def stored_normals(shape: tuple[int, ...], kv_format: str, device: torch.device, seed: int) -> Tensor:
    """Finite normal values in a cache format, the same on every device."""
    count = min(math.prod(shape), attention_cases.PERIOD)
    return attention_cases.repeated(_normals(count, kv_format, seed).to(device), shape)


def make_case(
    lengths: list[int],
    *,
    page: int = 16,
    group: int = 6,
    kv_heads: int = 1,
    head_dim: int = 256,
    kv_format: str = "e4m3",
    device: torch.device,
    layout: str = "contiguous",
    order: str = "random",
    spare_pages: int = 1,
    spare_blocks: int = 1,
    seed: int = 0,
    scales: tuple[float, float] = (1.0, 1.0),
) -> Case:
    """Rows of normal values in scrambled pages. All else is poison: the pages' tails, pages and entries not used."""
    pages = sum(-(-length // page) for length in lengths) + spare_pages
    max_tokens = (-(-max(lengths, default=0) // page) + spare_blocks) * page
    rows = make_rows(lengths, page, pages, device, max_tokens=max_tokens, seed=seed, order=order)
    caches = make_cache(layout, (pages, page, kv_heads, head_dim), kv_format, device)
    for number, cache in enumerate(caches):
        cache.copy_(stored_normals((pages, page, kv_heads, head_dim), kv_format, device, 2 * seed + number))
        marks.clean(cache)
        poison_what_is_not_live(cache, rows.block_table, lengths, kv_format)
    generator = torch.Generator().manual_seed(1000 + seed)
    q = torch.randn(len(lengths), group * kv_heads, head_dim, generator=generator).half().to(device)
    return Case(q, *caches, rows.block_table, rows.seq_lens, kv_format, k_scale=scales[0], v_scale=scales[1])


def poison_what_is_not_live(cache: Tensor, block_table: Tensor, lengths: list[int], kv_format: str) -> None:
    """NaN in pages that no row uses, and behind the last token of each row. Rows must not share pages."""
    pages, page = cache.shape[:2]
    unused = torch.ones(pages, dtype=torch.bool)
    table = block_table.cpu()
    for row, length in enumerate(lengths):
        blocks = -(-length // page)
        unused[table[row, :blocks].long()] = False
        if length % page:
            tail = cache[int(table[row, blocks - 1]), length % page :]
            fill_with_nan(tail, kv_format)
    for number in unused.nonzero().flatten().tolist():
        fill_with_nan(cache[number], kv_format)


def fill_with_nan(tensor: Tensor, kv_format: str) -> None:
    """As :func:`tests.ops.kv_cases.poison`, of any strides."""
    tensor.view(torch.int16 if kv_format == "fp16" else torch.uint8).fill_(POISON[kv_format])
    marks.tainted(tensor)


class GraphPages:
    """Caches and table that a graph is captured with, and what is written to them between replays."""

    heads, dim = 2, 128
    page, pages, max_tokens = 48, 500, 20016

    def __init__(self, kv_format: str, device: torch.device) -> None:
        self.kv_format, self.device = kv_format, device
        self.shape = (self.pages, self.page, self.heads, self.dim)
        self.caches = make_cache("unbind", self.shape, kv_format, device)

    def new_table(self, requests: int) -> Tensor:
        """A table without a page."""
        blocks = self.max_tokens // self.page
        return torch.full((requests, blocks), -1, dtype=torch.int32, device=self.device)

    def new_scales(self) -> dict[str, Tensor]:
        """Scales on the device."""
        return {name: torch.ones(1, device=self.device) for name in ("k_scale", "v_scale")}

    def fill(self, seed: int, lengths: list[int], table: Tensor) -> None:
        """Other values, in pages of another order; all that is not live is poison."""
        rows = make_rows(lengths, self.page, self.pages, self.device, max_tokens=self.max_tokens, seed=seed)
        for number, cache in enumerate(self.caches):
            cache.copy_(stored_normals(self.shape, self.kv_format, self.device, 2 * seed + number))
            poison_what_is_not_live(cache, rows.block_table, lengths, self.kv_format)
        table.copy_(rows.block_table)


def check_accuracy(result: Result, exact: AttentionResult, *, largest_score: float = 0.0, what: str = "") -> None:
    """A result within the contract's distance of float64."""
    attention_cases.check_near_rounding(
        result, exact, factor=FLOOR_FACTOR, offset=FLOOR_OFFSET, what=what, largest_score=largest_score
    )


def check_variants(
    xqa: Result, scalar: Result, what: str = "", *, largest_score: float = 0.0, value_size: float = 1.0
) -> None:
    """xqa and scalar as near to each other as the contract says.

    Near zero, where values cancel, an FP16 spacing is finer than FP32 sums of values of ``value_size``; and scores far
    from those of normal data have errors of their own (:func:`check_accuracy`).
    """
    larger = torch.where(xqa.out.abs() >= scalar.out.abs(), xqa.out, scalar.out)
    distance = (xqa.out.double() - scalar.out.double()).abs()
    excess = distance - MAX_ULP * reference.fp16_spacing(larger)
    beyond = excess > (SUM_ERROR + SCORE_ERROR * largest_score) * value_size
    assert not bool(beyond.any()), (
        f"{what}: xqa and scalar are {float(reference.ulp_distance(xqa.out, scalar.out).max())} FP16 ulp apart, "
        f"{float(distance.max()):.2e} in all"
    )
    if largest_score == 0.0:
        expected = MAX_DIFFERING * distance.numel()
        allowed = expected + 3.0 * math.sqrt(expected)  # of a sample
        differing = reference.differing_elements(xqa.out, scalar.out)
        assert differing <= allowed, f"{what}: {differing} of {distance.numel()} elements of xqa and scalar differ"


def check(case: Case, *, largest_score: float = 0.0, value_size: float = 1.0, what: str = "") -> Result:
    """Both variants against float64 and each other. Returns what xqa gave."""
    exact = case.exact()
    results = {variant: case.run(variant) for variant in VARIANTS}
    for variant, result in results.items():
        check_accuracy(result, exact, largest_score=largest_score, what=f"{what} {variant}")
    check_variants(
        results["xqa"],
        results["scalar"],
        what,
        largest_score=largest_score,
        value_size=value_size * float(case.v_scale),
    )
    return results["xqa"]


def launched(kernel: str) -> int:
    """Launches of a kernel in this process so far."""
    return sum(decode.library.launch_counts().get(kernel, {}).values())
