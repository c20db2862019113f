"""The bits of a row depend on that row alone: not on its place, other rows, requests, pages or how work is divided."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.lab import emulator
from sm70_kernels.ops import verify
from tests.ops.kv_cases import make_rows
from tests.ops.verify_cases import (
    FORMATS,
    LEAF,
    Result,
    check,
    check_accuracy,
    check_same_bits,
    draft,
    make_case,
    picked,
    rows_of,
)

CPU = torch.device("cpu")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("head_dim,group,kv_format", [(256, 6, "e4m3"), (64, 3, "e5m2")])
def test_a_row_alone_elsewhere_and_in_another_batch(
    device: torch.device, head_dim: int, group: int, kv_format: str
) -> None:
    """q = 1, other positions, other neighbours, other kernels (16, 32 and 48 rows a block)."""
    case = make_case(
        [draft(700, 8), [5, 0, 300, 130, 129, 128, 127, 1]],
        page=48,
        head_dim=head_dim,
        group=group,
        kv_format=kv_format,
        device=device,
    )
    together = check(case)
    for request in range(2):
        for row in range(8):
            check_same_bits(rows_of(case, request, [row]).run(), picked(together, request, [row]), f"row {row} alone:")
    for rows in ([7, 6, 5, 4, 3, 2, 1, 0], [3, 3, 3], [0, 7], [2, 5, 1, 4, 6], [6] * 16):
        check_same_bits(rows_of(case, 1, rows).run(), picked(together, 1, rows), f"rows {rows}:")
    shuffled = case.but(
        q=case.q.flip(0), block_table=case.block_table.flip(0), seq_lens=case.seq_lens.flip(0).contiguous()
    )
    result = shuffled.run()
    check_same_bits(Result(result.out.flip(0), result.lse.flip(0)), together, "requests the other way round:")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("q_rows", range(1, 9))
def test_every_subset_of_live_rows(device: torch.device, q_rows: int) -> None:
    """All 2^q masks of padding rows: live rows keep their bits, the others are zeros."""
    case = make_case([draft(LEAF + 40, q_rows)], group=2, head_dim=64, device=device)
    whole = check(case)
    masks = torch.arange(2**q_rows, device=device)[:, None] >> torch.arange(q_rows, device=device) & 1
    count = len(masks)
    batch = case.but(
        q=case.q.expand(count, -1, -1, -1),
        block_table=case.block_table.expand(count, -1),
        seq_lens=(case.seq_lens * masks).to(torch.int32),
    )
    result = batch.run()
    live = masks.bool()
    zeros = torch.zeros_like(whole.out)
    expected = torch.where(live[:, :, None, None], whole.out, zeros)
    lse = torch.where(live[:, :, None], whole.lse, torch.full_like(whole.lse, -torch.inf))
    check_same_bits(result, Result(expected, lse), f"q={q_rows}:")


@pytest.mark.usefixtures("unwatched")
def test_rows_whose_chunks_differ(device: torch.device) -> None:
    """Lengths around where a row's chunks grow: one request's rows go in several passes over the keys."""
    head_dim = 64
    step = verify.most_chunks(head_dim) * LEAF
    case = make_case([[step, step + 1, 100, 0, 2 * step + 1]], page=3296, group=2, head_dim=head_dim, device=device)
    together = check(case)
    for rows in ([1], [4], [2, 0]):
        check_same_bits(rows_of(case, 0, rows).run(), picked(together, 0, rows), f"{rows}:")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_relocated_pages_give_the_same_bits(device: torch.device, kv_format: str, order: str) -> None:
    page, pages, lengths = 48, 60, [draft(700, 3), [1, 0, 333]]
    case = make_case(lengths, page=page, head_dim=64, kv_heads=2, kv_format=kv_format, device=device)
    longest = [max(rows) for rows in lengths]
    moved = make_rows(longest, page, pages, device, max_tokens=case.block_table.shape[1] * page, order=order)
    caches = []
    for cache in case.caches:
        target = torch.zeros(pages, *cache.shape[1:], dtype=cache.dtype, device=device)
        for request, length in enumerate(longest):
            blocks = -(-length // page)
            target[moved.block_table[request, :blocks].long()] = cache[case.block_table[request, :blocks].long()]
        caches.append(target)
    relocated = case.but(key_cache=caches[0], value_cache=caches[1], block_table=moved.block_table)
    check_same_bits(relocated.run(), case.run())


@pytest.mark.parametrize("head_dim,group,kv_format", [(256, 6, "e4m3"), (64, 16, "e5m2")])
def test_the_number_of_multiprocessors_does_not_matter(head_dim: int, group: int, kv_format: str) -> None:
    case = make_case(
        [draft(2000, 4), [1, 0, 300, 130]], page=784, head_dim=head_dim, group=group, kv_format=kv_format, device=CPU
    )
    results = []
    for multiprocessors in (1, 5, 72, 80):
        with emulator.enabled(multiprocessors=multiprocessors):
            results.append(case.run())
    for result in results[1:]:
        check_same_bits(result, results[0])


@pytest.mark.parametrize("seed", [1, 2])
def test_schedules_do_not_matter(seed: int) -> None:
    """Blocks, warps and their turns in a shuffled order: nothing is read before it is written."""
    case = make_case([draft(600, 3), [0, 130, 5]], page=112, group=5, device=CPU)
    with emulator.enabled():
        natural = case.run()
    for multiprocessors in (1, 80):
        with emulator.enabled(seed=seed, multiprocessors=multiprocessors):
            check_same_bits(case.run(), natural, f"seed {seed}:")


@pytest.mark.usefixtures("unwatched")
def test_many_requests(device: torch.device) -> None:
    """More than a window of 32, with requests of padding alone between."""
    lengths = [draft((37 * request) % 200, 2) if request % 5 else [0, 0] for request in range(70)]
    lengths[61] = draft(3000, 2)
    check(make_case(lengths, page=48, group=2, head_dim=64, device=device))


@pytest.mark.usefixtures("unwatched")
def test_the_width_of_the_table_and_the_workspace_do_not_matter(device: torch.device) -> None:
    case = make_case([draft(3000, 2)], page=784, group=2, head_dim=64, device=device)
    expected = case.run()
    table = torch.full((1, 700), -1, dtype=torch.int32, device=device)
    table[:, : case.block_table.shape[1]] = case.block_table
    wide = case.but(block_table=table)
    for byte in (0x00, 0xFF, 0x7F):
        check_same_bits(wide.run(workspace=wide.plan().new_workspace().fill_(byte)), expected)


@pytest.mark.parametrize("rows", [1, 40])
def test_only_padding(device: torch.device, rows: int) -> None:
    result = make_case([[0, 0]] * rows, head_dim=64, device=device).run()
    assert not result.out.view(torch.int16).any() and bool((result.lse == -torch.inf).all())


def test_no_requests(device: torch.device) -> None:
    result = make_case([], device=device).run()
    assert result.out.shape == (0, 1, 6, 256) and result.lse.shape == (0, 1, 6)


@pytest.mark.usefixtures("unwatched")
def test_parts_of_a_context_merge_into_the_whole(device: torch.device) -> None:
    """The lse that comes with the parts is that of their keys."""
    from sm70_kernels.attention import states

    case = make_case([draft(1000, 4)], page=16, head_dim=64, device=device)
    parts = []
    for first, last in ((0, 400), (400, 1000)):
        lengths = (case.seq_lens - first).clamp(0, last - first).to(torch.int32)
        parts.append(case.but(block_table=case.block_table[:, first // 16 :].contiguous(), seq_lens=lengths).run())
    _, lse = states.merge_states([part.out for part in parts], [part.lse for part in parts])
    check_accuracy(Result(case.run().out, lse), case.exact())
