"""Every layout of the caches, Q and the outputs that decode takes, and those it sends elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import decode
from tests.ops.decode_cases import (
    FORMATS,
    VARIANTS,
    Case,
    Result,
    check,
    check_accuracy,
    check_same_bits,
    launched,
    make_case,
    stored_normals,
)
from tests.ops.kv_cases import empty_pool

#: Layouts of kv_cases that xqa serves.
ALIGNED = ("contiguous", "head_major", "unbind", "token_stride_264", "padded", "offset_8")


@pytest.mark.parametrize("heads,head_dim", [(1, 256), (3, 64), (2, 128)])
@pytest.mark.parametrize("layout", ALIGNED)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_layouts(device: torch.device, kv_format: str, layout: str, heads: int, head_dim: int) -> None:
    arguments = {"page": 48, "group": 2, "kv_heads": heads, "head_dim": head_dim, "kv_format": kv_format}
    case = make_case([100, 0, 17, 300], layout=layout, device=device, **arguments)
    result = check(case, what=layout)
    # The same bytes in another layout give the same bits.
    dense = case.but(key_cache=case.key_cache.contiguous(), value_cache=case.value_cache.contiguous())
    check_same_bits(dense.run(), result, layout)


@pytest.mark.parametrize("kv_format", FORMATS)
def test_caches_of_different_layouts(device: torch.device, kv_format: str) -> None:
    arguments = {"page": 32, "kv_heads": 2, "head_dim": 64, "kv_format": kv_format, "device": device}
    case = make_case([200, 31], **arguments)
    expected = case.run()
    head_major = case.value_cache.permute(0, 2, 1, 3).contiguous().permute(0, 2, 1, 3)
    check_same_bits(case.but(value_cache=head_major).run(), expected)
    wide = torch.zeros(*case.key_cache.shape[:3], 72, dtype=case.key_cache.dtype, device=device)
    wide[..., :64] = case.key_cache
    check_same_bits(case.but(key_cache=wide[..., :64]).run(), expected)


@pytest.mark.parametrize("kv_format", ["e4m3", "e5m2", "fp16"])
@pytest.mark.parametrize("layout", ["offset_1", "token_stride_1"])
def test_unaligned_caches_go_to_scalar_and_only_when_asked(device: torch.device, kv_format: str, layout: str) -> None:
    arguments = {"page": 16, "group": 3, "head_dim": 64, "kv_format": kv_format}
    case = make_case([100, 9], device=device, layout="offset_1" if layout == "offset_1" else "contiguous", **arguments)
    if layout == "token_stride_1":
        wide = [torch.zeros(*cache.shape[:3], 65, dtype=cache.dtype, device=device) for cache in case.caches]
        for target, cache in zip(wide, case.caches, strict=True):
            target[..., :64] = cache
        case = case.but(key_cache=wide[0][..., :64], value_cache=wide[1][..., :64])
    before = decode.library.launch_counts()
    with pytest.raises(RuntimeError, match=r"'key_cache': got heads that are not 8-byte aligned.*variant 'scalar'"):
        case.run("xqa")
    assert decode.library.launch_counts() == before
    result = case.run("scalar")
    check_accuracy(result, case.exact())
    dense = case.but(key_cache=case.key_cache.contiguous(), value_cache=case.value_cache.contiguous())
    check_same_bits(dense.run("scalar"), result)
    assert launched(case.plan("scalar").route) > 0


def test_a_value_cache_that_is_not_aligned_is_named(device: torch.device) -> None:
    case, odd = (make_case([40], head_dim=64, layout=layout, device=device) for layout in ("contiguous", "offset_1"))
    with pytest.raises(RuntimeError, match="'value_cache': got heads that are not 8-byte aligned"):
        case.but(value_cache=odd.value_cache).run()


def misaligned(values: Tensor, elements: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """A copy that starts ``elements`` past an allocation's start, with ``pad`` elements between heads; and it all."""
    rows, heads, dim = values.shape
    flat = torch.full((rows * heads * (dim + pad) + elements,), float("nan"), dtype=values.dtype, device=values.device)
    view = flat[elements:].view(rows, heads, dim + pad)[..., :dim]
    view.copy_(values)
    return view, flat


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("elements,pad", [(1, 0), (1, 1), (3, 5), (0, 8), (8, 0)])
def test_q_and_out_of_any_alignment_and_stride(device: torch.device, elements: int, pad: int, variant: str) -> None:
    case = make_case([300, 20, 0], head_dim=64, group=3, kv_heads=2, device=device)
    expected = case.run(variant)
    q, _ = misaligned(case.q, elements, pad)
    fresh = case.new_result()
    out, memory = misaligned(fresh.out, elements, pad)
    untouched = memory.clone()
    check_same_bits(case.but(q=q).run(variant, Result(out, fresh.lse)), expected)
    out.fill_(float("nan"))
    assert torch.equal(memory.view(torch.int16), untouched.view(torch.int16)), "written between rows or heads of out"


