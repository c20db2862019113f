"""What the plans of the attention operators share: refusals of shapes, the device, buffers, numbers of a DSO."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec

import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops._arguments import refusal, require_dimensions, require_tensors

P = ParamSpec("P")

HEAD_DIMS = (64, 128, 256)
#: Query heads per KV head.
MAX_GROUP = 16
MAX_HEADS = 2**16
MAX_TOKENS = 2**31 - 1


def called_while_tracing(function: Callable[P, int]) -> Callable[P, int]:
    """torch.compile takes the result for a constant: it can't trace ctypes.

    This is what torch.compiler.assume_constant_result does, but that imports torch._dynamo, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def multiprocessors_of(library: _native.Library) -> Callable[[str, int | None], int]:
    """SMs of a CUDA device, or of the emulated V100 that the library runs on; by device type and index."""

    # The library is not an argument: torch.compile could not make a constant of it.
    @called_while_tracing
    def multiprocessors(device_type: str, index: int | None) -> int:
        if device_type == "cpu":
            return library.call_int64("sm70_kernels_emulated_multiprocessors")
        return int(torch.cuda.get_device_properties(index).multi_processor_count)

    return multiprocessors


def asked(library: _native.Library, function: str) -> Callable[..., int]:
    """A function of a DSO that computes a number from integers alone; every answer is remembered."""
    remembered = functools.cache(functools.partial(library.call_int64, function))

    @called_while_tracing
    def ask(*sizes: int) -> int:
        return remembered(*sizes)

    return ask


def planned_device(op: str, device: torch.device | str) -> torch.device:
    """The device of a plan.

    Raises:
        ValueError: it is neither a CUDA device nor the CPU.
    """
    where = torch.device(device)
    if where.type not in ("cuda", "cpu"):
        raise refusal(op, "device", repr(str(where)), "a CUDA device, or cpu for the emulated V100", "Plan for a V100")
    return where


@dataclass(frozen=True)
class Range:
    """A size of a call, and what it may be."""

    name: str
    size: object
    least: int
    most: int
    remedy: str = "Pass the size of the call"


def require_built(op: str, sizes: Sequence[Range], *, query_heads: int, kv_heads: int, head_dim: int) -> None:
    """The kernels are built for this head dimension and group, and the sizes are in their ranges.

    Raises:
        ValueError: they are not; the message lists what is built.
    """
    not_built = "No kernel is built for others"
    if head_dim not in HEAD_DIMS:
        raise refusal(op, "head_dim", repr(head_dim), f"one of {list(HEAD_DIMS)}", not_built)
    heads = (Range("query_heads", query_heads, 1, MAX_HEADS), Range("kv_heads", kv_heads, 1, MAX_HEADS))
    for each in (*sizes, *heads):
        if not isinstance(each.size, int) or not each.least <= each.size <= each.most:
            want = f"a whole number from {each.least} to {each.most}"
            raise refusal(op, each.name, repr(each.size), want, each.remedy)
    if query_heads % kv_heads != 0 or query_heads // kv_heads > MAX_GROUP:
        raise refusal(op, "query_heads", query_heads, f"1 to {MAX_GROUP} times kv_heads={kv_heads}", not_built)


@dataclass(frozen=True, kw_only=True)
class AttentionPlan:
    """What is fixed by shapes, before any tensor exists; serves any number of runs."""

    query_heads: int
    kv_heads: int
    head_dim: int
    device: torch.device
    workspace_bytes: int
    """A function of shapes and SM count only: not of lengths."""

    def new_workspace(self) -> Tensor:
        """An uninitialised workspace. It may be shared by runs that do not overlap in time."""
        return torch.empty(self.workspace_bytes, dtype=torch.uint8, device=self.device)

    def _buffers(self, q: Tensor, out: Tensor | None, workspace: Tensor | None) -> tuple[Tensor, Tensor]:
        """Output and workspace, allocated where they are left out."""
        if out is None:
            out = torch.empty(q.shape, dtype=torch.float16, device=q.device)
        return out, self.new_workspace() if workspace is None else workspace

    def _scale(self, softmax_scale: float | None) -> float:
        """Of the scores: ``1 / sqrt(D)`` by default."""
        return 1.0 / math.sqrt(self.head_dim) if softmax_scale is None else softmax_scale

    def _require_device(self, op: str, q: Tensor) -> None:
        """The tensors are on the kind of device that the plan is for."""
        if q.device.type != self.device.type:
            want, remedy = f"one on {self.device}, as planned", "Make a plan for this device"
            raise refusal(op, "q", f"a tensor on {q.device}", want, remedy)


@dataclass(frozen=True, kw_only=True)
class PagedPlan(AttentionPlan):
    """A plan of attention over a paged KV cache."""

    max_tokens: int
    """Longest row that a block table may hold, in tokens."""
    kv_format: str

    def _require_planned(
        self, op: str, q: Tensor, key_cache: Tensor, block_table: Tensor, q_shape: tuple[int, ...]
    ) -> None:
        """The tensors have the shapes that the plan is for; the operator checks everything else.

        Raises:
            ValueError: one has another shape, or is on another device.
        """
        if tuple(q.shape) != q_shape:
            want = f"{list(q_shape)}, as planned"
            raise refusal(op, "q", f"shape {list(q.shape)}", want, "Make a plan for this shape")
        if key_cache.dim() != 4 or key_cache.shape[2] != self.kv_heads:
            want = f"[pages, page, {self.kv_heads}, {self.head_dim}], as planned"
            raise refusal(op, "key_cache", f"shape {list(key_cache.shape)}", want, "Make a plan for this cache")
        page = key_cache.shape[1]
        if block_table.dim() != 2 or block_table.shape[1] * page > self.max_tokens:
            got = f"shape {list(block_table.shape)} with pages of {page} tokens"
            want = f"[requests, max_blocks] for at most {self.max_tokens} tokens, as planned"
            raise refusal(op, "block_table", got, want, "Make a plan for more tokens")
        self._require_device(op, q)


def paged_sizes(
    op: str, q: Tensor, key_cache: Tensor, value_cache: Tensor, block_table: Tensor, *, q_dims: str, table_dims: str
) -> tuple[tuple[int, ...], int, int]:
    """Shape of Q, KV heads, and the longest row that the block table can hold: what a call says of its plan.

    Plain integers, where torch.compile has symbols: the workspace's size is computed while tracing.

    Raises:
        TypeError, ValueError: an argument is no tensor, or has another number of dimensions.
    """
    require_tensors(op, q=q, key_cache=key_cache, value_cache=value_cache, block_table=block_table)
    require_dimensions(
        op,
        ("q", q, q_dims),
        ("key_cache", key_cache, "[pages, page, Hkv, D]"),
        ("block_table", block_table, table_dims),
    )
    max_tokens = operator.index(block_table.shape[1] * key_cache.shape[1])
    return tuple(map(operator.index, q.shape)), operator.index(key_cache.shape[2]), max(1, max_tokens)
