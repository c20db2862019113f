"""Paged verify: the draft rows of speculative decoding over an E4M3 or E5M2 KV cache, exact to FP16's rounding.

    plan = sm70_kernels.verify.plan(
        requests=4, q_rows=8, query_heads=6, kv_heads=1, head_dim=256, max_tokens=262144, kv_format="e4m3",
        device="cuda"
    )
    workspace = plan.new_workspace()
    out = plan.run(q, key_cache, value_cache, block_table, seq_lens, workspace=workspace)

The rows of a request share one pass over its K and V, each with a prefix of its own. Contract and numerics:
``docs/operators.md``. The operator itself is ``torch.ops.sm70_kernels.verify``.
"""

from __future__ import annotations

import functools
import math
import operator
from dataclasses import dataclass

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops._arguments import fake, format_name, require_planned, require_tensors, split_scale
from sm70_kernels.ops._planning import called_while_tracing

#: Revision of the numerical contract and workspace layout that this module is written for; the DSO must have the same.
CAPABILITY_REVISION = 1

library = _native.load("verify", CAPABILITY_REVISION)

FORMATS = ("e4m3", "e5m2")
HEAD_DIMS = (64, 128, 256)
MAX_GROUP = 16
MAX_QUERY_ROWS = 16
MAX_ROWS = 2**20
#: Keys of a leaf, of which chunks are made.
LEAF_TOKENS = 128


@functools.cache
def _ask_operator(function: str, *arguments: int) -> int:
    return library.call_int64(function, *arguments)


@called_while_tracing
def _workspace_bytes(
    requests: int, q_rows: int, query_heads: int, kv_heads: int, head_dim: int, max_tokens: int
) -> int:
    """The operator's own answer."""
    shape = (requests, q_rows, query_heads, kv_heads, head_dim, max_tokens)
    return _ask_operator("sm70_kernels_verify_workspace_bytes", *shape)


def most_chunks(head_dim: int) -> int:
    """The most chunks that a row is cut into: one for each SM of a V100 at head dimension 256."""
    return 80 * 256 // head_dim


def _refuse(name: str, got: object, want: str, remedy: str) -> ValueError:
    return ValueError(f"verify.plan: argument {name!r}: got {got!r}, want {want}. {remedy}")


