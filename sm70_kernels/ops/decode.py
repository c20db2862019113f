"""Paged decode: one new token per row over a paged KV cache in E4M3, E5M2 or FP16.

    plan = sm70_kernels.ops.decode.plan(
        rows=32, query_heads=6, kv_heads=1, head_dim=256, max_tokens=262144, kv_format="e4m3", device="cuda"
    )
    workspace = plan.new_workspace()
    out = plan.run(q, key_cache, value_cache, block_table, seq_lens, workspace=workspace)

The variant ``xqa`` runs on tensor cores, the query heads of a KV head sharing one pass over K and V. ``scalar`` is
plain FP32: the baseline, and what serves layouts that ``xqa`` can't. Neither replaces the other silently. Contract and
numerics: ``docs/operators.md``. The operator itself is ``torch.ops.sm70_kernels.decode``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops._arguments import fake, format_name, refusal, require_tensors, split_scale
from sm70_kernels.ops._planning import (
    MAX_TOKENS,
    PagedPlan,
    Range,
    asked,
    multiprocessors_of,
    paged_sizes,
    planned_device,
    require_built,
)

#: Revision of the numerical contract and workspace layout that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("decode", CAPABILITY_REVISION)

MAX_ROWS = 2**20
VARIANTS = ("xqa", "scalar")
#: Keys of a leaf: a row is cut into leaves from its start.
LEAF_TOKENS = 128

_multiprocessors = multiprocessors_of(library)
_workspace_bytes = asked(library, "sm70_kernels_decode_workspace_bytes")


@dataclass(frozen=True, kw_only=True)
class DecodePlan(PagedPlan):
    """A decode of these shapes. Made by :func:`plan`."""

    rows: int
    variant: str
    multiprocessors: int

    @property
    def route(self) -> str:
        """Name of the kernel that runs, as profilers and ``library.launch_counts()`` show it."""
        shape = (self.query_heads, self.kv_heads, self.head_dim, int(self.variant == "xqa"))
        return library.call_text("sm70_kernels_decode_route", self.kv_format, *shape)

    def run(
        self,
        q: Tensor,
        key_cache: Tensor,
        value_cache: Tensor,
        block_table: Tensor,
        seq_lens: Tensor,
        *,
        softmax_scale: float | None = None,
        k_scale: float | Tensor = 1.0,
        v_scale: float | Tensor = 1.0,
        row_requests: Tensor | None = None,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        workspace: Tensor | None = None,
    ) -> Tensor:
        """Attend from each row of ``q`` to the first ``seq_lens[row]`` tokens of its request.

        Args:
            q: FP16 ``[rows, Hq, D]``, last stride 1; query head ``h`` uses KV head ``h // G``.
            key_cache, value_cache: ``[pages, page, Hkv, D]`` in the plan's format; ``page`` a multiple of 16.
            block_table: int32 ``[requests, max_blocks]``; entries past the live length are never read.
            seq_lens: int32 ``[rows]``, read when the kernel runs. A row of length 0 gives zeros. A length outside
                ``0 .. max_blocks * page``, or a live entry that is no page, stops the kernel with a trap.
            softmax_scale: multiplies the scores; ``1 / sqrt(D)`` by default.
            k_scale, v_scale: real value = stored value x scale; positive and finite, or a one-element float32 tensor
                on the device, read when the kernel runs.
            row_requests: int32 ``[rows]``, the block-table row of each row: several rows of one request, each with a
                length of its own, are the rows of a chunked prefill. Left out: row ``i`` is request ``i``.
            out: FP16 ``[rows, Hq, D]``, allocated if left out.
            lse: FP32 ``[rows, Hq]``, filled with the natural logarithm of the softmax denominators, -inf for rows
                without keys; see :func:`sm70_kernels.attention.states.merge_states`.
            workspace: uint8 of ``workspace_bytes`` at least, 16-byte aligned, of any contents; allocated if left out.

        Returns:
            ``out``, FP16 ``[rows, Hq, D]``.

        Raises:
            RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written.
        """
        op = "decode"
        require_tensors(op, q=q, key_cache=key_cache, value_cache=value_cache)
        require_tensors(op, block_table=block_table, seq_lens=seq_lens)
        self._require_planned(op, q, key_cache, block_table, (self.rows, self.query_heads, self.head_dim))
        k_host, k_device = split_scale(op, "k_scale", k_scale)
        v_host, v_device = split_scale(op, "v_scale", v_scale)
        out, workspace = self._buffers(q, out, workspace)
        torch.ops.sm70_kernels.decode(
            q,
            key_cache,
            value_cache,
            block_table,
            seq_lens,
            out,
            workspace,
            self.kv_format,
            self.variant,
            self._scale(softmax_scale),
            k_host,
            v_host,
            k_device,
            v_device,
            row_requests,
            lse,
        )
        return out


def plan(
    *,
    rows: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    max_tokens: int,
    kv_format: str,
    variant: Literal["xqa", "scalar"] = "xqa",
    device: torch.device | str = "cuda",
) -> DecodePlan:
    """Plan a decode of these shapes; refuses what is not built.

    Args:
        rows: query rows of a call, up to 2^20.
        query_heads, kv_heads: ``Hq`` and ``Hkv``; ``G = Hq / Hkv`` from 1 to 16.
        head_dim: 64, 128 or 256.
        max_tokens: longest row that a block table may hold: ``max_blocks * page``.
        kv_format: ``e4m3`` (also ``fp8``, ``fp8_e4m3``), ``e5m2`` (also ``fp8_e5m2``) or ``fp16``.
        variant: ``xqa`` (tensor cores) or ``scalar``.
        device: a CUDA device, or the CPU for the emulated V100.

    Raises:
        ValueError: a shape that is not built, with the list of what is; an argument out of range.
    """
    op = "decode.plan"
    if variant not in VARIANTS:
        raise refusal(op, "variant", repr(variant), f"one of {list(VARIANTS)}", "Name the kernels to run")
    name = format_name(op, kv_format)
    sizes = (Range("rows", rows, 0, MAX_ROWS), Range("max_tokens", max_tokens, 1, MAX_TOKENS))
    require_built(op, sizes, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)
    where = planned_device(op, device)
    sms = _multiprocessors(where.type, where.index)
    needed = _workspace_bytes(rows, query_heads, kv_heads, head_dim, max_tokens, sms, int(variant == "xqa"))
    return DecodePlan(
        rows=rows,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_tokens=max_tokens,
        kv_format=name,
        variant=variant,
        device=where,
        multiprocessors=sms,
        workspace_bytes=needed,
    )


def decode(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    *,
    softmax_scale: float | None = None,
    k_scale: float | Tensor = 1.0,
    v_scale: float | Tensor = 1.0,
    kv_format: str | None = None,
    variant: Literal["xqa", "scalar"] = "xqa",
    row_requests: Tensor | None = None,
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Plan and run in one call, with a workspace of its own. Arguments as in :func:`plan` and :meth:`DecodePlan.run`.

    ``kv_format`` may be left out unless the cache is uint8. Under ``torch.compile`` this is compiled anew for every
    shape; a plan is not.
    """
    (rows, query_heads, head_dim), kv_heads, max_tokens = paged_sizes(
        "decode", q, key_cache, value_cache, block_table, q_dims="[rows, Hq, D]", table_dims="[requests, max_blocks]"
    )
    planned = plan(
        rows=rows,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_tokens=max_tokens,
        kv_format=format_name("decode", kv_format, key_cache),
        variant=variant,
        device=q.device,
    )
    return planned.run(
        q,
        key_cache,
        value_cache,
        block_table,
        seq_lens,
        softmax_scale=softmax_scale,
        k_scale=k_scale,
        v_scale=v_scale,
        row_requests=row_requests,
        out=out,
        lse=lse,
    )


torch.library.register_fake("sm70_kernels::decode", fake("decode"))
