"""Paged KV cache: write FP16 keys and values into pages, gather pages back into FP16.

Caches are ``[pages, page, Hkv, D]``, one tensor for K and one for V, with any strides whose last is 1: the two
``unbind(1)`` views of ``[pages, 2, page, Hkv, D]`` and permuted head-major pools are served as they are. They hold
E4M3 or E5M2 bytes (uint8, or torch's float8 dtype of that format) or FP16. The real value is stored value x scale.

Contract and numerics: ``docs/operators.md``. The same operators are ``torch.ops.sm70_kernels.write_paged_kv`` and
``torch.ops.sm70_kernels.gather_paged_kv``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops._arguments import fake, format_name, refusal, require_dimensions, require_tensors, split_scale

#: Revision of the numerical contract that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("kv_cache", CAPABILITY_REVISION)

#: Rows are gathered, and zeroed past their length, up to a multiple of this many tokens.
TILE_TOKENS = 16


def _allocate_outputs(
    op: str, key_cache: Tensor, seq_lens: Tensor, max_tokens: int | None, out_block_table: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Contiguous FP16 outputs ``[B, max_tokens, Hkv, D]``, uninitialised."""
    if max_tokens is None or out_block_table is not None:
        want = "FP16 outputs, or 'max_tokens' and no 'out_block_table' to have contiguous ones allocated"
        raise refusal(op, "k_out", "None", want, "Pass either")
    if isinstance(max_tokens, float) or max_tokens < 0:
        raise refusal(op, "max_tokens", max_tokens, "a whole number from 0", "Pass the longest length")
    require_dimensions(op, ("key_cache", key_cache, "[pages, page, Hkv, D]"), ("seq_lens", seq_lens, "[B]"))
    shape = (seq_lens.shape[0], max_tokens, key_cache.shape[2], key_cache.shape[3])
    k_out, v_out = (torch.empty(shape, dtype=torch.float16, device=key_cache.device) for _ in range(2))
    return k_out, v_out


def write_paged_kv(
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    kv_format: str | None = None,
) -> None:
    """Quantise new tokens into their cache slots.

    ``stored = round(float32(x / scale))``: one correctly rounded FP32 division, then one rounding to nearest even.
    E4M3 saturates to +-448, infinities included; E5M2 overflows to infinity; NaN stays NaN.

    Args:
        k, v: FP16 ``[tokens, Hkv, D]``, last stride 1.
        key_cache, value_cache: ``[pages, page, Hkv, D]``, written in place; ``page`` a multiple of 16.
        slot_mapping: int64 ``[tokens]``: ``page_index * page + offset``; -1 skips the token. Any other value outside
            the cache stops the kernel with a trap, as a device-side assertion does. Of two tokens with one slot,
            either may win.
        k_scale, v_scale: positive finite factor between stored and real values, or a one-element float32 tensor on the
            same device, read when the kernel runs. A device scale that is not positive and finite stores NaN.
        kv_format: ``e4m3`` (also ``fp8``, ``fp8_e4m3``), ``e5m2`` (also ``fp8_e5m2``) or ``fp16``; may be left out
            unless the cache is uint8.

    Raises:
        RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written. The message names
            the argument, what was got and what is wanted.
    """
    op = "write_paged_kv"
    require_tensors(op, k=k, v=v, key_cache=key_cache, value_cache=value_cache, slot_mapping=slot_mapping)
    k_host, k_device = split_scale(op, "k_scale", k_scale)
    v_host, v_device = split_scale(op, "v_scale", v_scale)
    name = format_name(op, kv_format, key_cache)
    torch.ops.sm70_kernels.write_paged_kv(
        k, v, key_cache, value_cache, slot_mapping, name, k_host, v_host, k_device, v_device
    )


def gather_paged_kv(
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    kv_format: str | None = None,
    max_tokens: int | None = None,
    k_out: Tensor | None = None,
    v_out: Tensor | None = None,
    out_block_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Dequantise the live tokens of every row into FP16.

    ``out = fp16(float32(stored * scale))``, which is exact for unit scale; NaN stays NaN. A row's live tokens are
    written, then zeros up to the next multiple of 16 tokens (or the output's end); the rest of the output is left as
    it was. The grid depends on shapes only and lengths are read on the device, so a captured graph serves any lengths.

    Args:
        key_cache, value_cache: ``[pages, page, Hkv, D]``; ``page`` a multiple of 16.
        block_table: int32 ``[B, max_blocks]``; entries past the live length are never read.
        seq_lens: int32 ``[B]``, each from 0 to what table and output can hold; a length outside, or a live entry that
            is no page, stops the kernel with a trap.
        k_scale, v_scale: as in :func:`write_paged_kv`. A bad device scale gives NaN.
        kv_format: as in :func:`write_paged_kv`.
        max_tokens: size of the outputs when they are allocated here, at least every length.
        k_out, v_out: FP16 outputs, ``[B, tokens, Hkv, D]``, or ``[out_pages, out_page, Hkv, D]`` with
            ``out_block_table``. Given both or none; allocated ones are uninitialised past what is written.
        out_block_table: int32 ``[B, max_out_blocks]``: pages of the outputs, ``out_page`` a multiple of 16.

    Returns:
        ``(k_out, v_out)``.

    Raises:
        RuntimeError, TypeError, ValueError: as in :func:`write_paged_kv`.
    """
    op = "gather_paged_kv"
    require_tensors(op, key_cache=key_cache, value_cache=value_cache, block_table=block_table, seq_lens=seq_lens)
    if (k_out is None) != (v_out is None):
        raise ValueError(
            f"{op}: arguments 'k_out' and 'v_out': got one of them, want both or none. Pass the other one too"
        )
    if k_out is None or v_out is None:
        k_out, v_out = _allocate_outputs(op, key_cache, seq_lens, max_tokens, out_block_table)
    elif max_tokens is not None:
        got = "it beside outputs, whose size it would repeat"
        raise refusal(op, "max_tokens", got, "None", "Pass one of the two")
    require_tensors(op, k_out=k_out, v_out=v_out)
    if out_block_table is not None:
        require_tensors(op, out_block_table=out_block_table)
    k_host, k_device = split_scale(op, "k_scale", k_scale)
    v_host, v_device = split_scale(op, "v_scale", v_scale)
    name = format_name(op, kv_format, key_cache)
    torch.ops.sm70_kernels.gather_paged_kv(
        key_cache,
        value_cache,
        block_table,
        seq_lens,
        k_out,
        v_out,
        name,
        k_host,
        v_host,
        k_device,
        v_device,
        out_block_table,
    )
    return k_out, v_out


for _name in ("write_paged_kv", "gather_paged_kv"):
    torch.library.register_fake(f"sm70_kernels::{_name}", fake(_name))
