"""Prefill: fused attention of many new queries over long FP16 keys and values, causal or not.

    plan = sm70_kernels.prefill.plan(queries=8192, keys=131072, query_heads=6, kv_heads=1, head_dim=256, device="cuda")
    workspace = plan.new_workspace()
    out = plan.run(q, k, v, workspace=workspace)  # q [1, 8192, 6, 256]; k, v [1, 131072, 1, 256]

One sequence, or a ragged batch of sequences one behind the other (``sequences=``, ``cu_seqlens_q``, ``cu_seqlens_k``).
:func:`prefill_paged` reads a paged KV cache: it gathers the pages into FP16 once, then runs the same kernels.
Contract and numerics: ``docs/operators.md``. The operator itself is ``torch.ops.sm70_kernels.prefill``.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops import kv_cache
from sm70_kernels.ops._arguments import fake, require_tensors
from sm70_kernels.ops._planning import called_while_tracing, multiprocessors

#: Revision of the numerical contract and workspace layout that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("prefill", CAPABILITY_REVISION)

HEAD_DIMS = (64, 128, 256)
MAX_GROUP = 16
#: Packed (query, head) rows of a tile.
TILE_ROWS = 128
MAX_QUERIES = 8192
MAX_KEYS = 262144
MAX_SEQUENCES = 65536
#: Tiles of a call: sequences x KV heads x those of the longest sequence.
MAX_TILES = 2**30
#: No plan wants more: a workspace of this size serves every shape.
MAX_WORKSPACE_BYTES = 64 << 20


@functools.cache
def _ask_operator(*shape_and_multiprocessors: int) -> int:
    return library.call_int64("sm70_kernels_prefill_workspace_bytes", *shape_and_multiprocessors)


@called_while_tracing
def _workspace_bytes(
    sequences: int, queries: int, keys: int, query_heads: int, kv_heads: int, head_dim: int, multiprocessors: int
) -> int:
    """The operator's own answer."""
    return _ask_operator(sequences, queries, keys, query_heads, kv_heads, head_dim, multiprocessors)


def _refuse(name: str, got: object, want: str, remedy: str, op: str = "prefill.plan") -> ValueError:
    return ValueError(f"{op}: argument {name!r}: got {got}, want {want}. {remedy}")


def _token_major(op: str, name: str, tensor: Tensor, dims: str) -> Tensor:
    """``[tokens, ...]`` as it is, ``[1, tokens, ...]`` without its first dimension. ``dims`` names the others."""
    wanted = dims.count(",") + 2
    if tensor.dim() == wanted + 1 and tensor.shape[0] == 1:
        return tensor[0]
    if tensor.dim() != wanted:
        shape = list(tensor.shape)
        raise _refuse(name, f"shape {shape}", f"[1, tokens, {dims}] or [tokens, {dims}]", "Reshape it", op)
    return tensor


def _require_bool(name: str, value: object, op: str) -> None:
    """None would count as False, which is not the default."""
    if not isinstance(value, bool):
        raise TypeError(f"{op}: argument {name!r}: got {value!r}, want True or False. Leave it out for the default")


