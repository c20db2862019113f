"""Every layout of the caches, Q and the outputs that verify takes, and those that it refuses."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sm70_kernels.ops import verify
from tests.ops.decode_cases import stored_normals
from tests.ops.kv_cases import PAGES, empty_pool
from tests.ops.verify_cases import (
    FORMATS,
    Case,
    Result,
    check,
    check_accuracy,
    check_same_bits,
    draft,
    make_case,
)

#: Layouts of kv_cases that are 8-byte aligned: token strides of 264 and of D + 8 among them.
ALIGNED = ("contiguous", "head_major", "unbind", "token_stride_264", "padded", "offset_8")


@pytest.mark.parametrize("heads,head_dim", [(1, 256), (3, 64)])
@pytest.mark.parametrize("layout", ALIGNED)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_layouts(device: torch.device, kv_format: str, layout: str, heads: int, head_dim: int) -> None:
    arguments = {"page": 48, "group": 2, "kv_heads": heads, "head_dim": head_dim, "kv_format": kv_format}
    case = make_case([draft(100, 3), [0, 0, 17], draft(300, 3)], layout=layout, device=device, **arguments)
    result = check(case, what=layout)
    # The same bytes in another layout give the same bits.
    dense = case.but(key_cache=case.key_cache.contiguous(), value_cache=case.value_cache.contiguous())
    check_same_bits(dense.run(), result, layout)


@pytest.mark.parametrize("layout", ["offset_1"])
@pytest.mark.parametrize("which", ["key_cache", "value_cache"])
def test_unaligned_caches_are_refused(device: torch.device, layout: str, which: str) -> None:
    case, odd = (make_case([[40, 3]], head_dim=64, layout=name, device=device) for name in ("contiguous", layout))
    before = verify.library.launch_counts()
    with pytest.raises(RuntimeError, match=f"'{which}': got heads that are not 8-byte aligned.*variant 'scalar'"):
        case.but(**{which: getattr(odd, which)}).run()
    assert verify.library.launch_counts() == before


def with_canaries(values: Tensor, elements: int, pad: int = 0) -> tuple[Tensor, Tensor]:
    """A copy that starts ``elements`` past an allocation's start, NaN before, behind and between its heads; and it
    all."""
    heads, dim = values.shape[-2:]
    rows = values.shape[:-2].numel()
    flat = torch.full(
        (rows * heads * (dim + pad) + elements + 64,), float("nan"), dtype=values.dtype, device=values.device
    )
    view = flat[elements : elements + rows * heads * (dim + pad)].view(*values.shape[:-1], dim + pad)[..., :dim]
    view.copy_(values)
    return view, flat


@pytest.mark.parametrize("elements,pad", [(1, 0), (4, 0), (7, 0), (1, 1), (3, 5), (0, 8), (8, 0)])
def test_q_and_out_at_offsets_with_canaries_around(device: torch.device, elements: int, pad: int) -> None:
    case = make_case([draft(300, 3), [20, 0, 1]], head_dim=64, group=3, kv_heads=2, device=device)
    expected = case.run()
    q, _ = with_canaries(case.q, elements, pad)
    fresh = case.new_result()
    out, memory = with_canaries(fresh.out, elements, pad)
    untouched = memory.clone()
    check_same_bits(case.but(q=q).run(Result(out, fresh.lse)), expected)
    out.fill_(float("nan"))
    assert torch.equal(memory.view(torch.int16), untouched.view(torch.int16)), "written around or between heads of out"


def test_permuted_q_out_and_lse(device: torch.device) -> None:
    case = make_case([draft(300, 2), draft(4000, 2)], head_dim=128, group=5, device=device)
    expected = case.run()
    q = case.q.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    out = torch.full((5, 2, 2, 128), float("nan"), dtype=torch.float16, device=device).permute(1, 2, 0, 3)
    lse = torch.full((5, 2, 4), float("nan"), device=device)[:, :, 1:3].permute(1, 2, 0)
    check_same_bits(case.but(q=q).run(Result(out, lse)), expected)


def test_sliced_tables_and_lengths(device: torch.device) -> None:
    case = make_case([draft(300, 2), draft(20, 2)], head_dim=64, device=device)
    expected = case.run()
    blocks = case.block_table.shape[1]
    table = torch.full((2, blocks + 7), -1, dtype=torch.int32, device=device)
    table[:, 5 : 5 + blocks] = case.block_table
    lengths = case.seq_lens.t().contiguous().t()
    check_same_bits(case.but(block_table=table[:, 5 : 5 + blocks], seq_lens=lengths).run(), expected)


@pytest.mark.parametrize("page", PAGES)
def test_page_sizes(device: torch.device, page: int) -> None:
    """Ends in, on and past the first page, and leaves that straddle several."""
    check(
        make_case(
            [[page - 1, page, page + 1], draft(2 * page + 100, 3)],
            page=page,
            group=2,
            head_dim=64,
            device=device,
            seed=page,
        )
    )


def test_pool_beyond_2_31_elements(device: torch.device) -> None:
    """A request in the last pages of the pool, and one in its first."""
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
    lengths = torch.tensor([draft(length, 2)] * 2, dtype=torch.int32, device=device)
    q = torch.randn(2, 2, 6, 256, generator=torch.Generator().manual_seed(1)).half().to(device)
    case = Case(q, key, value, table, lengths, "e4m3")
    result = case.run()
    small = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device=device)
    near = case.but(key_cache=key[used], value_cache=value[used], block_table=small)
    check_same_bits(near.run(), result)
    check_accuracy(result, near.exact())


@pytest.mark.parametrize("kv_format", FORMATS)
def test_out_is_allocated_when_left_out(device: torch.device, kv_format: str) -> None:
    case = make_case([[50, 0]], head_dim=64, kv_format=kv_format, device=device)
    arguments = (case.q, *case.caches, case.block_table, case.seq_lens)
    assert torch.equal(verify.verify(*arguments, kv_format=kv_format), case.run().out)
    assert torch.equal(case.plan().run(*arguments), case.run().out)


@pytest.mark.parametrize("alias,kv_format", [("fp8", "e4m3"), ("fp8_e5m2", "e5m2")])
def test_formats_by_alias_and_by_type(device: torch.device, alias: str, kv_format: str) -> None:
    case = make_case([[40, 7]], kv_format=kv_format, head_dim=64, device=device)
    assert case.but(kv_format=alias).plan().route == case.plan().route
    dtype = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}[kv_format]
    typed = [cache.view(dtype) for cache in case.caches]
    assert torch.equal(verify.verify(case.q, *typed, case.block_table, case.seq_lens), case.run().out)


ROUTES = [(8, 6, 256, 48), (5, 6, 256, 32), (2, 6, 256, 16), (1, 1, 64, 16), (8, 8, 128, 32), (16, 6, 128, 48),
          (8, 16, 64, 48)]  # fmt: skip


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("q_rows,group,head_dim,rows", ROUTES)
def test_routes(device: torch.device, q_rows: int, group: int, head_dim: int, rows: int, kv_format: str) -> None:
    """The plan names the kernel that runs; no other one does."""
    case = make_case([draft(30, q_rows)], group=group, head_dim=head_dim, kv_format=kv_format, device=device)
    name = f"verify_{kv_format}_d{head_dim}_r{rows}"
    assert case.plan().route == name
    counts = verify.library.launch_counts()
    case.run()
    after = verify.library.launch_counts()
    assert {kernel for kernel in after if after[kernel] != counts.get(kernel)} == {name, "verify_combine"}
