"""Builders of verify calls for tests, on the ground of decode's: data, and what a result is compared with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import verify
from sm70_kernels.reference import AttentionResult
from tests.ops import decode_cases, marks
from tests.ops.decode_cases import Result, check_same_bits

__all__ = ["FORMATS", "LEAF", "Result", "check_same_bits"]

FORMATS = verify.FORMATS
LEAF = verify.LEAF_TOKENS

#: What the reference reads at once.
_CHUNK_KEYS = {"cpu": 16384, "cuda": 65536}
_UNWRITTEN = float("nan")

#: The contract: relative L2 against float64 within 2 % of what rounding to FP16 costs by itself, and 2e-6 for results
#: whose rounding costs nothing.
FLOOR_FACTOR, FLOOR_OFFSET = 1.02, 2e-6
#: FP32 scores: what their roundings come to, 8 FP32 spacings of the largest score at most.
SCORE_ERROR = decode_cases.SCORE_ERROR


@dataclass(frozen=True)
class Case:
    """The arguments of a verify call."""

    q: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    kv_format: str
    softmax_scale: float | None = None
    k_scale: float | Tensor = 1.0
    v_scale: float | Tensor = 1.0

    @property
    def caches(self) -> tuple[Tensor, Tensor]:
        return self.key_cache, self.value_cache

    @property
    def kv_heads(self) -> int:
        return int(self.key_cache.shape[2])

    @property
    def scale(self) -> float:
        """The softmax scale of the call."""
        return self.softmax_scale or 1.0 / math.sqrt(self.q.shape[3])

    def but(self, **changes: Any) -> Case:
        """The same call with other arguments."""
        return replace(self, **changes)

    def plan(self) -> verify.VerifyPlan:
        requests, q_rows, heads, head_dim = self.q.shape
        return verify.plan(
            requests=requests, q_rows=q_rows, query_heads=heads, kv_heads=self.kv_heads, head_dim=head_dim,
            max_tokens=self.block_table.shape[1] * self.key_cache.shape[1], kv_format=self.kv_format,
            device=self.q.device,
        )  # fmt: skip

    def new_result(self) -> Result:
        """Outputs in which nothing is written yet."""
        out = torch.full(self.q.shape, _UNWRITTEN, dtype=torch.float16, device=self.q.device)
        return Result(out, torch.full(self.q.shape[:3], _UNWRITTEN, device=self.q.device))

    def run(self, into: Result | None = None, workspace: Tensor | None = None) -> Result:
        """Run in a workspace of NaN: what a launch did not write can't pass for a state."""
        planned = self.plan()
        result = self.new_result() if into is None else into
        if workspace is None:
            workspace = planned.new_workspace().fill_(0xFF)
        marks.undefined(workspace)
        planned.run(
            self.q, *self.caches, self.block_table, self.seq_lens, softmax_scale=self.softmax_scale,
            k_scale=self.k_scale, v_scale=self.v_scale, out=result.out, lse=result.lse, workspace=workspace,
        )  # fmt: skip
        return result

    def exact(self) -> AttentionResult:
        """The float64 reference."""
        return reference.verify_attention(
            self.q, *self.caches, self.block_table, self.seq_lens, k_scale=self.k_scale, v_scale=self.v_scale,
            kv_format=self.kv_format, softmax_scale=self.scale, chunk_keys=_CHUNK_KEYS[self.q.device.type],
        )  # fmt: skip


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
    live = exact.lse != -math.inf
    floor = reference.fp16_rounding_floor(exact.out)
    found = reference.relative_l2(result.out, exact.out)
    bound = FLOOR_FACTOR * floor + FLOOR_OFFSET + SCORE_ERROR * largest_score
    assert found <= bound, f"{what}: relative L2 {found:.5e}, want at most {bound:.5e} (rounding alone: {floor:.5e})"
    assert bool((result.lse[~live] == -math.inf).all()), f"{what}: lse of rows without keys is not -inf"
    assert not result.out[~live].view(torch.int16).any(), f"{what}: rows without keys are not zeros"
    size = float(exact.lse[live].abs().max()) if bool(live.any()) else 0.0
    error = reference.max_abs_error(result.lse[live], exact.lse[live])
    bound = SCORE_ERROR * (1.0 + size + largest_score)
    assert error <= bound, f"{what}: lse is off by {error:.2e}, want at most {bound:.2e}"


def check(case: Case, *, largest_score: float = 0.0, what: str = "") -> Result:
    """A run against float64. Returns what it gave."""
    result = case.run()
    check_accuracy(result, case.exact(), largest_score=largest_score, what=what)
    return result


def launched(kernel: str) -> int:
    """Launches of a kernel in this process so far."""
    return sum(verify.library.launch_counts().get(kernel, {}).values())
