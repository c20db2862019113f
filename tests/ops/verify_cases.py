"""Builders of verify calls for tests, on the ground of decode's: data, and what a result is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import verify
from sm70_kernels.reference import AttentionResult
from tests.ops import attention_cases, decode_cases
from tests.ops.attention_cases import PagedCase, Result, check_same_bits
from tests.ops.kv_cases import PAGES

__all__ = ["FORMATS", "LEAF", "PAGES", "Result", "check_same_bits"]

FORMATS = verify.FORMATS
LEAF = verify.LEAF_TOKENS

#: The contract: relative L2 against float64 within 2 % of what rounding to FP16 costs by itself, and 2e-6 for results
#: whose rounding costs nothing.
FLOOR_FACTOR, FLOOR_OFFSET = 1.02, 2e-6


@dataclass(frozen=True)
class Case(PagedCase):
    """The arguments of a verify call."""

    def plan(self) -> verify.VerifyPlan:
        return verify.plan(requests=self.q.shape[0], q_rows=self.q.shape[1], **self.planned_for)

    def run(self, into: Result | None = None, workspace: Tensor | None = None) -> Result:
        """Run in a workspace of NaN."""
        planned = self.plan()
        result, buffers = self.buffers(planned, into, workspace)
        planned.run(*self.tensors, **self.scales, **buffers)
        return result

    def exact(self) -> AttentionResult:
        """The float64 reference."""
        return reference.verify_attention(*self.tensors, **self.of_reference)


def make_case(
    lengths: list[list[int]], *, group: int = 6, kv_heads: int = 1, head_dim: int = 256, device: torch.device,
    seed: int = 0, **arguments: Any,
) -> Case:  # fmt: skip
    """A request a list, its rows' lengths in it. Pages and poison as :func:`tests.ops.decode_cases.make_case` has
    them, around the longest row of each request."""
    longest = [max(rows, default=0) for rows in lengths]
    source = decode_cases.make_case(
        longest, group=group, kv_heads=kv_heads, head_dim=head_dim, device=device, seed=seed, **arguments
    )
    q_rows = len(lengths[0]) if lengths else 1
    generator = torch.Generator().manual_seed(2000 + seed)
    q = torch.randn(len(lengths), q_rows, group * kv_heads, head_dim, generator=generator).half().to(device)
    table = torch.tensor(lengths, dtype=torch.int32, device=device).view(len(lengths), q_rows)
    return Case(
        q, *source.caches, source.block_table, table, source.kv_format, k_scale=source.k_scale, v_scale=source.v_scale
    )


def draft(total: int, q_rows: int) -> list[int]:
    """Lengths of the rows of a draft: the last ``q_rows`` tokens of ``total``, each seeing itself and what precedes."""
    return [max(0, total - q_rows + 1 + row) for row in range(q_rows)]


def check_accuracy(result: Result, exact: AttentionResult, *, largest_score: float = 0.0, what: str = "") -> None:
    """A result within the contract's distance of float64; rows without keys zeros, of positive sign."""
    attention_cases.check_near_rounding(
        result, exact, factor=FLOOR_FACTOR, offset=FLOOR_OFFSET, what=what, largest_score=largest_score
    )
    empty = exact.lse == -torch.inf
    assert not result.out[empty].view(torch.int16).any(), f"{what}: rows without keys are not zeros"


def picked(result: Result, request: int, rows: list[int]) -> Result:
    return Result(result.out[request : request + 1, rows], result.lse[request : request + 1, rows])


def rows_of(case: Case, request: int, rows: list[int]) -> Case:
    """A call with some rows of one request, in any order."""
    some = slice(request, request + 1)
    return case.but(
        q=case.q[some, rows].contiguous(),
        block_table=case.block_table[some],
        seq_lens=case.seq_lens[some, rows].contiguous(),
    )


def fill_live(case: Case, cache: Tensor, values: Tensor) -> None:
    """``values [tokens, Hkv, D]``, token ``t`` of each request, into the live tokens of every request."""
    page = cache.shape[1]
    codes = reference.quantize(values.half(), 1.0, case.kv_format).view(cache.dtype).to(cache.device)
    for request, length in enumerate(case.seq_lens.amax(1).tolist()):
        for first in range(0, length, page):
            live = min(page, length - first)
            cache[int(case.block_table[request, first // page]), :live] = codes[first : first + live]


def check(case: Case, *, largest_score: float = 0.0, what: str = "") -> Result:
    """A run against float64. Returns what it gave."""
    result = case.run()
    check_accuracy(result, case.exact(), largest_score=largest_score, what=what)
    return result


def launched(kernel: str) -> int:
    """Launches of a kernel in this process so far."""
    return sum(verify.library.launch_counts().get(kernel, {}).values())
