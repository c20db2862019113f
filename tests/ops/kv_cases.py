"""Builders of paged caches for tests: layouts, page orders, poison."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from sm70_kernels.ops import kv_cache
from tests.ops import marks

#: Page sizes that hybrid models force, and the smallest.
PAGES = [16, 48, 784, 800, 848, 896, 1568, 1616, 1648, 1664, 1728, 3296, 3456]
#: What an output holds where nothing may be written.
SENTINEL = 12345.0
FORMATS = ("e4m3", "e5m2", "fp16")
#: Bytes of each format that are NaN: what tails and unused pages are poisoned with.
POISON = {"e4m3": 0x7F, "e5m2": 0x7E, "fp16": 0x7E00}
#: (Hkv, D): the shapes that matter, and two odd ones, which the memory checks take.
HEADS = [
    (1, 256),
    (2, 128),
    (4, 64),
    pytest.param(3, 40, marks=pytest.mark.memcheck),
    pytest.param(2, 20, marks=pytest.mark.memcheck),
]


def storage_dtype(kv_format: str) -> torch.dtype:
    """dtype of an untyped cache."""
    return torch.float16 if kv_format == "fp16" else torch.uint8


def poison(tensor: Tensor, kv_format: str) -> None:
    """Fill with NaN, which must not matter to any result."""
    tensor.view(torch.int16 if kv_format == "fp16" else torch.uint8).fill_(POISON[kv_format])
    marks.tainted(tensor)


def empty_pool(shape: tuple[int, int, int, int], device: torch.device) -> Tensor:
    """An FP8 pool too large to touch: poisoned on a GPU, on the CPU left to the system, which backs pages as needed."""
    pool = torch.empty(shape, dtype=torch.uint8, device=device)
    if device.type == "cuda":
        poison(pool, "e4m3")
    return pool


LAYOUTS = ("contiguous", "head_major", "unbind", "token_stride_264", "padded", "offset_1", "offset_8")


def make_cache(
    layout: str, shape: tuple[int, int, int, int], kv_format: str, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Key and value cache ``[pages, page, Hkv, D]`` of a layout, poisoned, the memory between elements included."""
    pages, page, heads, dim = shape
    dtype = storage_dtype(kv_format)

    def flat(elements: int) -> Tensor:
        tensor = torch.empty(elements, dtype=dtype, device=device)
        poison(tensor, kv_format)
        return tensor

    if layout == "unbind":  # both caches are views of one tensor
        both = flat(pages * 2 * page * heads * dim).view(pages, 2, page, heads, dim)
        key, value = both.unbind(1)
        return key, value

    def one() -> Tensor:
        if layout == "contiguous":
            return flat(pages * page * heads * dim).view(shape)
        if layout == "head_major":
            return flat(pages * page * heads * dim).view(pages, heads, page, dim).permute(0, 2, 1, 3)
        if layout in ("token_stride_264", "padded"):
            # A head of D elements in a stride that is 8 more: 8-byte aligned FP8, 16-byte aligned FP16.
            head = 264 if layout == "token_stride_264" else dim + 8
            return flat(pages * page * heads * head).view(pages, page, heads, head)[..., :dim]
        offset = int(layout.removeprefix("offset_"))
        return flat(pages * page * heads * dim + offset)[offset:].view(shape)

    return one(), one()


@dataclass
class Rows:
    """Pages handed to rows in a scrambled order, with garbage in the unused entries of the table."""

    block_table: Tensor
    seq_lens: Tensor

    @property
    def lengths(self) -> list[int]:
        return [int(length) for length in self.seq_lens.tolist()]


def make_rows(
    lengths: list[int],
    page: int,
    pages: int,
    device: torch.device,
    *,
    max_tokens: int,
    seed: int = 0,
    order: str = "random",
) -> Rows:
    """A block table for rows of these lengths. ``order``: random, ascending or descending pages."""
    generator = torch.Generator().manual_seed(seed)
    available = torch.randperm(pages, generator=generator) if order == "random" else torch.arange(pages)
    if order == "descending":
        available = available.flip(0)
    max_blocks = -(-max_tokens // page)
    garbage = torch.tensor([-1, 2**31 - 1, -(2**31), pages, 123456789])
    table = garbage[torch.randint(0, len(garbage), (len(lengths), max_blocks), generator=generator)]
    used = 0
    for row, length in enumerate(lengths):
        blocks = -(-length // page)
        table[row, :blocks] = available[used : used + blocks]
        used += blocks
    assert used <= pages
    table = table.to(torch.int32).to(device)
    for row, length in enumerate(lengths):
        marks.tainted(table[row, -(-length // page) :])
    return Rows(table, torch.tensor(lengths, dtype=torch.int32, device=device))


def random_bytes(tensor: Tensor, kv_format: str, seed: int) -> Tensor:
    """Random stored values of every kind, NaN included, in the shape of ``tensor``."""
    generator = torch.Generator(device=tensor.device).manual_seed(seed)
    if kv_format == "fp16":
        bits = torch.randint(-(2**15), 2**15, tensor.shape, generator=generator, device=tensor.device)
        return bits.to(torch.int16).view(torch.float16)
    return torch.randint(0, 256, tensor.shape, generator=generator, device=tensor.device).to(torch.uint8)


def fill_live(cache: Tensor, rows: Rows, kv_format: str, seed: int) -> None:
    """Random stored values in the live tokens of the rows; everything else keeps its poison."""
    page = cache.shape[1]
    for row, length in enumerate(rows.lengths):
        for block in range(-(-length // page)):
            live = min(page, length - block * page)
            target = cache[int(rows.block_table[row, block]), :live]
            target.copy_(random_bytes(target, kv_format, seed * 1000003 + row * 1009 + block))
            marks.clean(target)


def canonical_nan(tensor: Tensor) -> Tensor:
    """FP16 with every NaN of one pattern: the contract says that NaN stays NaN, not which."""
    return torch.where(tensor.isnan(), torch.full_like(tensor, float("nan")), tensor)


def gather(tokens: int = 640, rows: int = 2) -> tuple[Tensor, Tensor]:
    """A gather of random bytes without NaN: ``rows`` x ``tokens`` / 16 tiles."""
    generator = torch.Generator().manual_seed(5)
    cache = torch.randint(0, 0x7F, (tokens // 16, 16, 1, 64), generator=generator).to(torch.uint8)
    table = torch.stack([torch.randperm(tokens // 16, generator=generator) for _ in range(rows)]).to(torch.int32)
    lens = torch.full((rows,), tokens, dtype=torch.int32)
    out = torch.full((2, rows, tokens, 1, 64), -1.0, dtype=torch.float16)
    kv_cache.gather_paged_kv(
        cache, cache, table, lens, k_scale=0.5, v_scale=2.0, kv_format="e4m3", k_out=out[0], v_out=out[1]
    )
    return out[0], out[1]
