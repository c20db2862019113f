"""Softmax attention in float64: the oracle of prefill, decode, verify and block-selected sparse attention.

Every query row has a length of its own and attends to keys ``0 .. length - 1`` of its key/value source. There
is no mask anywhere: the keys of a row are selected by index, so what lies past its length is not read, and
cannot reach a result even as ``0 x NaN``. Keys are visited in chunks with a running maximum, so that 256K
keys fit in memory; the chunk size changes results only in the last bits of float64.

A NaN inside the live prefix propagates and does no more than it must: a NaN in K makes all D outputs (and the
lse) of the query heads of its KV head NaN, a NaN in V only the output elements of its own dimension.
Infinities (E5M2, FP16 caches) follow float64 arithmetic and usually end as NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from sm70_kernels.reference.arguments import (
    FLOATS,
    Scale,
    fp32_scale,
    refusal,
    require_distinct,
    require_dtype,
    require_group_size,
    require_shape,
)
from sm70_kernels.reference.paged import PagedRow, live_pages, require_caches

SPARSE_BLOCK_TOKENS = 4
"""Tokens in a selectable block of sparse attention: block ``b`` is tokens ``4b .. 4b + 3``."""
UNUSED_BLOCK = -1
"""A selection entry that selects nothing."""
DEFAULT_CHUNK_KEYS = 4096
_QUERY_ROWS_AT_ONCE = 256  # bounds the scores held at once: 256 rows x 6 heads x 4096 keys x 8 B = 50 MB


class AttentionResult(NamedTuple):
    """Normalised outputs ``[..., Hq, D]`` and natural logs of denominators ``[..., Hq]``, both float64."""

    out: Tensor
    lse: Tensor


class KeyValueSource(Protocol):
    """K and V of one request, read by token."""

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return K and V of int64 ``tokens [n]`` as float64 ``[n, Hkv, D]``."""


@dataclass(frozen=True)
class DenseRow:
    """K and V of one request as ordinary tensors ``[KV, Hkv, D]``."""

    key: Tensor
    value: Tensor

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return K and V of int64 ``tokens [n]`` as float64 ``[n, Hkv, D]``; refuse keys past the end."""
        if tokens.numel() and int(tokens.max()) >= self.key.shape[0]:
            raise refusal(
                "lengths", f"a length that reaches key {int(tokens.max())}", f"KV={self.key.shape[0]} at most"
            )
        return self.key[tokens].to(torch.float64), self.value[tokens].to(torch.float64)


class _OnlineSoftmax:
    """Running maximum ``[...]``, sum ``[...]`` and unnormalised numerator ``[..., D]`` of rows of scores."""

    def __init__(self, shape: torch.Size, like: Tensor) -> None:
        self.maximum = like.new_full(shape[:-1], -math.inf, dtype=torch.float64)
        self.sum = like.new_zeros(shape[:-1], dtype=torch.float64)
        self.numerator = like.new_zeros(shape, dtype=torch.float64)

    def add(self, heads: slice, rows: Tensor, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Fold keys and values ``[heads, n, D]`` into the state of ``heads`` and ``rows``.

        ``query [heads, rows, G, D]`` holds those rows of those heads, already multiplied by the softmax
        scale.
        """
        count, group = query.shape[1:3]
        scores = (query.flatten(1, 2) @ key.transpose(1, 2)).reshape(-1, count, group, key.shape[1])
        old_maximum = self.maximum[heads, rows]
        maximum = torch.maximum(old_maximum, scores.amax(dim=-1))
        weight = torch.exp(scores - maximum[..., None])
        rescale = torch.exp(old_maximum - maximum)  # 0 for a row that had no keys yet
        added = (weight.flatten(1, 2) @ value).reshape(query.shape)
        self.sum[heads, rows] = self.sum[heads, rows] * rescale + weight.sum(dim=-1)
        self.numerator[heads, rows] = self.numerator[heads, rows] * rescale[..., None] + added
        self.maximum[heads, rows] = maximum

    def finish(self) -> AttentionResult:
        """Normalise; rows that saw no key are zeros with lse -inf."""
        no_keys = self.sum == 0.0  # exact: the largest weight of any row that saw a key is 1, or NaN
        out = torch.where(no_keys[..., None], 0.0, self.numerator / self.sum[..., None])
        return AttentionResult(out, self.maximum + torch.log(self.sum))


