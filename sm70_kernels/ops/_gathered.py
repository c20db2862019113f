"""The workspace that paged prefill gathers K and V into, and the offsets that its kernels read it by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sm70_kernels.ops._arguments import refusal, require_tensors


def gathered_shape(sequences: int, max_tokens: int, kv_heads: int, head_dim: int) -> tuple[int, int, int, int, int]:
    """Shape of the FP16 tensor that :func:`~sm70_kernels.ops.prefill.prefill_paged` gathers K and V into."""
    return (2, sequences, max_tokens, kv_heads, head_dim)


def gathered_bytes(sequences: int, max_tokens: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of that tensor: 256 MiB for one sequence of 262144 tokens of one head of 256."""
    return 2 * math.prod(gathered_shape(sequences, max_tokens, kv_heads, head_dim))


def require_gathered(
    op: str, gathered: Tensor | None, max_tokens: int | None, key_cache: Tensor, sequences: int
) -> Tensor:
    """The workspace of gathered K and V as it was given, or allocated for ``max_tokens``."""
    heads, head_dim = key_cache.shape[2:]
    if (gathered is None) == (max_tokens is None):
        got = "None" if gathered is None else "it beside max_tokens"
        want = "a workspace, or max_tokens to have one allocated"
        raise refusal(op, "gathered", got, want, "Pass one of the two")
    if gathered is None:
        assert max_tokens is not None
        if max_tokens < 0:
            want = "a whole number from 0 on"
            raise refusal(op, "max_tokens", max_tokens, want, "Pass the longest sequence's")
        shape = gathered_shape(sequences, max_tokens, heads, head_dim)
        return torch.empty(shape, dtype=torch.float16, device=key_cache.device)
    require_tensors(op, gathered=gathered)
    tokens = gathered.shape[2] if gathered.dim() == 5 else 0
    if gathered.shape != gathered_shape(sequences, tokens, heads, head_dim) or not gathered.is_contiguous():
        want = f"[2, {sequences}, max_tokens, {heads}, {head_dim}], contiguous"
        raise refusal(op, "gathered", f"shape {list(gathered.shape)}", want, "Allocate gathered_shape()")
    return gathered


def require_query_offsets(
    op: str, query: Tensor, cu_seqlens_q: Tensor | None, max_seqlen_q: int | None, sequences: int
) -> tuple[Tensor, int]:
    """Offsets of the queries and the most that a sequence has: as given, or those of one sequence of all of them."""
    if cu_seqlens_q is None and sequences != 1:
        want = f"int32 [{sequences + 1}], as there are {sequences} sequences"
        raise refusal(op, "cu_seqlens_q", "None", want, "Pass it")
    if (cu_seqlens_q is None) != (max_seqlen_q is None):
        want = "the longest sequence's, beside cu_seqlens_q"
        raise refusal(op, "max_seqlen_q", max_seqlen_q, want, "Pass both or none")
    if cu_seqlens_q is None or max_seqlen_q is None:
        return torch.arange(2, dtype=torch.int32, device=query.device) * query.shape[0], query.shape[0]
    require_tensors(op, cu_seqlens_q=cu_seqlens_q)
    if cu_seqlens_q.shape != (sequences + 1,):
        got, want = f"shape {list(cu_seqlens_q.shape)}", f"[{sequences + 1}]"
        raise refusal(op, "cu_seqlens_q", got, want, "One more than seq_lens")
    return cu_seqlens_q, max_seqlen_q


def interleaved_offsets(cu_seqlens_q: Tensor, seq_lens: Tensor, max_tokens: int) -> tuple[Tensor, Tensor]:
    """Offsets of queries and keys over ``gathered``, in which each sequence has ``max_tokens`` places for its keys.

    The places behind a sequence's keys belong to no sequence, but offsets leave no gaps. So between every two sequences
    stands one without queries, whose keys are these places: ``2 B - 1`` sequences, int32 ``[2 B]`` each.
    """
    starts = torch.arange(seq_lens.shape[0], dtype=torch.int32, device=seq_lens.device) * max_tokens
    cu_seqlens_k = torch.stack([starts, starts + seq_lens], dim=1).flatten()
    return torch.stack([cu_seqlens_q[:-1], cu_seqlens_q[1:]], dim=1).flatten(), cu_seqlens_k
