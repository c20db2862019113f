"""Builders of prefill calls for tests: data, ragged batches, poison, and what a result is compared with."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.lab import emulator
from sm70_kernels.ops import prefill
from sm70_kernels.reference import AttentionResult
from tests.ops import attention_cases
from tests.ops.attention_cases import SCORE_ERROR, UNWRITTEN, AttentionCase, Result, check_same_bits

__all__ = ["Result", "check_same_bits"]

#: Packed (query, head) rows, and keys, of a tile.
TILE = 128
#: Keys after which the output is folded into FP32.
FOLD = 4096

#: The contract: relative L2 against float64.
RELATIVE_L2 = 5e-4
#: Weights are summed as FP16 operands: each is off by half a spacing, 2^-11 of it, at most.
WEIGHT_ERROR = 2.0**-11
#: Weights below this share of the largest are zero.
SMALLEST_WEIGHT = 2.0**-29


@dataclass(frozen=True)
class Case(AttentionCase):
    """The arguments of a prefill call: one sequence, or several of ``lengths`` (queries, keys) one behind the other."""

    k: Tensor
    v: Tensor
    lengths: list[tuple[int, int]] | None = None
    causal: bool = True
    softmax_scale: float | None = None

    @functools.cached_property
    def ragged(self) -> dict[str, Tensor]:
        """``cu_seqlens_q`` and ``cu_seqlens_k``, or nothing for one sequence."""
        if self.lengths is None:
            return {}
        sums = [[0, *accumulate(pair[i] for pair in self.lengths)] for i in (0, 1)]
        cu_seqlens_q, cu_seqlens_k = (torch.tensor(of, dtype=torch.int32, device=self.q.device) for of in sums)
        return {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k}

    def plan(self) -> prefill.PrefillPlan:
        lengths = self.lengths if self.lengths is not None else [(self.q.shape[0], self.k.shape[0])]
        return prefill.plan(
            max_seqlen_q=max((pair[0] for pair in lengths), default=0),
            max_seqlen_k=max((pair[1] for pair in lengths), default=0),
            query_heads=self.q.shape[1],
            kv_heads=self.k.shape[1],
            head_dim=self.q.shape[2],
            sequences=None if self.lengths is None else len(lengths),
            device=self.q.device,
        )

    def run(self, into: Result | None = None, workspace: Tensor | None = None) -> Result:
        """Run in a workspace of NaN."""
        planned = self.plan()
        result, buffers = self.buffers(planned, into, workspace)
        named = {**self.ragged, "softmax_scale": self.softmax_scale, "causal": self.causal}
        planned.run(self.q, self.k, self.v, **named, **buffers)
        return result

    def exact(self, rows: Tensor | None = None) -> AttentionResult:
        """The float64 reference, token-major; of some rows where there is one sequence."""
        scale = self.softmax_scale or 1.0 / math.sqrt(self.q.shape[2])
        chunk = attention_cases.CHUNK_KEYS[self.q.device.type]
        if self.lengths is None:
            whole = self._exact_sequence(slice(None), slice(None), scale, chunk, rows)
            return AttentionResult(whole.out[0], whole.lse[0])
        parts = []
        sums = (pairwise(self.ragged[name].tolist()) for name in ("cu_seqlens_q", "cu_seqlens_k"))
        for (q0, q1), (k0, k1) in zip(*sums, strict=True):
            parts.append(self._exact_sequence(slice(q0, q1), slice(k0, k1), scale, chunk, None))
        return AttentionResult(torch.cat([part.out[0] for part in parts]), torch.cat([part.lse[0] for part in parts]))

    def _exact_sequence(
        self, queries: slice, keys: slice, scale: float, chunk: int, rows: Tensor | None
    ) -> AttentionResult:
        return reference.prefill_attention(
            self.q[queries][None],
            self.k[keys][None],
            self.v[keys][None],
            scale,
            causal=self.causal,
            rows=rows,
            chunk_keys=chunk,
        )


def normals(shape: tuple[int, ...], device: torch.device, seed: int) -> Tensor:
    """FP16 normal values, the same on every device."""
    count = min(math.prod(shape), attention_cases.PERIOD)
    return attention_cases.repeated(attention_cases.sampled_normals(count, torch.float16, seed).to(device), shape)


def between_nans(values: Tensor, tokens: int = TILE) -> Tensor:
    """A copy whose memory goes on, before and behind, with NaN tokens."""
    memory = torch.full(
        (len(values) + 2 * tokens, *values.shape[1:]), UNWRITTEN, dtype=values.dtype, device=values.device
    )
    memory[tokens : tokens + len(values)] = values
    return memory[tokens : tokens + len(values)]


def make_case(
    lengths: tuple[int, int] | list[tuple[int, int]],
    *,
    group: int = 6,
    kv_heads: int = 1,
    head_dim: int = 256,
    causal: bool = True,
    softmax_scale: float | None = None,
    device: torch.device,
    seed: int = 0,
) -> Case:
    """Normal values: one sequence of (queries, keys), or a ragged batch of several. NaN lie around K and V."""
    ragged = lengths if isinstance(lengths, list) else None
    queries, keys = (sum(pair[i] for pair in ragged) if ragged is not None else lengths[i] for i in (0, 1))
    q = normals((queries, group * kv_heads, head_dim), device, 3 * seed)  # type: ignore[arg-type]
    k, v = (normals((keys, kv_heads, head_dim), device, 3 * seed + number) for number in (1, 2))  # type: ignore[arg-type]
    return Case(q, between_nans(k), between_nans(v), ragged, causal, softmax_scale)


def check_accuracy(
    result: Result, exact: AttentionResult, *, keys: int = 262144, largest_score: float = 0.0, what: str = ""
) -> None:
    """A result within the contract's distance of float64.

    Scores of normal data are small; larger ones are named: an error in a score is a relative error in a weight.
    """
    found = reference.relative_l2(result.out, exact.out)
    bound = RELATIVE_L2 + SCORE_ERROR * largest_score
    assert found <= bound, f"{what}: relative L2 {found:.4e}, want at most {bound:.4e}"
    error = WEIGHT_ERROR + keys * SMALLEST_WEIGHT
    attention_cases.check_lse(result, exact, error=error, what=what, largest_score=largest_score)


def check(case: Case, *, largest_score: float = 0.0, what: str = "") -> Result:
    """A whole run against float64."""
    result = case.run()
    check_accuracy(result, case.exact(), keys=case.k.shape[0], largest_score=largest_score, what=what)
    return result


def check_sampled(case: Case, *, blocks: int, rows: int = 16, largest_score: float = 0.0) -> Result:
    """A run of one large sequence against float64 in some rows.

    On a GPU all of it runs. On the emulated V100 each tile gets a block of its own, of which a few run, and rows of
    those are compared.
    """
    queries, group = case.q.shape[0], case.q.shape[1] // case.k.shape[1]
    if case.q.device.type == "cuda":
        result = case.run()
        assert bool(result.out.isfinite().all())
        candidates = torch.arange(queries)
    else:
        tiles = -(-queries * group // TILE) * case.k.shape[1]
        with emulator.enabled(multiprocessors=tiles, max_blocks=blocks) as emulation:
            result = case.run()
        (launch,) = emulation.launches
        assert (launch.blocks_run, launch.blocks_total) == (blocks, tiles)
        candidates = (~result.lse.isnan()).all(dim=1).nonzero().flatten()
        least = blocks * (TILE // group - 1)  # whole queries of a tile
        assert len(candidates) >= min(least, queries), "the sampled blocks left rows unwritten"
    chosen = torch.linspace(0, len(candidates) - 1, min(rows, len(candidates))).round().long()
    sampled = candidates[chosen].to(case.q.device)
    exact = case.exact(sampled)
    check_accuracy(Result(result.out[sampled], result.lse[sampled]), exact, largest_score=largest_score)
    return result


def launched(kernel: str) -> int:
    """Launches of a kernel in this process so far."""
    return sum(prefill.library.launch_counts().get(kernel, {}).values())
