"""Prefill: fused attention of many new queries over long FP16 keys and values, causal or not.

    plan = sm70_kernels.ops.prefill.plan(
        max_seqlen_q=8192, max_seqlen_k=131072, query_heads=6, kv_heads=1, head_dim=256, device="cuda"
    )
    workspace = plan.new_workspace()
    out = plan.run(q, k, v, workspace=workspace)  # q [1, 8192, 6, 256]; k, v [1, 131072, 1, 256]

One sequence, or a ragged batch of sequences one behind the other (``sequences=``, ``cu_seqlens_q``, ``cu_seqlens_k``).
:func:`prefill_paged` reads a paged KV cache: it gathers the pages into FP16 once, then runs the same kernels.
Contract and numerics: ``docs/operators.md``. The operator itself is ``torch.ops.sm70_kernels.prefill``.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops import kv_cache
from sm70_kernels.ops._arguments import fake, refusal, require_dimensions, require_tensors
from sm70_kernels.ops._gathered import (
    gathered_bytes,
    gathered_shape,
    interleaved_offsets,
    require_gathered,
    require_query_offsets,
)
from sm70_kernels.ops._planning import AttentionPlan, Range, asked, multiprocessors_of, planned_device, require_built

__all__ = ["PrefillPlan", "gathered_bytes", "gathered_shape", "plan", "prefill", "prefill_paged"]

#: Revision of the numerical contract and workspace layout that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("prefill", CAPABILITY_REVISION)

#: Packed (query, head) rows of a tile.
TILE_ROWS = 128
MAX_QUERIES = 8192
MAX_KEYS = 262144
MAX_SEQUENCES = 65536
#: Tiles of a call: sequences x KV heads x those of the longest sequence.
MAX_TILES = 2**30
#: No plan wants more: a workspace of this size serves every shape.
MAX_WORKSPACE_BYTES = 64 << 20


_multiprocessors = multiprocessors_of(library)
_workspace_bytes = asked(library, "sm70_kernels_prefill_workspace_bytes")


def _token_major(op: str, name: str, tensor: Tensor, dims: str) -> Tensor:
    """``[tokens, ...]`` as it is, ``[1, tokens, ...]`` without its first dimension. ``dims`` names the others."""
    wanted = dims.count(",") + 2
    if tensor.dim() == wanted + 1 and tensor.shape[0] == 1:
        return tensor[0]
    if tensor.dim() != wanted:
        want = f"[1, tokens, {dims}] or [tokens, {dims}]"
        raise refusal(op, name, f"shape {list(tensor.shape)}", want, "Reshape it")
    return tensor


def _require_bool(op: str, name: str, value: object) -> None:
    """None would count as False, which is not the default."""
    if not isinstance(value, bool):
        raise TypeError(f"{op}: argument {name!r}: got {value!r}, want True or False. Leave it out for the default")


@dataclass(frozen=True, kw_only=True)
class PrefillPlan(AttentionPlan):
    """A prefill of these shapes. Made by :func:`plan`. No plan wants a workspace of more than 64 MiB."""

    max_seqlen_q: int
    max_seqlen_k: int
    sequences: int | None
    """Sequences of a ragged batch; None for one sequence of just ``max_seqlen_q`` queries and ``max_seqlen_k`` keys."""
    multiprocessors: int

    @property
    def route(self) -> str:
        """Name of the kernel that runs where heads of K and V are 16-byte aligned; :meth:`route_for` looks."""
        return library.call_text("sm70_kernels_prefill_route", self.head_dim, 16)

    def route_for(self, k: Tensor, v: Tensor) -> str:
        """Name of the kernel that runs for these, as profilers and ``library.launch_counts()`` show it.

        ``a16`` loads 16 bytes at a time. ``a8`` serves K and V of which a base, token stride or head stride is a
        multiple of 8 bytes only.
        """
        for tensor in (k, v):
            strides = [s for s, size in zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True) if size > 1]
            if any(places % 16 for places in (tensor.data_ptr(), *(2 * stride for stride in strides))):
                return library.call_text("sm70_kernels_prefill_route", self.head_dim, 8)
        return self.route

    def run(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = True,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        workspace: Tensor | None = None,
    ) -> Tensor:
        """Attend from the queries of each sequence to its keys: ``softmax(softmax_scale * q . K) V``.

        Args:
            q: FP16 ``[1, Q, Hq, D]`` or ``[tokens, Hq, D]``, last stride 1; query head ``h`` uses KV head ``h // G``.
            k, v: FP16 ``[1, KV, Hkv, D]`` or ``[tokens, Hkv, D]``, last stride 1, heads 8-byte aligned at least.
            cu_seqlens_q, cu_seqlens_k: int32 ``[sequences + 1]``, read when the kernel runs: sequence ``i`` has the
                query tokens ``cu_seqlens_q[i] .. cu_seqlens_q[i + 1] - 1``, and keys likewise. Give both for a
                ragged batch, else neither. Offsets that fall, leave the tensors or exceed the
                planned lengths stop the kernel with a trap.
            softmax_scale: multiplies the scores; ``1 / sqrt(D)`` by default.
            causal: the last query sees the last key, the one before it one key less; otherwise all see all. A
                sequence with more queries than keys is refused, or trapped where only the device knows.
            out: FP16, like ``q``, allocated if left out. Tokens of no sequence are not written.
            lse: FP32 ``[1, Q, Hq]`` or ``[tokens, Hq]``, filled with the natural logarithm of the softmax
                denominators, -inf for rows without keys; see :func:`sm70_kernels.attention.states.merge_states`.
            workspace: uint8 of ``workspace_bytes`` at least, 16-byte aligned, of any contents; allocated if left out.

        Returns:
            ``out``, shaped like ``q``.

        Raises:
            RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written.
        """
        op = "prefill"
        _require_bool(op, "causal", causal)
        require_tensors(op, q=q, k=k, v=v)
        query = _token_major(op, "q", q, "Hq, D")
        key, value = _token_major(op, "k", k, "Hkv, D"), _token_major(op, "v", v, "Hkv, D")
        self._require_planned(query, key, cu_seqlens_q)
        out, workspace = self._buffers(q, out, workspace)
        require_tensors(op, out=out, workspace=workspace)
        if lse is not None:
            require_tensors(op, lse=lse)
            lse = _token_major(op, "lse", lse, "Hq")
        longest = (0, 0) if cu_seqlens_q is None else (self.max_seqlen_q, self.max_seqlen_k)
        torch.ops.sm70_kernels.prefill(
            query,
            key,
            value,
            _token_major(op, "out", out, "Hq, D"),
            workspace,
            self._scale(softmax_scale),
            causal,
            cu_seqlens_q,
            cu_seqlens_k,
            *longest,
            lse,
        )
        return out

    def _require_planned(self, q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None) -> None:
        """The tensors have the shapes that this plan is for; the operator checks everything else."""
        op, again = "prefill", "Make a plan for this shape"
        dense = self.sequences is None
        for name, tensor, tokens, heads in (
            ("q", q, self.max_seqlen_q, self.query_heads),
            ("k", k, self.max_seqlen_k, self.kv_heads),
        ):
            planned = [tokens if dense else tensor.shape[0], heads, self.head_dim]
            if list(tensor.shape) != planned:
                raise refusal(op, name, f"shape {list(tensor.shape)}", f"{planned}, as planned", again)
        if dense != (cu_seqlens_q is None):
            got, want = ("None", "a tensor") if cu_seqlens_q is None else ("a tensor", "None")
            want = f"{want}, as planned with sequences={self.sequences}"
            raise refusal(op, "cu_seqlens_q", got, want, again)
        if cu_seqlens_q is not None:
            require_tensors(op, cu_seqlens_q=cu_seqlens_q)
            if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] - 1 != self.sequences:
                got, want = f"shape {list(cu_seqlens_q.shape)}", f"[sequences + 1] of {self.sequences}"
                raise refusal(op, "cu_seqlens_q", got, want, again)
        self._require_device(op, q)


def plan(
    *,
    max_seqlen_q: int,
    max_seqlen_k: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    sequences: int | None = None,
    device: torch.device | str = "cuda",
) -> PrefillPlan:
    """Plan a prefill of these shapes; refuses what is not built.

    Args:
        max_seqlen_q, max_seqlen_k: queries and keys of the sequence, or of the longest sequence of a ragged batch: up
            to 8192 and 262144.
        query_heads, kv_heads: ``Hq`` and ``Hkv``; ``G = Hq / Hkv`` from 1 to 16.
        head_dim: 64, 128 or 256.
        sequences: of a ragged batch; None for one sequence without ``cu_seqlens_q`` and ``cu_seqlens_k``.
        device: a CUDA device, or the CPU for the emulated V100.

    Raises:
        ValueError: a shape that is not built, with the list of what is; an argument out of range.
    """
    op, in_parts = "prefill.plan", "Prefill in several calls"
    count = 1 if sequences is None else sequences
    sizes = (
        Range("max_seqlen_q", max_seqlen_q, 0, MAX_QUERIES, in_parts),
        Range("max_seqlen_k", max_seqlen_k, 0, MAX_KEYS, in_parts),
        Range("sequences", count, 0, MAX_SEQUENCES),
    )
    require_built(op, sizes, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)
    tiles = count * kv_heads * -(-max_seqlen_q * (query_heads // kv_heads) // TILE_ROWS)
    if tiles > MAX_TILES:
        raise refusal(op, "sequences", sequences, f"{MAX_TILES} tiles of rows at most, not {tiles}", in_parts)
    where = planned_device(op, device)
    sms = _multiprocessors(where.type, where.index)
    needed = _workspace_bytes(count, max_seqlen_q, max_seqlen_k, query_heads, kv_heads, head_dim, sms)
    return PrefillPlan(
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        sequences=sequences,
        device=where,
        multiprocessors=sms,
        workspace_bytes=needed,
    )


def prefill(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """Plan and run in one call. Arguments as in :func:`plan` and :meth:`PrefillPlan.run`.

    ``max_seqlen_q`` and ``max_seqlen_k``, the longest sequence of a ragged batch, come with ``cu_seqlens_q`` and
    ``cu_seqlens_k``: looking them up would wait for the device. A ``workspace`` of ``MAX_WORKSPACE_BYTES`` serves every
    call. Under ``torch.compile`` this is compiled anew for every shape; a plan is not.
    """
    op = "prefill"
    require_tensors(op, q=q, k=k)
    query, key = _token_major(op, "q", q, "Hq, D"), _token_major(op, "k", k, "Hkv, D")
    ragged = cu_seqlens_q is not None or cu_seqlens_k is not None
    for name, longest in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if ragged != (longest is not None):
            given = "the longest sequence's, with cu_seqlens_q and cu_seqlens_k"
            want = given if ragged else "None without cu_seqlens_q"
            raise refusal(op, name, longest, want, "Pass the batch's offsets and longest lengths, or none of them")
    sequences = None
    if ragged:
        require_tensors(op, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        assert cu_seqlens_q is not None
        if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] < 1:
            got = f"shape {list(cu_seqlens_q.shape)}"
            raise refusal(op, "cu_seqlens_q", got, "[sequences + 1]", "Start with a 0")
        sequences = operator.index(cu_seqlens_q.shape[0] - 1)
    # Plain integers, where torch.compile has symbols: the workspace's size is computed while tracing.
    queries, query_heads, head_dim = map(operator.index, query.shape)
    keys, kv_heads = operator.index(key.shape[0]), operator.index(key.shape[1])
    planned = plan(
        max_seqlen_q=queries if max_seqlen_q is None else max_seqlen_q,
        max_seqlen_k=keys if max_seqlen_k is None else max_seqlen_k,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        sequences=sequences,
        device=q.device,
    )
    return planned.run(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        softmax_scale=softmax_scale,
        causal=causal,
        out=out,
        lse=lse,
        workspace=workspace,
    )


def prefill_paged(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    kv_format: str | None = None,
    cu_seqlens_q: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_tokens: int | None = None,
    gathered: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = True,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """Prefill over a paged KV cache: one ``gather_paged_kv`` into FP16, then the kernels of :func:`prefill`.

    The new tokens' own keys and values are in the cache already, as ``write_paged_kv`` leaves them. Lengths are read on
    the device, so a captured graph serves other lengths, pages and (device) scales.

    Args:
        q: FP16 ``[1, Q, Hq, D]``, or ``[tokens, Hq, D]`` with ``cu_seqlens_q`` for several sequences.
        key_cache, value_cache, k_scale, v_scale, kv_format: as in :func:`sm70_kernels.ops.kv_cache.gather_paged_kv`.
        block_table: int32 ``[B, max_blocks]``; entries past the live length are never read.
        seq_lens: int32 ``[B]``, the keys of each sequence, its new tokens included.
        cu_seqlens_q: int32 ``[B + 1]``, as in :meth:`PrefillPlan.run`; left out for one sequence with all of ``q``.
        max_seqlen_q: queries of the longest sequence, beside ``cu_seqlens_q``.
        max_tokens: keys of the longest sequence, where ``gathered`` is left out. The schedule is made for it: a
            tight one is fast.
        gathered: FP16 ``gathered_shape(B, max_tokens, Hkv, D)``, contiguous, the workspace of the gathered K and V.
            Its contents do not matter.
        softmax_scale, causal, out, lse, workspace: as in :meth:`PrefillPlan.run`; a workspace of
            ``MAX_WORKSPACE_BYTES`` serves every call.

    Returns:
        ``out``.

    Raises:
        RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched, and nothing but ``gathered``
            written.
    """
    op = "prefill_paged"
    _require_bool(op, "causal", causal)
    require_tensors(op, q=q, key_cache=key_cache, block_table=block_table, seq_lens=seq_lens)
    query = _token_major(op, "q", q, "Hq, D")
    require_dimensions(op, ("key_cache", key_cache, "[pages, page, Hkv, D]"), ("seq_lens", seq_lens, "[B]"))
    sequences, heads, head_dim = seq_lens.shape[0], key_cache.shape[2], key_cache.shape[3]
    if sequences == 0:
        raise refusal(op, "seq_lens", "no elements", "the length of one sequence at least", "Skip the call")
    if query.shape[2] != head_dim:
        got, want = f"a head dimension of {query.shape[2]}", f"{head_dim}, as in key_cache"
        raise refusal(op, "q", got, want, "Pass the queries of the cache's model")
    gathered = require_gathered(op, gathered, max_tokens, key_cache, sequences)
    cu_seqlens_q, max_seqlen_q = require_query_offsets(op, query, cu_seqlens_q, max_seqlen_q, sequences)
    tokens = gathered.shape[2]
    planned = plan(
        max_seqlen_q=operator.index(max_seqlen_q),
        max_seqlen_k=operator.index(tokens),
        query_heads=operator.index(query.shape[1]),
        kv_heads=operator.index(heads),
        head_dim=operator.index(head_dim),
        sequences=2 * operator.index(sequences) - 1,
        device=q.device,
    )
    kv_cache.gather_paged_kv(
        key_cache,
        value_cache,
        block_table,
        seq_lens,
        k_scale=k_scale,
        v_scale=v_scale,
        kv_format=kv_format,
        k_out=gathered[0],
        v_out=gathered[1],
    )
    cu_seqlens_q, cu_seqlens_k = interleaved_offsets(cu_seqlens_q, seq_lens, tokens)
    key, value = gathered.flatten(1, 2)
    return planned.run(
        q,
        key,
        value,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        softmax_scale=softmax_scale,
        causal=causal,
        out=out,
        lse=lse,
        workspace=workspace,
    )


torch.library.register_fake("sm70_kernels::prefill", fake("prefill"))