def attention(
    q: Tensor,
    source: KeyValueSource,
    lengths: Tensor,
    kv_heads: int,
    softmax_scale: float,
    *,
    selected_blocks: Tensor | None = None,
    chunk_keys: int = DEFAULT_CHUNK_KEYS,
) -> AttentionResult:
    """Attend from query rows to one request: ``softmax(softmax_scale * q . K) V`` over each row's own prefix.

    ``q``: float16/32/64 ``[rows, Hq, D]``; query head ``h`` uses KV head ``h // G``. ``lengths``: integers
    ``[rows]``. ``selected_blocks``: integers ``[rows, Hkv, S]``, the 4-token blocks that the G query heads of
    a KV head attend to, in any order, -1 for unused entries; tokens at or past the row's length are left out.
    ``softmax_scale`` is used as given, in float64. Returns ``out [rows, Hq, D]`` and ``lse [rows, Hq]``.
    Raises ``ValueError`` for other shapes or dtypes, a negative length, a block below -1 or selected twice, a
    scale that is not positive and finite.
    """
    require_dtype("q", q, FLOATS)
    require_shape("q", q, ("rows", "Hq", "D"))
    rows, query_heads, head_dim = q.shape
    group = require_group_size(query_heads, kv_heads)
    require_dtype("lengths", lengths, (torch.int32, torch.int64))
    require_shape("lengths", lengths, (rows,))
    if bool((lengths < 0).any()):
        raise refusal("lengths", int(lengths.min()), "0 or more keys")
    if not (math.isfinite(softmax_scale) and softmax_scale > 0.0):
        raise refusal("softmax_scale", softmax_scale, "a positive finite number")
    if chunk_keys < 1:
        raise refusal("chunk_keys", chunk_keys, "1 or more keys")

    query = (q.to(torch.float64) * softmax_scale).view(rows, kv_heads, group, head_dim).transpose(0, 1)
    state = _OnlineSoftmax(query.shape, query)
    if selected_blocks is None:
        for first in range(0, rows, _QUERY_ROWS_AT_ONCE):
            some_rows = torch.arange(first, min(first + _QUERY_ROWS_AT_ONCE, rows), device=q.device)
            _add_prefixes(state, query, source, lengths, some_rows, chunk_keys)
    else:
        _add_selected(state, query, source, lengths, selected_blocks, chunk_keys)
    result = state.finish()
    return AttentionResult(
        result.out.transpose(0, 1).reshape(rows, query_heads, head_dim),
        result.lse.transpose(0, 1).reshape(rows, query_heads),
    )


def _add_prefixes(
    state: _OnlineSoftmax,
    query: Tensor,
    source: KeyValueSource,
    lengths: Tensor,
    rows: Tensor,
    chunk_keys: int,
) -> None:
    """Let every row of ``rows`` see all keys of its prefix, chunk by chunk."""
    seq_lens = lengths[rows]
    longest = int(seq_lens.max()) if rows.numel() else 0
    for start in range(0, longest, chunk_keys):
        stop = min(start + chunk_keys, longest)
        key, value = source.read(torch.arange(start, stop, device=query.device))
        key, value = key.transpose(0, 1), value.transpose(0, 1)
        # Rows that see the whole chunk go together; one that ends inside it gets only the keys it has.
        ends = seq_lens.clamp(max=stop)
        for end in sorted(set(ends[ends > start].tolist())):
            same_end = rows[ends == end]
            state.add(slice(None), same_end, query[:, same_end], key[:, : end - start], value[:, : end - start])


