"""Block tables of benchmark rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def page_tables(lengths: Sequence[int], page: int, generator: torch.Generator) -> tuple[int, Tensor]:
    """Number of pages, and an int32 block table ``[B, max_blocks]`` of them in random order, -1 past the live ones."""
    counts = [-(-length // page) for length in lengths]
    shuffled = torch.randperm(sum(counts), generator=generator).to(torch.int32)
    table = torch.full((len(counts), max(counts)), -1, dtype=torch.int32)
    first = 0
    for index, count in enumerate(counts):
        table[index, :count] = shuffled[first : first + count]
        first += count
    return sum(counts), table
