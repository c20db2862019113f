"""Builders of decode calls for tests: data, page orders, poison, and what a result is compared with."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import decode
from sm70_kernels.ops._arguments import FORMATS as _STORED
from sm70_kernels.reference import AttentionResult
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops import marks
from tests.ops.kv_cases import FORMATS, POISON, make_cache, make_rows, storage_dtype

__all__ = ["FORMATS", "LEAF", "VARIANTS"]

VARIANTS = decode.VARIANTS
LEAF = decode.LEAF_TOKENS

#: Sampled normals repeat with this period: prime, so that no two tokens or pages hold the same values.
_PERIOD = 1048583
#: Keys that the reference reads at once: on a GPU as many as keep it busy.
_CHUNK_KEYS = {"cpu": 16384, "cuda": 65536}
#: What outputs hold before a run: an element that is not written fails every comparison.
_UNWRITTEN = float("nan")

#: The contract of both variants: relative L2 against float64 within 4 % of what rounding to FP16 costs by itself, and
#: 2e-6 for results whose rounding costs nothing.
FLOOR_FACTOR, FLOOR_OFFSET = 1.04, 2e-6
#: FP32 scores: their roundings, and the truncations of a tensor core, stay below 8 FP32 spacings of the largest score.
SCORE_ERROR = 2.0**-20
#: xqa against scalar: FP16 spacings of the larger value, share of elements, and four roundings of an FP32 sum.
MAX_ULP, MAX_DIFFERING, SUM_ERROR = 1.0, 0.005, 2.0**-22


class Result(NamedTuple):
    """Output FP16 ``[rows, Hq, D]`` and natural logarithm of the denominators, FP32 ``[rows, Hq]``."""

    out: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Case:
    """The arguments of a decode call."""

    q: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    kv_format: str
    softmax_scale: float | None = None
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0
    row_requests: Tensor | None = None

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.key_cache, self.value_cache

    @property
    def kv_heads(self) -> int:
        return int(self.key_cache.shape[2])

    def but(self, **changes: Any) -> Case:
        """The same call with other arguments."""
        return replace(self, **changes)

    def plan(self, variant: str = "xqa") -> decode.DecodePlan:
        return decode.plan(
            rows=self.q.shape[0], query_heads=self.q.shape[1], kv_heads=self.kv_heads, head_dim=self.q.shape[2],
            max_tokens=self.block_table.shape[1] * self.key_cache.shape[1], kv_format=self.kv_format,
            variant=variant, device=self.q.device,
        )  # fmt: skip

    def new_result(self) -> Result:
        """Outputs in which nothing is written yet."""
        out = torch.full(self.q.shape, _UNWRITTEN, dtype=torch.float16, device=self.q.device)
        return Result(out, torch.full(self.q.shape[:2], _UNWRITTEN, device=self.q.device))

    def run(self, variant: str = "xqa", into: Result | None = None, workspace: Tensor | None = None) -> Result:
        """Run in a workspace of NaN: what a launch did not write can't pass for a state."""
        planned = self.plan(variant)
        result = self.new_result() if into is None else into
        if workspace is None:
            workspace = planned.new_workspace().fill_(0xFF)
        marks.undefined(workspace)
        planned.run(
            self.q, *self.caches, self.block_table, self.seq_lens, softmax_scale=self.softmax_scale,
            k_scale=self.k_scale, v_scale=self.v_scale, row_requests=self.row_requests, out=result.out, lse=result.lse,
            workspace=workspace,
        )  # fmt: skip
        return result

    def exact(self) -> AttentionResult:
        """The float64 reference."""
        table = self.block_table if self.row_requests is None else self.block_table[self.row_requests.long()]
        return reference.decode_attention(
            self.q, *self.caches, table, self.seq_lens, k_scale=self.k_scale, v_scale=self.v_scale,
            kv_format=self.kv_format, softmax_scale=self.softmax_scale or 1.0 / math.sqrt(self.q.shape[2]),
            chunk_keys=_CHUNK_KEYS[self.q.device.type],
        )  # fmt: skip


@functools.lru_cache(maxsize=16)
def _normals(count: int, kv_format: str, seed: int) -> Tensor:
    values = torch.randn(count, generator=torch.Generator().manual_seed(seed)).to(_STORED[kv_format])
    return values.view(storage_dtype(kv_format))


def stored_normals(shape: tuple[int, ...], kv_format: str, device: torch.device, seed: int) -> Tensor:
    """Finite normal values in a cache format, the same on every device."""
    wanted = math.prod(shape)
    stored = _normals(min(wanted, _PERIOD), kv_format, seed).to(device)
    return stored.repeat(-(-wanted // max(1, len(stored))))[:wanted].view(shape)


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


def check_accuracy(result: Result, exact: AttentionResult, *, largest_score: float = 0.0, what: str = "") -> None:
    """A result within the contract's distance of float64.

    Scores of normal data are of the size of the lse; larger ones are named: an error in a score is a relative error
    in a weight.
    """
    live = exact.lse != -math.inf
    floor = reference.fp16_rounding_floor(exact.out)
    found = reference.relative_l2(result.out, exact.out)
    bound = FLOOR_FACTOR * floor + FLOOR_OFFSET + SCORE_ERROR * largest_score
    assert found <= bound, f"{what}: relative L2 {found:.4e}, want at most {bound:.4e} (rounding alone: {floor:.4e})"
    assert bool((result.lse[~live] == -math.inf).all()), f"{what}: lse of rows without keys is not -inf"
    size = float(exact.lse[live].abs().max()) if bool(live.any()) else 0.0
    error = reference.max_abs_error(result.lse[live], exact.lse[live])
    bound = SCORE_ERROR * (1.0 + size + largest_score)
    assert error <= bound, f"{what}: lse is off by {error:.2e}, want at most {bound:.2e}"


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
        results["xqa"], results["scalar"], what, largest_score=largest_score,
        value_size=value_size * float(case.v_scale),
    )  # fmt: skip
    return results["xqa"]


def check_same_bits(actual: Result, expected: Result, what: str = "") -> None:
    """Bit for bit, lse included."""
    compare_bitwise(actual.out, expected.out, f"{what} out")
    compare_bitwise(actual.lse, expected.lse, f"{what} lse")


def launched(kernel: str) -> int:
    """Launches of a kernel in this process so far."""
    return sum(decode.library.launch_counts().get(kernel, {}).values())