@dataclass(frozen=True)
class PrefillPlan:
    """What is fixed by shapes, before any tensor exists. Made by :func:`plan`; serves any number of runs."""

    queries: int
    keys: int
    query_heads: int
    kv_heads: int
    head_dim: int
    sequences: int | None
    """Sequences of a ragged batch, whose longest have ``queries`` and ``keys``; None for one sequence of just these."""
    device: torch.device
    multiprocessors: int
    workspace_bytes: int
    """A function of shapes and SM count only; at most 64 MiB."""

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

    def new_workspace(self) -> Tensor:
        """An uninitialised workspace. It may be shared by runs that do not overlap in time."""
        return torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self.device)

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
            workspace: uint8, ``workspace_bytes`` at least, 16-byte aligned; allocated if left out. Its contents do
                not matter.

        Returns:
            ``out``.

        Raises:
            RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written.
        """
        op = "prefill"
        _require_bool("causal", causal, op)
        require_tensors(op, q=q, k=k, v=v)
        query, key, value = (_token_major(op, *each) for each in (("q", q, "Hq, D"), ("k", k, "Hkv, D"),
                                                                   ("v", v, "Hkv, D")))  # fmt: skip
        self._require_planned(query, key, cu_seqlens_q)
        if out is None:
            out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
        if workspace is None:
            workspace = self.new_workspace()
        require_tensors(op, out=out, workspace=workspace)
        if lse is not None:
            require_tensors(op, lse=lse)
            lse = _token_major(op, "lse", lse, "Hq")
        scale = 1.0 / math.sqrt(self.head_dim) if softmax_scale is None else softmax_scale
        torch.ops.sm70_kernels.prefill(
            query, key, value, _token_major(op, "out", out, "Hq, D"), workspace, scale, causal,
            cu_seqlens_q, cu_seqlens_k, *((self.queries, self.keys) if cu_seqlens_q is not None else (0, 0)), lse,
        )  # fmt: skip
        return out

    def _require_planned(self, q: Tensor, k: Tensor, cu_seqlens_q: Tensor | None) -> None:
        """The tensors have the shapes that this plan is for; the operator checks everything else."""
        op, again = "prefill", "Make a plan for this shape"
        dense = self.sequences is None
        for name, tensor, tokens, heads in (
            ("q", q, self.queries, self.query_heads),
            ("k", k, self.keys, self.kv_heads),
        ):
            planned = [tokens if dense else tensor.shape[0], heads, self.head_dim]
            if list(tensor.shape) != planned:
                raise _refuse(name, f"shape {list(tensor.shape)}", f"{planned}, as planned", again, op)
        if dense != (cu_seqlens_q is None):
            got, want = ("None", "a tensor") if cu_seqlens_q is None else ("a tensor", "None")
            raise _refuse("cu_seqlens_q", got, f"{want}, as planned with sequences={self.sequences}", again, op)
        if cu_seqlens_q is not None:
            require_tensors(op, cu_seqlens_q=cu_seqlens_q)
            if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] - 1 != self.sequences:
                shape = list(cu_seqlens_q.shape)
                raise _refuse("cu_seqlens_q", f"shape {shape}", f"[sequences + 1] of {self.sequences}", again, op)
        if q.device.type != self.device.type:
            raise _refuse("q", f"a tensor on {q.device}", f"one on {self.device}, as planned", "Plan for it", op)


def plan(
    *,
    queries: int,
    keys: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    sequences: int | None = None,
    device: torch.device | str = "cuda",
) -> PrefillPlan:
    """Plan a prefill of these shapes; refuses what is not built.

    Args:
        queries, keys: tokens of the sequence, or of the longest sequence of a ragged batch: up to 8192 and 262144.
        query_heads, kv_heads: ``Hq`` and ``Hkv``; ``G = Hq / Hkv`` from 1 to 16.
        head_dim: 64, 128 or 256.
        sequences: of a ragged batch; None for one sequence without ``cu_seqlens_q`` and ``cu_seqlens_k``.
        device: a CUDA device, or the CPU for the emulated V100.

    Raises:
        ValueError: a shape that is not built, with the list of what is; an argument out of range.
    """
    if head_dim not in HEAD_DIMS:
        raise _refuse("head_dim", repr(head_dim), f"one of {list(HEAD_DIMS)}", "No kernel is built for others")
    for name, number, least, most in (
        ("queries", queries, 0, MAX_QUERIES),
        ("keys", keys, 0, MAX_KEYS),
        ("query_heads", query_heads, 1, 2**16),
        ("kv_heads", kv_heads, 1, 2**16),
        ("sequences", 1 if sequences is None else sequences, 0, MAX_SEQUENCES),
    ):
        if not isinstance(number, int) or not least <= number <= most:
            remedy = "Prefill in several calls" if name in ("queries", "keys") else "Pass the size of the call"
            raise _refuse(name, repr(number), f"a whole number from {least} to {most}", remedy)
    if query_heads % kv_heads != 0 or query_heads // kv_heads > MAX_GROUP:
        want = f"1 to {MAX_GROUP} times kv_heads={kv_heads}"
        raise _refuse("query_heads", query_heads, want, "No kernel is built for others")
    rows = queries * (query_heads // kv_heads)
    tiles = (1 if sequences is None else sequences) * kv_heads * -(-rows // TILE_ROWS)
    if tiles > MAX_TILES:
        raise _refuse(
            "sequences", sequences, f"{MAX_TILES} tiles of rows at most, not {tiles}", "Prefill in several calls"
        )
    where = torch.device(device)
    if where.type not in ("cuda", "cpu"):
        raise _refuse("device", repr(str(where)), "a CUDA device, or cpu for the emulated V100", "Plan for a V100")
    sms = multiprocessors(library.operator, where.type, where.index)
    shape = (queries, keys, query_heads, kv_heads, head_dim)
    workspace_bytes = _workspace_bytes(1 if sequences is None else sequences, *shape, sms)
    return PrefillPlan(*shape, sequences, where, sms, workspace_bytes)


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
    for name, number in (("max_seqlen_q", max_seqlen_q), ("max_seqlen_k", max_seqlen_k)):
        if ragged != (number is not None):
            want = (
                "the longest sequence's, with cu_seqlens_q and cu_seqlens_k" if ragged else "None without cu_seqlens_q"
            )
            raise _refuse(name, number, want, "Pass the batch's offsets and longest lengths, or none of them", op)
    sequences = None
    if ragged:
        require_tensors(op, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
        assert cu_seqlens_q is not None
        if cu_seqlens_q.dim() != 1 or cu_seqlens_q.shape[0] < 1:
            raise _refuse("cu_seqlens_q", f"shape {list(cu_seqlens_q.shape)}", "[sequences + 1]", "Start with a 0", op)
        sequences = operator.index(cu_seqlens_q.shape[0] - 1)
    # Numbers, where torch.compile has symbols: the workspace's size is asked for while tracing.
    tokens, query_heads, head_dim = map(operator.index, query.shape)
    keys, kv_heads = operator.index(key.shape[0]), operator.index(key.shape[1])
    planned = plan(
        queries=tokens if max_seqlen_q is None else max_seqlen_q,
        keys=keys if max_seqlen_k is None else max_seqlen_k,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        sequences=sequences,
        device=q.device,
    )
    return planned.run(
        q, k, v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, softmax_scale=softmax_scale, causal=causal,
        out=out, lse=lse, workspace=workspace,
    )  # fmt: skip


def gathered_shape(sequences: int, max_tokens: int, kv_heads: int, head_dim: int) -> tuple[int, int, int, int, int]:
    """Shape of the FP16 tensor that :func:`prefill_paged` gathers K and V into."""
    return (2, sequences, max_tokens, kv_heads, head_dim)


def gathered_bytes(sequences: int, max_tokens: int, kv_heads: int, head_dim: int) -> int:
    """Bytes of that tensor: 256 MiB for one sequence of 262144 tokens of one head of 256."""
    return 2 * math.prod(gathered_shape(sequences, max_tokens, kv_heads, head_dim))


def prefill_paged(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    *,
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
        max_tokens: keys of the longest sequence, where ``gathered`` is left out. The work is divided for it: a tight
            one is fast.
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
    _require_bool("causal", causal, op)
    require_tensors(op, q=q, key_cache=key_cache, block_table=block_table, seq_lens=seq_lens)
    query = _token_major(op, "q", q, "Hq, D")
    for name, tensor, dims in (("key_cache", key_cache, "[pages, page, Hkv, D]"), ("seq_lens", seq_lens, "[B]")):
        if tensor.dim() != dims.count(",") + 1:
            raise _refuse(name, f"shape {list(tensor.shape)}", dims, "Reshape or unsqueeze it", op)
    sequences, heads, head_dim = seq_lens.shape[0], key_cache.shape[2], key_cache.shape[3]
    if sequences == 0:
        raise _refuse("seq_lens", "no elements", "the length of one sequence at least", "Skip the call", op)
    if query.shape[2] != head_dim:
        raise _refuse("q", f"a head dimension of {query.shape[2]}", f"{head_dim}, as in key_cache",
                      "Pass the queries of the cache's model", op)  # fmt: skip
    if (gathered is None) == (max_tokens is None):
        got = "None" if gathered is None else "it beside max_tokens"
        raise _refuse("gathered", got, "a workspace, or max_tokens to have one allocated", "Pass one of the two", op)
    if gathered is None:
        assert max_tokens is not None
        if max_tokens < 0:
            raise _refuse("max_tokens", max_tokens, "a whole number from 0 on", "Pass the longest sequence's", op)
        shape = gathered_shape(sequences, max_tokens, heads, head_dim)
        gathered = torch.empty(shape, dtype=torch.float16, device=key_cache.device)
    require_tensors(op, gathered=gathered)
    tokens = gathered.shape[2] if gathered.dim() == 5 else 0
    wanted = gathered_shape(sequences, tokens, heads, head_dim)
    if gathered.shape != wanted or not gathered.is_contiguous():
        want = f"[2, {sequences}, max_tokens, {heads}, {head_dim}], contiguous"
        raise _refuse("gathered", f"shape {list(gathered.shape)}", want, "Allocate gathered_shape()", op)
    if cu_seqlens_q is None and sequences != 1:
        raise _refuse("cu_seqlens_q", "None", f"int32 [{sequences + 1}], as there are {sequences} sequences", "Pass it",
                      op)  # fmt: skip
    if (cu_seqlens_q is None) != (max_seqlen_q is None):
        raise _refuse(
            "max_seqlen_q", max_seqlen_q, "the longest sequence's, beside cu_seqlens_q", "Pass both or none", op
        )
    if cu_seqlens_q is None:
        cu_seqlens_q = torch.arange(2, dtype=torch.int32, device=q.device) * query.shape[0]
        max_seqlen_q = query.shape[0]
    require_tensors(op, cu_seqlens_q=cu_seqlens_q)
    if cu_seqlens_q.shape != (sequences + 1,):
        raise _refuse("cu_seqlens_q", f"shape {list(cu_seqlens_q.shape)}", f"[{sequences + 1}]",
                      "One more than seq_lens", op)  # fmt: skip
    assert max_seqlen_q is not None
    planned = plan(
        queries=operator.index(max_seqlen_q),
        keys=operator.index(tokens),
        query_heads=operator.index(query.shape[1]),
        kv_heads=operator.index(heads),
        head_dim=operator.index(query.shape[2]),
        sequences=2 * operator.index(sequences) - 1,
        device=q.device,
    )
    kv_cache.gather_paged_kv(
        key_cache, value_cache, block_table, seq_lens, k_scale, v_scale, kv_format=kv_format, k_out=gathered[0],
        v_out=gathered[1],
    )  # fmt: skip
    # Behind each sequence's keys lies what is left of its row of `gathered`: keys of a sequence without queries.
    starts = torch.arange(sequences, dtype=torch.int32, device=seq_lens.device) * tokens
    cu_seqlens_k = torch.stack([starts, starts + seq_lens], dim=1).flatten()
    cu_rows = torch.stack([cu_seqlens_q[:-1], cu_seqlens_q[1:]], dim=1).flatten()
    key, value = gathered.flatten(1, 2)
    return planned.run(
        q, key, value, cu_seqlens_q=cu_rows, cu_seqlens_k=cu_seqlens_k, softmax_scale=softmax_scale, causal=causal,
        out=out, lse=lse, workspace=workspace,
    )  # fmt: skip


torch.library.register_fake("sm70_kernels::prefill", fake("prefill"))