@pytest.mark.parametrize("variant", VARIANTS)
def test_permuted_q_out_and_lse(device: torch.device, variant: str) -> None:
    case = make_case([300, 4000], head_dim=128, group=5, device=device)
    expected = case.run(variant)
    q = case.q.transpose(0, 1).contiguous().transpose(0, 1)
    out = torch.full((5, 2, 128), float("nan"), dtype=torch.float16, device=device).transpose(0, 1)
    lse = torch.full((5, 4), float("nan"), device=device)[:, 1:3].transpose(0, 1)
    check_same_bits(case.but(q=q).run(variant, Result(out, lse)), expected)


def test_sliced_tables_and_lengths(device: torch.device) -> None:
    case = make_case([300, 20], head_dim=64, device=device)
    expected = case.run()
    blocks = case.block_table.shape[1]
    table = torch.full((2, blocks + 7), -1, dtype=torch.int32, device=device)
    table[:, 5 : 5 + blocks] = case.block_table
    lengths = torch.stack([case.seq_lens, case.seq_lens * 1000], dim=1)[:, 0]
    check_same_bits(case.but(block_table=table[:, 5 : 5 + blocks], seq_lens=lengths).run(), expected)
    requests = torch.tensor([[0, 9], [1, 9]], dtype=torch.int32, device=device)[:, 0]
    check_same_bits(case.but(row_requests=requests).run(), expected)


def test_a_q_that_all_rows_share(device: torch.device) -> None:
    case = make_case([100, 100], head_dim=64, device=device)
    one = case.q[:1]
    check_same_bits(case.but(q=one.expand(2, -1, -1)).run(), case.but(q=one.repeat(2, 1, 1)).run())


@pytest.mark.parametrize("variant", VARIANTS)
def test_pool_beyond_2_31_elements(device: torch.device, variant: str) -> None:
    """A row in the last pages of the pool, and one in its first."""
    page, pages, length = 1568, 5351, 1600  # 2^31 bytes and one page more
    shape = (pages, page, 1, 256)
    key, value = empty_pool(shape, device), empty_pool(shape, device)
    assert key.numel() > 2**31
    used = [pages - 1, pages - 2, 0, 1]
    for number, cache in enumerate((key, value)):
        normals = stored_normals((4, page, 1, 256), "e4m3", device, number)
        for index, target in enumerate(used):
            cache[target].copy_(normals[index])
    table = torch.tensor([used[:2], used[2:]], dtype=torch.int32, device=device)
    lengths = torch.full((2,), length, dtype=torch.int32, device=device)
    q = torch.randn(2, 6, 256, generator=torch.Generator().manual_seed(1)).half().to(device)
    case = Case(q, key, value, table, lengths, "e4m3")
    result = case.run(variant)
    small = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=device)
    near = case.but(key_cache=key[used], value_cache=value[used], block_table=small)
    check_same_bits(near.run(variant), result)
    check_accuracy(result, near.exact())


@pytest.mark.parametrize("kv_format", FORMATS)
def test_out_is_allocated_when_left_out(device: torch.device, kv_format: str) -> None:
    case = make_case([50, 0], head_dim=64, kv_format=kv_format, device=device)
    arguments = (case.q, *case.caches, case.block_table, case.seq_lens)
    assert torch.equal(decode.decode(*arguments, kv_format=kv_format), case.run().out)
    assert torch.equal(case.plan().run(*arguments), case.run().out)
    floor = reference.fp16_rounding_floor(case.exact().out)
    assert reference.relative_l2(case.run().out, case.exact().out) <= 1.04 * floor + 2e-6
