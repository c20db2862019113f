"""decode at every kind of length and page size, and by which kernels: against float64, and xqa against scalar."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.ops import decode
from tests.ops.decode_cases import FORMATS, LEAF, VARIANTS, check, check_accuracy, launched, make_case
from tests.ops.kv_cases import PAGES


def off(*multiples: int) -> list[int]:
    """Lengths on both sides of these."""
    return [multiple + step for multiple in multiples for step in (-1, 0, 1)]


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
def test_every_length_up_to_two_leaves_and_one_more(device: torch.device, kv_format: str) -> None:
    # One batch: short rows beside each other, each a launch's worth of masks.
    lengths = list(range(1, 2 * LEAF + 2))
    head_dim = {"e4m3": 256, "e5m2": 128, "fp16": 64}[kv_format]
    check(make_case(lengths, head_dim=head_dim, kv_format=kv_format, device=device))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, LEAF, 2 * LEAF + 1])
def test_a_short_row_alone(device: torch.device, length: int, variant: str) -> None:
    case = make_case([length], device=device, seed=length)
    result = case.run(variant)
    check_accuracy(result, case.exact())
    if length == 1:  # one key has weight 1: V itself
        key = case.value_cache.view(torch.float8_e4m3fn)[int(case.block_table[0, 0]), 0]
        assert torch.equal(result.out[0], key.half().expand(6, 256))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("page", [16, 848])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_lengths_off_tiles_leaves_and_pages(device: torch.device, head_dim: int, page: int) -> None:
    lengths = [*off(64, 256, 384, 512, 784, 1024), 2925, 4130, *off(2048)]
    check(make_case(lengths, page=page, group=3, head_dim=head_dim, device=device))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("middle", [32768, 65536])
def test_lengths_around_powers_of_two_that_overflow_16_bits(device: torch.device, middle: int) -> None:
    check(make_case(off(middle), page=784, group=4, head_dim=64, device=device))


@pytest.mark.parametrize("page", [16, pytest.param(848, marks=pytest.mark.memcheck), 3456])
def test_rows_without_keys_are_zeros_and_nothing_is_read(device: torch.device, page: int) -> None:
    # Their block-table rows hold no page at all.
    lengths = [0, 300, 0, 0, 1, 0]
    case = make_case(lengths, page=page, kv_heads=2, group=2, head_dim=64, device=device)
    result = check(case)
    empty = [row for row, length in enumerate(lengths) if length == 0]
    assert not result.out[empty].view(torch.int16).any(), "zeros, of positive sign"


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_rows_without_keys(device: torch.device, variant: str) -> None:
    for rows in (1, 33):
        result = make_case([0] * rows, device=device).run(variant)
        assert not result.out.view(torch.int16).any() and bool((result.lse == -torch.inf).all())


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_rows(device: torch.device, variant: str) -> None:
    result = make_case([], device=device).run(variant)
    assert result.out.shape == (0, 6, 256) and result.lse.shape == (0, 6)


@pytest.mark.parametrize("page", PAGES)
def test_page_sizes(device: torch.device, page: int) -> None:
    # Ends in, on and past the first page, and a row of several pages whose leaves straddle them.
    check(make_case([*off(page), 2 * page + 100], page=page, group=2, head_dim=128, device=device, seed=page))


@pytest.mark.parametrize("order", ["ascending", "descending"])
def test_page_orders(device: torch.device, order: str) -> None:
    check(make_case([1000, 257, 640], page=48, group=5, head_dim=64, device=device, order=order))


@pytest.mark.usefixtures("unwatched")
def test_one_long_row_among_short_ones(device: torch.device) -> None:
    lengths = [(37 * row) % 200 for row in range(40)]
    lengths[23] = 9000
    check(make_case(lengths, page=800, head_dim=64, device=device))


GROUPS = [(1, 256), (5, 64), (6, 256), (8, 128), (9, 64), (12, 128), (16, 128), (16, 256)]


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("group,head_dim", GROUPS)
def test_routes(device: torch.device, group: int, head_dim: int, kv_format: str) -> None:
    """The plan names the kernel that runs; no other one does."""
    case = make_case([300, 5], group=group, kv_heads=2, head_dim=head_dim, kv_format=kv_format, device=device)
    names = {
        "xqa": f"decode_xqa_{kv_format}_d{head_dim}_r{8 if group <= 8 else 16}",
        "scalar": f"decode_scalar_{kv_format}_d{head_dim}",
    }
    for variant, name in names.items():
        assert case.plan(variant).route == name
        before, counts = launched(name), decode.library.launch_counts()
        case.run(variant)
        assert launched(name) == before + 1
        after = decode.library.launch_counts()
        assert {kernel for kernel in after if after[kernel] != counts.get(kernel)} == {name, "decode_combine"}
    check(case)


@pytest.mark.parametrize("alias,kv_format", [("fp8", "e4m3"), ("fp8_e5m2", "e5m2")])
def test_aliases_of_formats(device: torch.device, alias: str, kv_format: str) -> None:
    case = make_case([40], kv_format=kv_format, device=device)
    assert case.but(kv_format=alias).plan().route == case.plan().route
    named = decode.decode(case.q, *case.caches, case.block_table, case.seq_lens, kv_format=alias)
    assert torch.equal(named, case.run().out)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_typed_cache_names_its_format(device: torch.device, kv_format: str) -> None:
    case = make_case([100], head_dim=64, kv_format=kv_format, device=device)
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16}[kv_format]
    typed = [cache.view(dtype) for cache in case.caches]
    out = decode.decode(case.q, *typed, case.block_table, case.seq_lens)
    assert torch.equal(out, case.run().out)
