"""The bits of a row depend on that row alone: not on pages, neighbours, the division of the work, order, repetition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sm70_kernels.lab import emulator
from tests.ops.decode_cases import (
    FORMATS,
    LEAF,
    VARIANTS,
    Case,
    Result,
    check,
    check_same_bits,
    make_case,
)
from tests.ops.kv_cases import make_rows


def rows_of(case: Case, rows: list[int]) -> Case:
    """A call with some rows of another, in the same caches."""
    return case.but(q=case.q[rows].contiguous(), block_table=case.block_table[rows], seq_lens=case.seq_lens[rows])


def picked(result: Result, rows: list[int]) -> Result:
    return Result(result.out[rows], result.lse[rows])


def states_stored(case: Case, variant: str, workspace: Tensor) -> int:
    """Units whose states went through a workspace that was filled with 0xFF: the division that the kernels chose."""
    group = case.q.shape[1] // case.kv_heads
    slot = (group * (case.q.shape[2] + 2) + 3) // 4 * 4
    words = workspace.view(torch.int32)
    slots = words[: len(words) // slot * slot].view(-1, slot)
    return int((slots != -1).any(dim=1).sum())


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_relocated_pages_give_the_same_bits(device: torch.device, kv_format: str, variant: str, order: str) -> None:
    lengths, page, pages = [700, 48, 1, 333], 48, 60
    case = make_case(lengths, page=page, head_dim=64, kv_heads=2, kv_format=kv_format, device=device)
    moved = make_rows(lengths, page, pages, device, max_tokens=case.block_table.shape[1] * page, order=order)
    caches = []
    for cache in case.caches:
        target = torch.zeros(pages, *cache.shape[1:], dtype=cache.dtype, device=device)
        for row, length in enumerate(lengths):
            blocks = -(-length // page)
            target[moved.block_table[row, :blocks].long()] = cache[case.block_table[row, :blocks].long()]
        caches.append(target)
    relocated = case.but(key_cache=caches[0], value_cache=caches[1], block_table=moved.block_table)
    check_same_bits(relocated.run(variant), case.run(variant))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("page", [16, 112, 784])
def test_page_size_does_not_matter(device: torch.device, page: int, variant: str) -> None:
    """The same tokens in other pages: leaves are counted from the row's start, not from a page's."""
    length = 3000
    source = make_case([length], page=16, head_dim=64, device=device)
    blocks = -(-length // page)
    caches = []
    for cache in source.caches:
        tokens = cache[source.block_table[0, : -(-length // 16)].long()].view(-1, 1, 64)
        target = torch.full((blocks * page, 1, 64), 0x7F, dtype=torch.uint8, device=device)
        target[:length] = tokens[:length]
        caches.append(target.view(blocks, page, 1, 64))
    table = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    paged = source.but(key_cache=caches[0], value_cache=caches[1], block_table=table)
    check_same_bits(paged.run(variant), source.run(variant))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_neighbours_do_not_matter(device: torch.device, variant: str) -> None:
    lengths = [1000, 5, 0, 4000, 129, 2 * LEAF, 63]
    case = make_case(lengths, page=48, head_dim=64, group=3, kv_heads=2, device=device)
    together = case.run(variant)
    for rows in ([0], [3], [6, 5, 4, 3, 2, 1, 0], [1, 0], [0] * 40, [0, 3] * 15):
        check_same_bits(rows_of(case, rows).run(variant), picked(together, rows), f"rows {rows}:")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("head_dim,group", [(256, 6), (64, 10)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_division_of_the_work_does_not_matter(
    device: torch.device, variant: str, head_dim: int, group: int
) -> None:
    """Batches of ever more copies of two rows, until the units have grown: every row has the same bits."""
    case = make_case([2000, 777], page=112, group=group, head_dim=head_dim, device=device)
    alone = case.run(variant)
    stored: set[float] = set()
    copies, wanted = 1, 3 if device.type == "cuda" else 2
    while len(stored) < wanted:
        assert copies < 10000, f"units a pair of rows: {stored}"
        rows = [0, 1] * copies
        batch = rows_of(case, rows)
        workspace = batch.plan(variant).new_workspace().fill_(0xFF)
        check_same_bits(batch.run(variant, workspace=workspace), picked(alone, rows), f"{copies} copies:")
        stored.add(states_stored(batch, variant, workspace) / copies)
        copies = 40 if copies == 1 else 2 * copies


MULTIPROCESSORS = (1, 2, 5, 13, 72, 80)


@pytest.mark.parametrize("kv_format,head_dim,group", [("e4m3", 256, 6), ("fp16", 64, 3), ("e5m2", 128, 16)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_number_of_multiprocessors_does_not_matter(variant: str, kv_format: str, head_dim: int, group: int) -> None:
    lengths = [6000, 1, 0, 300, 2048, 130]
    arguments = {"page": 784, "head_dim": head_dim, "group": group, "kv_format": kv_format}
    case = make_case(lengths, device=torch.device("cpu"), **arguments)
    results, stored = [], set()
    for multiprocessors in MULTIPROCESSORS:
        with emulator.enabled(multiprocessors=multiprocessors):
            workspace = case.plan(variant).new_workspace().fill_(0xFF)
            results.append(case.run(variant, workspace=workspace))
            stored.add(states_stored(case, variant, workspace))
    assert len(stored) >= 3, f"units stored: {stored}"
    for multiprocessors, result in zip(MULTIPROCESSORS, results, strict=True):
        check_same_bits(result, results[0], f"{multiprocessors} multiprocessors:")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_width_of_the_table_does_not_matter(variant: str) -> None:
    """A table for more tokens may mean larger units, for the workspace's sake: up to 2^6 leaves here."""
    rows = 32
    case = make_case([20000, *[100] * (rows - 1)], page=1568, head_dim=64, device=torch.device("cpu"))
    results, stored = [], set()
    for blocks in (case.block_table.shape[1], 700, 2700):
        table = torch.full((rows, blocks), -1, dtype=torch.int32)
        table[:, : case.block_table.shape[1]] = case.block_table
        wide = case.but(block_table=table)
        for multiprocessors in (1, 80):
            with emulator.enabled(multiprocessors=multiprocessors):
                workspace = wide.plan(variant).new_workspace().fill_(0xFF)
                results.append(wide.run(variant, workspace=workspace))
                stored.add(states_stored(wide, variant, workspace))
    assert len(stored) >= 3, f"units stored: {stored}"
    for result in results:
        check_same_bits(result, results[0])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("head_dim,group", [(256, 6), (128, 12), (64, 1)])
