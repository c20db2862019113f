"""What decode must not see: stale bytes, unused pages and table entries, other rows' NaN; and what it must not hide.

The poison is NaN in every format, in everything that no live token occupies. On the emulated V100 it is tainted too:
bytes alone have no teeth where a kernel multiplies them by a weight of 0. ``decode_unmasked`` is the kernel without the
mask of the tail, which must fail.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.lab import emulator
from sm70_kernels.lab.checkers import Checks
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
from tests.ops.kv_cases import canonical_nan, poison

ROOT = Path(__file__).resolve().parents[2]

#: Lengths with tails in a tile, at the end of a tile, in a leaf, in a page; one without keys.
LENGTHS = [1, 15, 17, 0, 100, LEAF, 2 * LEAF + 33, 1000]
#: Bits that are NaN in E4M3 and, doubled, in the others.
NAN_CODES = {"e4m3": (0x7F, 0xFF), "e5m2": (0x7D, 0x7F, 0xFE), "fp16": (0x7C01, 0x7E00, -1)}


def with_dead_bytes(case: Case, code: int) -> Case:
    """The same call with other bytes wherever no live token is: tails of pages, unused pages."""
    changed = []
    for cache in case.caches:
        copy = torch.full_like(cache, 0)
        copy.view(torch.int16 if cache.dtype == torch.float16 else torch.uint8).fill_(code)
        page = cache.shape[1]
        for row, length in enumerate(case.seq_lens.tolist()):
            for block in range(-(-length // page)):
                number, live = int(case.block_table[row, block]), min(page, length - block * page)
                copy[number, :live] = cache[number, :live]
        changed.append(copy)
    return case.but(key_cache=changed[0], value_cache=changed[1])


@pytest.mark.memcheck
@pytest.mark.parametrize("head_dim,group", [(256, 6), (128, 16), (64, 2)])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_dead_bytes_reach_nothing(device: torch.device, kv_format: str, head_dim: int, group: int) -> None:
    case = make_case(LENGTHS, page=48, group=group, head_dim=head_dim, kv_format=kv_format, device=device)
    zeros = with_dead_bytes(case, 0)
    for variant in VARIANTS:
        clean = zeros.run(variant)
        assert bool(clean.out.isfinite().all())
        for code in (*NAN_CODES[kv_format], 0x7B if kv_format == "e5m2" else 0x7BFF if kv_format == "fp16" else 0x7E):
            check_same_bits(with_dead_bytes(case, code).run(variant), clean, f"{variant}, dead bytes {code:#x}:")


@pytest.mark.parametrize("variant", VARIANTS)
def test_contents_of_the_workspace_do_not_matter(device: torch.device, variant: str) -> None:
    case = make_case([5000, 3, 0, 700], page=784, head_dim=64, kv_heads=2, device=device)
    results = []
    for byte in (0x00, 0xFF, 0x7F, 0x55):
        results.append(case.run(variant, workspace=case.plan(variant).new_workspace().fill_(byte)))
    for result in results[1:]:
        check_same_bits(result, results[0])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_workspace_that_another_shape_left_behind(device: torch.device, variant: str) -> None:
    large = make_case([9000, 4000], page=800, head_dim=128, device=device)
    small = make_case([3000, 129], page=16, group=3, head_dim=64, kv_heads=2, device=device, seed=1)
    alone = small.run(variant)
    workspace = large.plan(variant).new_workspace()
    assert workspace.numel() >= small.plan(variant).workspace_bytes
    large.run(variant, workspace=workspace)
    check_same_bits(small.run(variant, workspace=workspace), alone)


@pytest.mark.parametrize("garbage", [-1, 2**31 - 1, -(2**31), 123456789])
@pytest.mark.parametrize("variant", VARIANTS)
def test_table_entries_past_the_length_are_not_read(device: torch.device, variant: str, garbage: int) -> None:
    case = make_case([16, 17, 0, 400], page=16, head_dim=64, spare_blocks=40, device=device)
    clean = case.run(variant)
    table = case.block_table.clone()
    for row, length in enumerate(case.seq_lens.tolist()):
        table[row, -(-length // 16) :] = garbage
    check_same_bits(case.but(block_table=table).run(variant), clean)


def same_or_nan(spoilt: Tensor, clean: Tensor, may: Tensor) -> bool:
    """The same bits, except where ``may`` holds: there either those or NaN."""
    same = canonical_nan(spoilt).view(torch.int16) == canonical_nan(clean).view(torch.int16)
    return bool((same | (may & spoilt.isnan())).all())


SPOILT_TOKENS = [0, 15, 16, LEAF - 1, LEAF, 2 * LEAF + 32, 699]


def spoil(case: Case, which: str, token: int, head: int, dimension: int, code: int) -> Case:
    """The call with one stored element of row 1 replaced."""
    cache = (case.key_cache if which == "key" else case.value_cache).clone()
    page = cache.shape[1]
    bits = cache.view(torch.int16 if cache.dtype == torch.float16 else torch.uint8)
    bits[int(case.block_table[1, token // page]), token % page, head, dimension] = code
    return case.but(**{f"{which}_cache": cache})


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("head_dim,group", [(64, 3), (256, 9)])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_live_nan_reaches_its_outputs_and_no_others(
    device: torch.device, kv_format: str, head_dim: int, group: int
) -> None:
    """A NaN in V: its dimension, of the query heads of its KV head. In K: all their dimensions."""
    case = make_case([40, 700, 300], group=group, kv_heads=2, head_dim=head_dim, kv_format=kv_format, device=device)
    clean = {variant: case.run(variant) for variant in VARIANTS}
    for number, token in enumerate(SPOILT_TOKENS):
        which, head = ("key", "value")[number % 2], number // 2 % 2
        dimension = (number * 37 + 5) % head_dim
        codes = NAN_CODES[kv_format]
        spoilt = spoil(case, which, token, head, dimension, codes[number % len(codes)])
        reached = torch.zeros_like(case.q, dtype=torch.bool)
        reached[1, head * group : (head + 1) * group, dimension if which == "value" else slice(None)] = True
        may = torch.zeros_like(reached)
        may[1, head * group : (head + 1) * group] = True
        for variant in VARIANTS:
            out = spoilt.run(variant).out
            assert bool(out[reached].isnan().all()), f"{variant}: NaN in {which}[{token}] was lost"
            assert same_or_nan(out, clean[variant].out, may), f"{variant}: NaN in {which}[{token}] went further"


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_place_of_a_leaf_shows_its_nan(device: torch.device, variant: str) -> None:
    """E4M3's NaN are found bit by bit, beside the arithmetic: no lane may be left out. A row a place."""
    for which in ("key", "value"):
        tokens = range(2 * LEAF - 1)
        length = len(tokens)
        case = make_case([length] * 2, group=1, head_dim=64, device=device)
        blocks = -(-length // 16)
        source = case.block_table[0, :blocks].long()
        caches = {"key": case.key_cache[source], "value": case.value_cache[source]}
        rows = {name: cache.repeat(length, 1, 1, 1) for name, cache in caches.items()}
        index = torch.arange(length, device=device)
        rows[which][index * blocks + index // 16, index % 16, 0, index * 29 % 64] = 0x7F
        table = torch.arange(length * blocks, dtype=torch.int32, device=device).view(length, blocks)
        lengths = torch.full((length,), length, dtype=torch.int32, device=device)
        q = case.q[:1].repeat(length, 1, 1)
        spoilt = Case(q, rows["key"], rows["value"], table, lengths, "e4m3")
        assert bool(spoilt.run(variant).out.isnan().all())
        # One token shorter or longer than the NaN's place decides.
        lengths.copy_(index)
        assert bool(spoilt.run(variant).out.isfinite().all())


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_format", ["e5m2", "fp16"])
def test_an_infinite_value_is_infinite_or_nan(device: torch.device, kv_format: str, variant: str) -> None:
    case = make_case([40, 700], group=3, kv_heads=2, head_dim=64, kv_format=kv_format, device=device)
    clean = case.run(variant)
    spoilt = spoil(case, "value", 300, 1, 11, 0x7C if kv_format == "e5m2" else 0x7C00).run(variant)
    hit = torch.zeros_like(case.q, dtype=torch.bool)
    hit[1, 3:, 11] = True
    assert not bool(spoilt.out[hit].isfinite().any())
    assert torch.equal(spoilt.out[~hit], clean.out[~hit])


@pytest.mark.usefixtures("unwatched")
def test_poison_in_the_middle_of_the_tree(device: torch.device) -> None:
    """Rows whose last unit, leaf and tile are one token long, at several unit sizes, between poisoned neighbours."""
    lengths = [LEAF * leaves + 1 for leaves in (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33)]
    result: Result = check(make_case(lengths, page=784, head_dim=64, group=4, device=device))
    assert bool(result.out.isfinite().all())


UNMASKED = ROOT / "build" / "test_ops" / "decode_unmasked" / "libsm70_decode_unmasked.so"


@pytest.fixture(scope="module")
def unmasked_operator() -> None:
    """Of the module, so that it comes before the emulator is switched on, for what is loaded."""
    _native.load("decode_unmasked", 1, UNMASKED)


def run_one_leaf(case: Case, *, masked: bool) -> Tensor:
    """The test-only operator: the very kernel, with the mask of the tail and without."""
    out = case.new_result().out
    torch.ops.sm70_kernels_test.decode_unmasked(
        case.q, *case.caches, case.block_table, case.seq_lens, out, case.kv_format, masked
    )
    return out


def short_rows(kv_format: str, device: torch.device) -> Case:
    return make_case(
        [1, 17, 47, 100, LEAF - 1], page=16, head_dim=64, kv_format=kv_format, device=device, spare_blocks=0
    )


@pytest.mark.usefixtures("unmasked_operator", "unwatched")
@pytest.mark.parametrize("kv_format", ["e4m3", "fp16"])
def test_a_kernel_without_the_mask_fails(device: torch.device, kv_format: str) -> None:
    """On poison, and on numbers; on zeros too, which take their share of the weight."""
    case = short_rows(kv_format, device)
    expected = case.run().out
    codes = (0, *NAN_CODES[kv_format], 0x38)
    for code in codes:
        dead = with_dead_bytes(case, code)
        assert torch.equal(run_one_leaf(dead, masked=True), expected), f"dead bytes {code:#x}"
        unmasked = run_one_leaf(dead, masked=False)
        wrong = (unmasked != expected).flatten(1).any(1)
        assert bool(wrong.all()), f"dead bytes {code:#x}: rows {(~wrong).nonzero().flatten().tolist()} are right"
        if code in NAN_CODES[kv_format]:
            assert bool(unmasked.isnan().all())


@pytest.mark.usefixtures("unmasked_operator")
@pytest.mark.parametrize("kv_format", ["e4m3", "fp16"])
def test_taint_finds_a_kernel_without_the_mask(kv_format: str) -> None:
    case = short_rows(kv_format, torch.device("cpu"))
    with Checks(("taint",)) as checks, emulator.enabled(instruments=checks.instruments):
        for cache in case.caches:
            for row, length in enumerate(case.seq_lens.tolist()):
                if length % 16:
                    checks.tainted(cache[int(case.block_table[row, length // 16]), length % 16 :])
        run_one_leaf(case, masked=True)
        with pytest.raises(RuntimeError, match=rf"decode_unmasked_{kv_format}.*taint: bytes that must not matter"):
            run_one_leaf(case, masked=False)


def test_nan_bytes_are_nan_to_the_tests_too() -> None:
    for kv_format in FORMATS:
        some = torch.zeros(4, dtype=torch.float16 if kv_format == "fp16" else torch.uint8)
        poison(some, kv_format)
        typed = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16}[kv_format]
        assert bool(some.view(typed).float().isnan().all())
