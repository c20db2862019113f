"""Paged verify: the draft rows of speculative decoding over an E4M3 or E5M2 KV cache, exact to FP16's rounding.

    plan = sm70_kernels.ops.verify.plan(
        requests=4, q_rows=8, query_heads=6, kv_heads=1, head_dim=256, max_tokens=262144, kv_format="e4m3",
        device="cuda"
    )
    workspace = plan.new_workspace()
    out = plan.run(q, key_cache, value_cache, block_table, seq_lens, workspace=workspace)

The rows of a request share one pass over its K and V, each with a prefix of its own. Contract and numerics:
``docs/operators.md``. The operator itself is ``torch.ops.sm70_kernels.verify``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops._arguments import fake, format_name, refusal, require_tensors, split_scale
from sm70_kernels.ops._planning import MAX_TOKENS, PagedPlan, Range, asked, paged_sizes, planned_device, require_built

#: Revision of the numerical contract and workspace layout that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("verify", CAPABILITY_REVISION)

FORMATS = ("e4m3", "e5m2")
MAX_QUERY_ROWS = 16
MAX_ROWS = 2**20
#: Keys of a leaf, of which chunks are made.
LEAF_TOKENS = 128

_workspace_bytes = asked(library, "sm70_kernels_verify_workspace_bytes")


def most_chunks(head_dim: int) -> int:
    """The most chunks that a row is cut into: one for each SM of a V100 at head dimension 256."""
    return 80 * 256 // head_dim


@dataclass(frozen=True, kw_only=True)
class VerifyPlan(PagedPlan):
    """A verify of these shapes. Made by :func:`plan`. Its workspace does not depend on the device either."""

    requests: int
    q_rows: int

    @property
    def route(self) -> str:
        """Name of the kernel that runs, as profilers and ``library.launch_counts()`` show it."""
        shape = (self.q_rows, self.query_heads, self.kv_heads, self.head_dim)
        return library.call_text("sm70_kernels_verify_route", self.kv_format, *shape)

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
        out: Tensor | None = None,
        lse: Tensor | None = None,
        workspace: Tensor | None = None,
    ) -> Tensor:
        """Attend from each query row to the first ``seq_lens[request, row]`` tokens of its request.

        Args:
            q: FP16 ``[B, q_rows, Hq, D]``, last stride 1, any alignment; query head ``h`` uses KV head ``h // G``.
            key_cache, value_cache: ``[pages, page, Hkv, D]`` in the plan's format; ``page`` a multiple of 16; tokens,
                heads and pages 8-byte aligned.
            block_table: int32 ``[B, max_blocks]``; entries past the longest live row of a request are never read.
            seq_lens: int32 ``[B, q_rows]``, read when the kernel runs. A row of length 0, padding, gives zeros. A
                length outside ``0 .. max_blocks * page``, or a live entry that is no page, stops the kernel with a
                trap.
            softmax_scale: multiplies the scores; ``1 / sqrt(D)`` by default.
            k_scale, v_scale: real value = stored value x scale; positive and finite, or a one-element float32 tensor
                on the device, read when the kernel runs.
            out: FP16 ``[B, q_rows, Hq, D]``, allocated if left out.
            lse: FP32 ``[B, q_rows, Hq]``, filled with the natural logarithm of the softmax denominators, -inf for rows
                without keys; see :func:`sm70_kernels.attention.states.merge_states`.
            workspace: uint8 of ``workspace_bytes`` at least, 16-byte aligned, of any contents; allocated if left out.

        Returns:
            ``out``, FP16 ``[B, q_rows, Hq, D]``.

        Raises:
            RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written.
        """
        op = "verify"
        require_tensors(op, q=q, key_cache=key_cache, value_cache=value_cache)
        require_tensors(op, block_table=block_table, seq_lens=seq_lens)
        q_shape = (self.requests, self.q_rows, self.query_heads, self.head_dim)
        self._require_planned(op, q, key_cache, block_table, q_shape)
        k_host, k_device = split_scale(op, "k_scale", k_scale)
        v_host, v_device = split_scale(op, "v_scale", v_scale)
        out, workspace = self._buffers(q, out, workspace)
        torch.ops.sm70_kernels.verify(
            q,
            key_cache,
            value_cache,
            block_table,
            seq_lens,
            out,
            workspace,
            self.kv_format,
            self._scale(softmax_scale),
            k_host,
            v_host,
            k_device,
            v_device,
            lse,
        )
        return out


def plan(
    *,
    requests: int,
    q_rows: int,
    query_heads: int,
    kv_heads: int,
    head_dim: int,
    max_tokens: int,
    kv_format: str,
    device: torch.device | str = "cuda",
) -> VerifyPlan:
    """Plan a verify of these shapes; refuses what is not built.

    Args:
        requests: ``B``.
        q_rows: query rows of a request, 1 to 16; rows that a request does not have get length 0.
        query_heads, kv_heads: ``Hq`` and ``Hkv``; ``G = Hq / Hkv`` from 1 to 16.
        head_dim: 64, 128 or 256.
        max_tokens: longest row that a block table may hold: ``max_blocks * page``.
        kv_format: ``e4m3`` (also ``fp8``, ``fp8_e4m3``) or ``e5m2`` (also ``fp8_e5m2``).
        device: a CUDA device, or the CPU for the emulated V100.

    Raises:
        ValueError: a shape that is not built, with the list of what is; an argument out of range.
    """
    op = "verify.plan"
    name = format_name(op, kv_format)
    if name not in FORMATS:
        remedy = "No kernel is built for FP16 caches: decode serves them, with row_requests for rows of one request"
        raise refusal(op, "kv_format", repr(name), f"one of {list(FORMATS)}", remedy)
    sizes = (
        Range("requests", requests, 0, MAX_ROWS),
        Range("q_rows", q_rows, 1, MAX_QUERY_ROWS),
        Range("max_tokens", max_tokens, 1, MAX_TOKENS),
    )
    require_built(op, sizes, query_heads=query_heads, kv_heads=kv_heads, head_dim=head_dim)
    if requests * q_rows > MAX_ROWS:
        raise refusal(
            op, "requests", requests, f"at most {MAX_ROWS} rows with q_rows={q_rows}", "Verify in several calls"
        )
    needed = _workspace_bytes(requests, q_rows, query_heads, kv_heads, head_dim, max_tokens)
    return VerifyPlan(
        requests=requests,
        q_rows=q_rows,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_tokens=max_tokens,
        kv_format=name,
        device=planned_device(op, device),
        workspace_bytes=needed,
    )


def verify(
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
    out: Tensor | None = None,
    lse: Tensor | None = None,
) -> Tensor:
    """Plan and run in one call, with a workspace of its own. Arguments as in :func:`plan` and :meth:`VerifyPlan.run`.

    ``kv_format`` may be left out unless the cache is uint8. Under ``torch.compile`` this is compiled anew for every
    shape; a plan is not.
    """
    (requests, q_rows, query_heads, head_dim), kv_heads, max_tokens = paged_sizes(
        "verify", q, key_cache, value_cache, block_table, q_dims="[B, q_rows, Hq, D]", table_dims="[B, max_blocks]"
    )
    planned = plan(
        requests=requests,
        q_rows=q_rows,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        max_tokens=max_tokens,
        kv_format=format_name("verify", kv_format, key_cache),
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
        out=out,
        lse=lse,
    )


torch.library.register_fake("sm70_kernels::verify", fake("verify"))