def test_schedules_do_not_matter(head_dim: int, group: int, seed: int) -> None:
    """Blocks, warps and their turns in a shuffled order: nothing is read before it is written."""
    case = make_case([900, 0, 130], page=112, head_dim=head_dim, group=group, device=torch.device("cpu"))
    for variant in VARIANTS:
        with emulator.enabled():
            natural = case.run(variant)
        for multiprocessors in (1, 80):
            with emulator.enabled(seed=seed, multiprocessors=multiprocessors):
                check_same_bits(case.run(variant), natural, f"{variant}, seed {seed}:")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_six_runs_are_bitwise_equal(device: torch.device, variant: str) -> None:
    case = make_case([5000, 17, 900], page=784, head_dim=128, kv_heads=2, device=device)
    first = case.run(variant)
    for _ in range(5):
        check_same_bits(case.run(variant), first)


def prefill_rows(counts: list[int], totals: list[int]) -> tuple[list[int], list[int]]:
    """Request and length of every row of a mixed batch: the last ``count`` tokens of each request, causally."""
    requests, lengths = [], []
    for request, (count, total) in enumerate(zip(counts, totals, strict=True)):
        requests += [request] * count
        lengths += [max(0, total - count + 1 + row) for row in range(count)]
    return requests, lengths


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
def test_rows_of_requests(device: torch.device, kv_format: str) -> None:
    """Chunks of 1 to 16 query rows beside plain decode rows: as if each row were a request of its own."""
    counts, totals = [16, 1, 5, 2, 1], [900, 300, 5, LEAF + 1, 0]
    requests, lengths = prefill_rows(counts, totals)
    source = make_case(totals, page=48, head_dim=64, kv_heads=2, kv_format=kv_format, device=device)
    q = torch.randn(len(lengths), source.q.shape[1], 64, generator=torch.Generator().manual_seed(7))
    mixed = source.but(
        q=q.half().to(device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device),
        row_requests=torch.tensor(requests, dtype=torch.int32, device=device),
    )
    result = check(mixed)
    separate = mixed.but(block_table=mixed.block_table[requests], row_requests=None)
    check_same_bits(result, separate.run())
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1)).tolist()
    shuffled = mixed.but(q=mixed.q[order], seq_lens=mixed.seq_lens[order], row_requests=mixed.row_requests[order])
    check_same_bits(shuffled.run(), picked(result, order))


@pytest.mark.usefixtures("unwatched")
def test_more_requests_than_rows(device: torch.device) -> None:
    case = make_case([100, 200, 300], head_dim=64, device=device)
    one = case.but(
        q=case.q[2:],
        seq_lens=case.seq_lens[2:],
        row_requests=torch.tensor([2], dtype=torch.int32, device=device),
    )
    check_same_bits(one.run(), picked(case.run(), [2]))
