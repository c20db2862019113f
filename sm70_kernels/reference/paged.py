"""Paged KV caches: writing new tokens and gathering live prefixes, as plain indexing.

A cache is ``[pages, page, Hkv, D]`` of any strides, one tensor for K and one for V: uint8 or a float8 dtype
for ``e4m3``/``e5m2``, float16 for ``fp16``. ``page`` (tokens a page) is a multiple of 16. Token ``t`` of row
``b`` is ``cache[block_table[b, t // page], t % page]``. Block-table entries past a row's last live page are
never looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sm70_kernels.reference.arguments import Scale, fp32_scale, refusal, require_distinct, require_dtype, require_shape
from sm70_kernels.reference.fp8 import dequantize, dequantize_fp16, quantize, require_storage

TOKEN_MULTIPLE = 16
"""Page sizes are multiples of this many tokens, and the gather zeroes up to the next multiple."""
SKIPPED_SLOT = -1
"""A slot mapping entry that writes nothing."""


def require_caches(key_cache: Tensor, value_cache: Tensor, kv_format: str) -> None:
    """Raise ``ValueError`` unless both are ``[pages, page, Hkv, D]`` of ``kv_format``, page a multiple of 16."""
    for argument, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        require_storage(argument, cache, kv_format)
        require_shape(argument, cache, ("pages", "page", "Hkv", "D"))
        if cache.shape[1] == 0 or cache.shape[1] % TOKEN_MULTIPLE:
            raise refusal(argument, f"page size {cache.shape[1]}", f"a multiple of {TOKEN_MULTIPLE} tokens")
    require_shape("value_cache", value_cache, tuple(key_cache.shape))


def live_pages(argument: str, block_table_row: Tensor, length: int, page: int, pages: int) -> Tensor:
    """Return the page ids (int64) that hold tokens ``0 .. length - 1``; later entries are not read.

    Raises ``ValueError`` if the row is too short for ``length`` or a live entry is not in ``0 .. pages - 1``.
    """
    count = -(-length // page)
    if count > block_table_row.numel():
        raise refusal(
            argument,
            f"{block_table_row.numel()} entries",
            f"{count} entries for {length} tokens of page {page}",
        )
    ids = block_table_row[:count].to(torch.int64)
    bad = ((ids < 0) | (ids >= pages)).nonzero()
    if bad.numel():
        entry = int(bad[0])
        raise refusal(argument, f"page {int(ids[entry])} in live entry {entry}", f"a page in 0..{pages - 1}")
    return ids


@dataclass(frozen=True)
class PagedRow:
    """K and V of one row: caches, their format and scales, and the row's part of the block table (int32)."""

    key_cache: Tensor
    value_cache: Tensor
    kv_format: str
    k_scale: Scale
    v_scale: Scale
    block_table_row: Tensor

    def read(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return K and V of int64 ``tokens [n]`` as exact float64 ``[n, Hkv, D]``; touches no other token."""
        pages, page = self.key_cache.shape[:2]
        length = int(tokens.max()) + 1 if tokens.numel() else 0
        ids = live_pages("block_table", self.block_table_row, length, page, pages)[tokens // page]
        key = _stored(self.key_cache, self.kv_format)[ids, tokens % page]
        value = _stored(self.value_cache, self.kv_format)[ids, tokens % page]
        return (
            dequantize(key, self.k_scale, self.kv_format, "k_scale"),
            dequantize(value, self.v_scale, self.kv_format, "v_scale"),
        )


def _stored(cache: Tensor, kv_format: str) -> Tensor:
    """View FP8 storage as bytes, since torch indexes bytes but not every float8 dtype."""
    return cache if kv_format == "fp16" else cache.view(torch.uint8)


def write_paged_kv(
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Scale,
    v_scale: Scale,
    kv_format: str,
) -> None:
    """Quantise new tokens into their slots, in place.

    ``cache[slot // page, slot % page] = rne(float32(x / scale))``, as in :func:`fp8.quantize`.
    ``k``, ``v``: float16 ``[tokens, Hkv, D]``; ``slot_mapping``: int64 ``[tokens]``, -1 skips the token.
    Raises ``ValueError``, with nothing written, for other shapes or dtypes, a slot outside the cache, a slot
    named twice (the result would depend on the order of writes) or a scale that is not positive and finite in
    FP32.
    """
    require_caches(key_cache, value_cache, kv_format)
    pages, page, kv_heads, head_dim = key_cache.shape
    require_dtype("slot_mapping", slot_mapping, (torch.int64,))
    require_shape("slot_mapping", slot_mapping, ("tokens",))
    for argument, new in (("k", k), ("v", v)):
        require_dtype(argument, new, (torch.float16,))
        require_shape(argument, new, (slot_mapping.shape[0], kv_heads, head_dim))
    written = slot_mapping != SKIPPED_SLOT
    slots = slot_mapping[written]
    bad = slots[(slots < 0) | (slots >= pages * page)]
    if bad.numel():
        raise refusal("slot_mapping", f"slot {int(bad[0])}", f"-1 or 0..{pages * page - 1}")
    require_distinct("slot_mapping", "slot", slots)
    key = quantize(k[written], k_scale, kv_format, "k_scale")
    value = quantize(v[written], v_scale, kv_format, "v_scale")
    _stored(key_cache, kv_format)[slots // page, slots % page] = key
    _stored(value_cache, kv_format)[slots // page, slots % page] = value


def gather_paged_kv(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: Scale,
    v_scale: Scale,
    kv_format: str,
    k_out: Tensor,
    v_out: Tensor,
    out_block_table: Tensor | None = None,
) -> None:
    """Copy every row's live prefix out of the pages as float16 ``rne(float32(decode * scale))``, in place.

    ``block_table``: int32 ``[B, max_blocks]``; ``seq_lens``: int32 ``[B]``. Without ``out_block_table`` the
    outputs are float16 ``[B, tokens, Hkv, D]``; with it (int32 ``[B, max_out_blocks]``) they are float16
    pages ``[out_pages, out_page, Hkv, D]``. Tokens from the length up to the next multiple of 16, as far as
    the output goes, become zero; everything later stays untouched, and a row of length 0 writes nothing.
    Raises ``ValueError``, with nothing written, for other shapes or dtypes, a length that is negative or
    exceeds the block table or the output, a live page outside its pool, or two live output tokens in one
    place.
    """
    require_caches(key_cache, value_cache, kv_format)
    pages, page, kv_heads, head_dim = key_cache.shape
    require_dtype("block_table", block_table, (torch.int32,))
    require_shape("block_table", block_table, ("B", "max_blocks"))
    rows = block_table.shape[0]
    require_dtype("seq_lens", seq_lens, (torch.int32,))
    require_shape("seq_lens", seq_lens, (rows,))
    for argument, out in (("k_out", k_out), ("v_out", v_out)):
        require_dtype(argument, out, (torch.float16,))
        if out_block_table is None:
            require_shape(argument, out, (rows, "tokens", kv_heads, head_dim))
        else:
            require_shape(argument, out, ("out_pages", "out_page", kv_heads, head_dim))
    require_shape("v_out", v_out, tuple(k_out.shape))
    out_page = k_out.shape[1]
    if out_block_table is None:
        capacity = out_page
    else:
        require_dtype("out_block_table", out_block_table, (torch.int32,))
        require_shape("out_block_table", out_block_table, (rows, "max_out_blocks"))
        if out_page == 0 or out_page % TOKEN_MULTIPLE:
            raise refusal("k_out", f"page size {out_page}", f"a multiple of {TOKEN_MULTIPLE} tokens")
        capacity = out_page * out_block_table.shape[1]
    fp32_scale("k_scale", k_scale)
    fp32_scale("v_scale", v_scale)

    lengths: list[int] = seq_lens.tolist()
    destinations: list[Tensor] = []  # live output pages of each row (one "page" a row when contiguous)
    for row, length in enumerate(lengths):
        if not 0 <= length <= capacity:
            raise refusal(f"seq_lens[{row}]", length, f"0..{capacity}, what the output holds")
        live_pages(f"block_table[{row}]", block_table[row], length, page, pages)
        if out_block_table is None:
            destinations.append(torch.full((1 if length else 0,), row, dtype=torch.int64, device=k_out.device))
        else:
            argument = f"out_block_table[{row}]"
            destinations.append(live_pages(argument, out_block_table[row], length, out_page, k_out.shape[0]))
    if destinations:
        require_distinct("out_block_table", "live page", torch.cat(destinations))

    for row, length in enumerate(lengths):
        ids = live_pages("block_table", block_table[row], length, page, pages)
        tokens = torch.arange(length, device=key_cache.device)
        padded = min(-(-length // TOKEN_MULTIPLE) * TOKEN_MULTIPLE, capacity)
        out_tokens = torch.arange(padded, device=k_out.device)
        where = (destinations[row][out_tokens // out_page], out_tokens % out_page)
        for cache, scale, out in ((key_cache, k_scale, k_out), (value_cache, v_scale, v_out)):
            live = dequantize_fp16(_stored(cache, kv_format)[ids[tokens // page], tokens % page], scale, kv_format)
            padding = live.new_zeros((padded - length, kv_heads, head_dim))
            out[where] = torch.cat((live, padding))