def _add_selected(
    state: _OnlineSoftmax,
    query: Tensor,
    source: KeyValueSource,
    lengths: Tensor,
    selected_blocks: Tensor,
    chunk_keys: int,
) -> None:
    """Let every row and KV head see the tokens of its selected blocks, in ascending order."""
    kv_heads, rows = query.shape[:2]
    require_dtype("selected_blocks", selected_blocks, (torch.int32, torch.int64))
    require_shape("selected_blocks", selected_blocks, (rows, kv_heads, "S"))
    for row in range(rows):
        this_row = torch.tensor([row], device=query.device)
        for head in range(kv_heads):
            one_head = slice(head, head + 1)
            argument = f"selected_blocks[{row}, {head}]"
            blocks = selected_blocks[row, head].to(torch.int64).sort().values
            if bool((blocks < UNUSED_BLOCK).any()):
                raise refusal(argument, int(blocks[0]), "-1 or the index of a block of 4 tokens")
            blocks = blocks[blocks != UNUSED_BLOCK]
            require_distinct(argument, "block", blocks)
            offsets = torch.arange(SPARSE_BLOCK_TOKENS, device=query.device)
            tokens = (blocks[:, None] * SPARSE_BLOCK_TOKENS + offsets).flatten()
            tokens = tokens[tokens < lengths[row]]
            for start in range(0, tokens.numel(), chunk_keys):
                key, value = source.read(tokens[start : start + chunk_keys])
                state.add(
                    one_head,
                    this_row,
                    query[one_head, this_row],
                    key[:, one_head].transpose(0, 1),
                    value[:, one_head].transpose(0, 1),
                )


def causal_seq_lens(seq_lens: Tensor, q_rows: int) -> Tensor:
    """Return the prefix of each of the last ``q_rows`` queries of each sequence: int32 ``[B, q_rows]``.

    The last query is aligned to the last key, so row ``i`` sees ``seq_len - q_rows + i + 1`` keys (never
    below 0).
    """
    steps = torch.arange(q_rows, device=seq_lens.device) - (q_rows - 1)
    return (seq_lens[:, None] + steps).clamp(min=0).to(torch.int32)


def prefill_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    softmax_scale: float,
    *,
    causal: bool = True,
    rows: Tensor | None = None,
    chunk_keys: int = DEFAULT_CHUNK_KEYS,
) -> AttentionResult:
    """Dense attention of ``q [1, Q, Hq, D]`` over ``k``, ``v`` ``[1, KV, Hkv, D]`` (float16/32/64).

    Causal: query row ``i`` sees keys ``0 .. KV - Q + i`` (the last query is aligned to the last key);
    otherwise all. ``rows``: int64 ``[R]``, the query rows to compute, in that order; all of them by default.
    Returns ``out [1, R, Hq, D]``, ``lse [1, R, Hq]``. Raises ``ValueError`` for other shapes or dtypes, ``Q >
    KV`` with ``causal``, or a row outside ``0 .. Q - 1``.
    """
    require_dtype("q", q, FLOATS)
    require_shape("q", q, (1, "Q", "Hq", "D"))
    query_rows = q.shape[1]
    for argument, tensor in (("k", k), ("v", v)):
        require_dtype(argument, tensor, FLOATS)
        require_shape(argument, tensor, (1, "KV", "Hkv", q.shape[3]))
    require_shape("v", v, tuple(k.shape))
    keys = k.shape[1]
    if causal and query_rows > keys:
        raise refusal("k", f"KV={keys}", f"at least Q={query_rows} keys, as row 0 of causal attention needs one")
    if rows is None:
        rows = torch.arange(query_rows, device=q.device)
    require_dtype("rows", rows, (torch.int64,))
    require_shape("rows", rows, ("R",))
    bad = rows[(rows < 0) | (rows >= query_rows)]
    if bad.numel():
        raise refusal("rows", int(bad[0]), f"query rows in 0..{query_rows - 1}")
    lengths = keys - query_rows + rows + 1 if causal else torch.full_like(rows, keys)
    source = DenseRow(k[0], v[0])
    out, lse = attention(q[0, rows], source, lengths, k.shape[2], softmax_scale, chunk_keys=chunk_keys)
    return AttentionResult(out[None], lse[None])