@dataclass(frozen=True)
class VerifyPlan:
    """What is fixed by shapes, before any tensor exists. Made by :func:`plan`; serves any number of runs."""

    requests: int
    q_rows: int
    query_heads: int
    kv_heads: int
    head_dim: int
    max_tokens: int
    """Longest row that a block table may hold, in tokens."""
    kv_format: str
    device: torch.device
    workspace_bytes: int
    """A function of shapes only: not of lengths, not of the device."""

    @property
    def route(self) -> str:
        """Name of the kernel that runs, as profilers and ``library.launch_counts()`` show it."""
        shape = (self.q_rows, self.query_heads, self.kv_heads, self.head_dim)
        return library.call_text("sm70_kernels_verify_route", self.kv_format, *shape)

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
            workspace: uint8, ``workspace_bytes`` at least, 16-byte aligned; allocated if left out. Its contents do
                not matter.

        Returns:
            ``out``.

        Raises:
            RuntimeError, TypeError, ValueError: an argument is refused; nothing was launched or written.
        """
        op = "verify"
        require_tensors(op, q=q, key_cache=key_cache, value_cache=value_cache)
        require_tensors(op, block_table=block_table, seq_lens=seq_lens)
        require_planned(
            "verify", q, key_cache, block_table, q_shape=(self.requests, self.q_rows, self.query_heads, self.head_dim),
            kv_heads=self.kv_heads, max_tokens=self.max_tokens, device=self.device,
        )  # fmt: skip
        k_host, k_device = split_scale(op, "k_scale", k_scale)
        v_host, v_device = split_scale(op, "v_scale", v_scale)
        if out is None:
            out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
        if workspace is None:
            workspace = self.new_workspace()
        scale = 1.0 / math.sqrt(self.head_dim) if softmax_scale is None else softmax_scale
        torch.ops.sm70_kernels.verify(
            q, key_cache, value_cache, block_table, seq_lens, out, workspace, self.kv_format, scale,
            k_host, v_host, k_device, v_device, lse,
        )  # fmt: skip
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
        kv_format: ``e4m3`` (alias ``fp8``) or ``e5m2`` (alias ``fp8_e5m2``).
        device: a CUDA device, or the CPU for the emulated V100.

    Raises:
        ValueError: a shape that is not built, with the list of what is; an argument out of range.
    """
    name = format_name("verify.plan", kv_format)
    if name not in FORMATS:
        raise _refuse(
            "kv_format", name, f"one of {list(FORMATS)}",
            "No kernel is built for FP16 caches: decode serves them, with row_requests for rows of one request",
        )  # fmt: skip
    if head_dim not in HEAD_DIMS:
        raise _refuse("head_dim", head_dim, f"one of {list(HEAD_DIMS)}", "No kernel is built for others")
    for argument, value, least, most in (
        ("requests", requests, 0, MAX_ROWS),
        ("q_rows", q_rows, 1, MAX_QUERY_ROWS),
        ("query_heads", query_heads, 1, 2**16),
        ("kv_heads", kv_heads, 1, 2**16),
        ("max_tokens", max_tokens, 1, 2**31 - 1),
    ):
        if not isinstance(value, int) or not least <= value <= most:
            raise _refuse(argument, value, f"a whole number from {least} to {most}", "Pass the size of the call")
    if requests * q_rows > MAX_ROWS:
        raise _refuse("requests", requests, f"at most {MAX_ROWS} rows with q_rows={q_rows}", "Verify in several calls")
    if query_heads % kv_heads != 0 or query_heads // kv_heads > MAX_GROUP:
        raise _refuse(
            "query_heads", query_heads, f"1 to {MAX_GROUP} times kv_heads={kv_heads}", "No kernel is built for others"
        )
    where = torch.device(device)
    if where.type not in ("cuda", "cpu"):
        raise _refuse("device", str(where), "a CUDA device, or cpu for the emulated V100", "Plan for a V100")
    shape = (requests, q_rows, query_heads, kv_heads, head_dim, max_tokens)
    return VerifyPlan(*shape, name, where, _workspace_bytes(*shape))


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
    require_tensors("verify", q=q, key_cache=key_cache, value_cache=value_cache, block_table=block_table)
    for name, tensor, dims in (
        ("q", q, "[B, q_rows, Hq, D]"),
        ("key_cache", key_cache, "[pages, page, Hkv, D]"),
        ("block_table", block_table, "[B, max_blocks]"),
    ):
        if tensor.dim() != dims.count(",") + 1:
            raise ValueError(
                f"verify: argument {name!r}: got shape {list(tensor.shape)}, want {dims}. Reshape or unsqueeze it"
            )
    # Numbers, where torch.compile has symbols: the workspace's size is asked for while tracing.
    requests, q_rows, query_heads, head_dim = map(operator.index, q.shape)
    max_tokens = operator.index(block_table.shape[1] * key_cache.shape[1])
    planned = plan(
        requests=requests,
        q_rows=q_rows,
        query_heads=query_heads,
        kv_heads=operator.index(key_cache.shape[2]),
        head_dim=head_dim,
        max_tokens=max(1, max_tokens),
        kv_format=format_name("verify", kv_format, key_cache),
        device=q.device,
    )
    return planned.run(
        q, key_cache, value_cache, block_table, seq_lens, softmax_scale=softmax_scale, k_scale=k_scale,
        v_scale=v_scale, out=out, lse=lse,
    )  # fmt: skip


torch.library.register_fake("sm70_kernels::verify", fake("verify"))
