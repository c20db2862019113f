"""Paged decode: one new token a row over a paged KV cache in E4M3, E5M2 or FP16.

    plan = sm70_kernels.decode.plan(
        rows=32, query_heads=6, kv_heads=1, head_dim=256, max_tokens=262144, kv_format="e4m3", device="cuda"
    )
    workspace = plan.new_workspace()
    out = plan.run(q, key_cache, value_cache, block_table, seq_lens, workspace=workspace)

The variant ``xqa`` runs on tensor cores, the query heads of a KV head sharing one pass over K and V; ``scalar`` is
plain FP32, the yardstick and what serves layouts that ``xqa`` can't. None replaces the other
silently. Contract and numerics: ``docs/operators.md``. The operator itself is ``torch.ops.sm70_kernels.decode``.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops._arguments import fake, format_name, require_planned, require_tensors, split_scale
from sm70_kernels.ops._planning import called_while_tracing, multiprocessors

#: Revision of the numerical contract and workspace layout that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("decode", CAPABILITY_REVISION)

HEAD_DIMS = (64, 128, 256)
MAX_GROUP = 16
VARIANTS = ("xqa", "scalar")
#: Keys of a leaf: what a row is cut into, from its start.
LEAF_TOKENS = 128


@functools.cache
def _ask_operator(*shape_and_multiprocessors: int) -> int:
    return library.call_int64("sm70_kernels_decode_workspace_bytes", *shape_and_multiprocessors)


@called_while_tracing
def _workspace_bytes(
    rows: int, query_heads: int, kv_heads: int, head_dim: int, max_tokens: int, multiprocessors: int, variant: str
) -> int:
    """The operator's own answer."""
    return _ask_operator(rows, query_heads, kv_heads, head_dim, max_tokens, multiprocessors, variant == "xqa")


def _refuse(name: str, got: object, want: str, remedy: str) -> ValueError:
    return ValueError(f"decode.plan: argument {name!r}: got {got!r}, want {want}. {remedy}")


@dataclass(frozen=True)
class DecodePlan:
    """What is fixed by shapes, before any tensor exists. Made by :func:`plan`; serves any number of runs."""

    rows: int
    query_heads: int
    kv_heads: int
    head_dim: int
    max_tokens: int
    """Longest row that a block table may hold, in tokens."""
    kv_format: str
    variant: str
    device: torch.device
    multiprocessors: int
    workspace_bytes: int
    """A function of shapes and SM count only: not of lengths."""

    @property
    def route(self) -> str:
        """Name of the kernel that runs, as profilers and ``library.launch_counts()`` show it."""
        shape = (self.query_heads, self.kv_heads, self.head_dim, int(self.variant == "xqa"))
        return library.call_text("sm70_kernels_decode_route", self.kv_format, *shape)

    def new_workspace(self) -> Tensor:
        """An uninitialised workspace. It may be shared by runs that do not overlap in time."""
        return torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self.device)

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
            workspace: uint8, ``workspace_bytes`` at least, 16-byte aligned; allocated if left out. Its contents do
                not matter.

        Returns:
            ``out``.

        Raises:
            RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written.
        """
        op = "decode"
        require_tensors(op, q=q, key_cache=key_cache, value_cache=value_cache)
        require_tensors(op, block_table=block_table, seq_lens=seq_lens)
        require_planned(
            "decode", q, key_cache, block_table, q_shape=(self.rows, self.query_heads, self.head_dim),
            kv_heads=self.kv_heads, max_tokens=self.max_tokens, device=self.device,
        )  # fmt: skip
        k_host, k_device = split_scale(op, "k_scale", k_scale)
        v_host, v_device = split_scale(op, "v_scale", v_scale)
        if out is None:
            out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
        if workspace is None:
            workspace = self.new_workspace()
        scale = 1.0 / math.sqrt(self.head_dim) if softmax_scale is None else softmax_scale
        torch.ops.sm70_kernels.decode(
            q, key_cache, value_cache, block_table, seq_lens, out, workspace, self.kv_format, self.variant, scale,
            k_host, v_host, k_device, v_device, row_requests, lse,
        )  # fmt: skip
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
        rows: query rows of a call.
        query_heads, kv_heads: ``Hq`` and ``Hkv``; ``G = Hq / Hkv`` from 1 to 16.
        head_dim: 64, 128 or 256.
        max_tokens: longest row that a block table may hold: ``max_blocks * page``.
        kv_format: ``e4m3`` (alias ``fp8``), ``e5m2`` (alias ``fp8_e5m2``) or ``fp16``.
        variant: ``xqa`` (tensor cores) or ``scalar``.
        device: a CUDA device, or the CPU for the emulated V100.

    Raises:
        ValueError: a shape that is not built, with the list of what is; an argument out of range.
    """
    if variant not in VARIANTS:
        raise _refuse("variant", variant, f"one of {list(VARIANTS)}", "Name the kernels to run")
    name = format_name("decode.plan", kv_format)
    if head_dim not in HEAD_DIMS:
        raise _refuse("head_dim", head_dim, f"one of {list(HEAD_DIMS)}", "No kernel is built for others")
    for argument, value, most in (
        ("rows", rows, 2**20),
        ("query_heads", query_heads, 2**16),
        ("kv_heads", kv_heads, 2**16),
        ("max_tokens", max_tokens, 2**31 - 1),
    ):
        least = 0 if argument == "rows" else 1
        if not isinstance(value, int) or not least <= value <= most:
            raise _refuse(argument, value, f"a whole number from {least} to {most}", "Pass the size of the call")
    if query_heads % kv_heads != 0 or query_heads // kv_heads > MAX_GROUP:
        raise _refuse(
            "query_heads", query_heads, f"1 to {MAX_GROUP} times kv_heads={kv_heads}", "No kernel is built for others"
        )
    where = torch.device(device)
    if where.type not in ("cuda", "cpu"):
        raise _refuse("device", str(where), "a CUDA device, or cpu for the emulated V100", "Plan for a V100")
    sms = multiprocessors(library.operator, where.type, where.index)
    shape = (rows, query_heads, kv_heads, head_dim, max_tokens)
    return DecodePlan(*shape, name, variant, where, sms, _workspace_bytes(*shape, sms, variant))


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
    require_tensors("decode", q=q, key_cache=key_cache, value_cache=value_cache, block_table=block_table)
    for name, tensor, dims in (
        ("q", q, "[rows, Hq, D]"),
        ("key_cache", key_cache, "[pages, page, Hkv, D]"),
        ("block_table", block_table, "[requests, max_blocks]"),
    ):
        if tensor.dim() != dims.count(",") + 1:
            raise ValueError(
                f"decode: argument {name!r}: got shape {list(tensor.shape)}, want {dims}. Reshape or unsqueeze it"
            )
    # Numbers, where torch.compile has symbols: the workspace's size is asked for while tracing.
    rows, query_heads, head_dim = map(operator.index, q.shape)
    max_tokens = operator.index(block_table.shape[1] * key_cache.shape[1])
    planned = plan(
        rows=rows,
        query_heads=query_heads,
        kv_heads=operator.index(key_cache.shape[2]),
        head_dim=head_dim,
        max_tokens=max(1, max_tokens),
        kv_format=format_name("decode", kv_format, key_cache),
        variant=variant,
        device=q.device,
    )
    return planned.run(
        q, key_cache, value_cache, block_table, seq_lens, softmax_scale=softmax_scale, k_scale=k_scale,
        v_scale=v_scale, row_requests=row_requests, out=out, lse=lse,
    )  # fmt: skip


torch.library.register_fake("sm70_kernels::decode", fake("decode"))