def verify_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Scale,
    v_scale: Scale,
    kv_format: str,
    softmax_scale: float,
    selected_blocks: Tensor | None = None,
    chunk_keys: int = DEFAULT_CHUNK_KEYS,
) -> AttentionResult:
    """Paged attention of several query rows a request, each with its own prefix of the request's pages.

    ``q``: float16/32/64 ``[B, q_rows, Hq, D]``; caches ``[pages, page, Hkv, D]`` of ``kv_format``; ``block_table``:
    int32 ``[B, max_blocks]``; ``seq_lens``: int32 ``[B, q_rows]`` or ``[B * q_rows]``, 0 for a padding
    row; ``selected_blocks``: integers ``[B, q_rows, Hkv, S]`` as in :func:`attention`. K and V are ``decode *
    scale`` without rounding. Returns ``out [B, q_rows, Hq, D]`` and ``lse [B, q_rows, Hq]``, zeros and -inf
    for length 0. Raises ``ValueError`` for other shapes or dtypes, a length beyond the block table, a live
    page outside the pool.
    """
    require_dtype("q", q, FLOATS)
    require_shape("q", q, ("B", "q_rows", "Hq", "D"))
    batch, q_rows, query_heads, head_dim = q.shape
    require_caches(key_cache, value_cache, kv_format)
    pages, page, kv_heads, _ = key_cache.shape
    require_shape("key_cache", key_cache, (pages, page, kv_heads, head_dim))
    require_group_size(query_heads, kv_heads)
    require_dtype("block_table", block_table, (torch.int32,))
    require_shape("block_table", block_table, (batch, "max_blocks"))
    require_dtype("seq_lens", seq_lens, (torch.int32,))
    if seq_lens.dim() == 1:
        require_shape("seq_lens", seq_lens, (batch * q_rows,))
    lengths = seq_lens.reshape(-1, q_rows) if seq_lens.dim() == 1 else seq_lens
    require_shape("seq_lens", lengths, (batch, q_rows))
    if selected_blocks is not None:
        require_shape("selected_blocks", selected_blocks, (batch, q_rows, kv_heads, "S"))
    fp32_scale("k_scale", k_scale)
    fp32_scale("v_scale", v_scale)

    out = q.new_zeros(q.shape, dtype=torch.float64)
    lse = q.new_zeros(q.shape[:3], dtype=torch.float64)
    for request in range(batch):
        longest = int(lengths[request].max()) if q_rows else 0
        live_pages(f"block_table[{request}]", block_table[request], longest, page, pages)
        source = PagedRow(key_cache, value_cache, kv_format, k_scale, v_scale, block_table[request])
        out[request], lse[request] = attention(
            q[request],
            source,
            lengths[request],
            kv_heads,
            softmax_scale,
            selected_blocks=None if selected_blocks is None else selected_blocks[request],
            chunk_keys=chunk_keys,
        )
    return AttentionResult(out, lse)


def decode_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Scale,
    v_scale: Scale,
    kv_format: str,
    softmax_scale: float,
    selected_blocks: Tensor | None = None,
    chunk_keys: int = DEFAULT_CHUNK_KEYS,
) -> AttentionResult:
    """Paged attention of one query row a table row: :func:`verify_attention` with ``q_rows = 1``.

    ``q``: ``[B, Hq, D]``; ``seq_lens``: int32 ``[B]``; ``selected_blocks``: ``[B, Hkv, S]``. Returns
    ``out [B, Hq, D]`` and ``lse [B, Hq]``.
    """
    require_shape("q", q, ("B", "Hq", "D"))
    require_dtype("seq_lens", seq_lens, (torch.int32,))
    require_shape("seq_lens", seq_lens, (q.shape[0],))
    out, lse = verify_attention(
        q[:, None],
        key_cache,
        value_cache,
        block_table,
        seq_lens[:, None],
        k_scale=k_scale,
        v_scale=v_scale,
        kv_format=kv_format,
        softmax_scale=softmax_scale,
        selected_blocks=None if selected_blocks is None else selected_blocks[:, None],
        chunk_keys=chunk_keys,
    )
    return AttentionResult(out[:, 0], lse[:, 0])
