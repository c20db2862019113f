"""What verify must not see: stale bytes, unused pages and table entries, keys of other rows; and what it must show.

Poison is NaN in every byte that no live token occupies, and tainted on the emulated V100. Rows of one request share
pages: a key past one row's length is live for another, and a NaN in it must not reach the first, as 0 x NaN either.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.ops import marks
from tests.ops.kv_cases import canonical_nan
from tests.ops.verify_cases import FORMATS, LEAF, Case, check_same_bits, draft, make_case

#: Bytes that make NaN of results; E5M2's infinities are among them.
SPECIAL = {"e4m3": (0x7F, 0xFF), "e5m2": (0x7C, 0x7D, 0x7F, 0xFC, 0xFE)}
LENGTHS = [[1, 15, 17], [0, 100, LEAF], [2 * LEAF + 33, 0, 700]]


def with_dead_bytes(case: Case, code: int) -> Case:
    """The same call with other bytes wherever no live token is."""
    changed = []
    for cache in case.caches:
        copy = torch.full_like(cache, code)
        page = cache.shape[1]
        for request, length in enumerate(case.seq_lens.amax(1).tolist()):
            for block in range(-(-length // page)):
                number, live = int(case.block_table[request, block]), min(page, length - block * page)
                copy[number, :live] = cache[number, :live]
        changed.append(copy)
    return case.but(key_cache=changed[0], value_cache=changed[1])


@pytest.mark.memcheck
@pytest.mark.parametrize("head_dim,group", [(256, 6), (128, 9), (64, 2)])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_dead_bytes_reach_nothing(device: torch.device, kv_format: str, head_dim: int, group: int) -> None:
    case = make_case(LENGTHS, page=48, group=group, head_dim=head_dim, kv_format=kv_format, device=device)
    clean = with_dead_bytes(case, 0).run()
    assert bool(clean.out.isfinite().all())
    check_same_bits(case.run(), clean, "tainted poison:")
    for code in (*SPECIAL[kv_format][:2], 0x7B if kv_format == "e5m2" else 0x7E):
        check_same_bits(with_dead_bytes(case, code).run(), clean, f"dead bytes {code:#x}:")


@pytest.mark.parametrize("garbage", [-1, 2**31 - 1, -(2**31), 123456789])
def test_table_entries_past_the_length_are_not_read(device: torch.device, garbage: int) -> None:
    case = make_case([[16, 3], [17, 40], [0, 0], draft(400, 2)], page=16, head_dim=64, spare_blocks=40, device=device)
    clean = case.run()
    table = case.block_table.clone()
    for request, length in enumerate(case.seq_lens.amax(1).tolist()):
        table[request, -(-length // 16) :] = garbage
    check_same_bits(case.but(block_table=table).run(), clean)


def spoil(case: Case, which: str, request: int, token: int, head: int, dimension: int, code: int) -> Case:
    """The call with one stored byte replaced."""
    cache = (case.key_cache if which == "key" else case.value_cache).clone()
    page = cache.shape[1]
    cache[int(case.block_table[request, token // page]), token % page, head, dimension] = code
    return case.but(**{f"{which}_cache": cache})


def same_but(spoilt: Tensor, clean: Tensor, may: Tensor) -> bool:
    """The same bits, except where ``may`` holds: there NaN."""
    same = canonical_nan(spoilt).view(torch.int16) == canonical_nan(clean).view(torch.int16)
    return bool((same ^ may).all()) and bool(spoilt[may].isnan().all())


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_nan_reaches_the_rows_that_have_its_key(device: torch.device, kv_format: str, head_dim: int) -> None:
    """And no other: neither shorter rows of its request, nor other heads, nor other requests."""
    lengths = [100, 300, 301, 302, 303, 17, 0, 304]
    case = make_case(
        [lengths, draft(290, 8)], group=2, kv_heads=2, head_dim=head_dim, kv_format=kv_format, device=device
    )
    marks.clean(*case.caches)
    clean = case.run()
    codes = SPECIAL[kv_format]
    for number, token in enumerate([0, 16, 17, 99, 100, LEAF - 1, LEAF, 299, 300, 301, 302, 303]):
        which, head = ("key", "value")[number % 2], number // 2 % 2
        spoilt = spoil(case, which, 0, token, head, (number * 37 + 5) % head_dim, codes[number % len(codes)]).run()
        reached = torch.zeros_like(case.q, dtype=torch.bool)
        rows = torch.tensor(lengths) > token
        reached[0, rows, 2 * head : 2 * head + 2] = True
        assert same_but(spoilt.out, clean.out, reached), f"{which}[{token}]"
        assert torch.equal(spoilt.lse.isnan(), reached[..., 0]), f"lse, {which}[{token}]"


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("which", ["key", "value"])
def test_every_place_of_a_leaf_shows_its_nan(device: torch.device, which: str, kv_format: str) -> None:
    """Found bit by bit, beside the arithmetic: no lane may be left out. A request a place; a row that just has the key,
    and one that just does not."""
    requests = 2 * LEAF - 1
    source = make_case([[requests, requests]], group=1, head_dim=64, kv_format=kv_format, device=device)
    blocks = -(-requests // 16)
    pages = source.block_table[0, :blocks].long()
    caches = {name: cache[pages].repeat(requests, 1, 1, 1) for name, cache in
              (("key", source.key_cache), ("value", source.value_cache))}  # fmt: skip
    index = torch.arange(requests, device=device)
    code = SPECIAL[kv_format][0]
    caches[which][index * blocks + index // 16, index % 16, 0, index * 29 % 64] = code
    table = torch.arange(requests * blocks, dtype=torch.int32, device=device).view(requests, blocks)
    lengths = torch.stack([index + 1, index], 1).to(torch.int32)
    case = Case(
        source.q.expand(requests, -1, -1, -1), caches["key"], caches["value"], table, lengths.contiguous(), kv_format
    )
    out = case.run().out
    assert bool(out[:, 0].isnan().all()), f"lost at {(~out[:, 0].isnan().all(-1).all(-1)).nonzero().flatten().tolist()}"
    assert bool(out[:, 1].isfinite().all())
