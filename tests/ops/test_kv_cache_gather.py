"""gather_paged_kv against the float64 reference, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import kv_cache
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops import marks
from tests.ops.kv_cases import (
    FORMATS,
    HEADS,
    LAYOUTS,
    SENTINEL,
    canonical_nan,
    empty_pool,
    fill_live,
    make_cache,
    make_rows,
)


def expected_gather(
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    lens: Tensor,
    scales: tuple[float, float],
    kv_format: str,
    shape: tuple[int, ...],
    out_table: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The reference's result in an output full of sentinels, on the CPU."""
    k, v = (torch.full(shape, SENTINEL, dtype=torch.float16) for _ in range(2))
    reference.paged.gather_paged_kv(
        caches[0].cpu(),
        caches[1].cpu(),
        table.cpu(),
        lens.cpu(),
        k_scale=scales[0],
        v_scale=scales[1],
        kv_format=kv_format,
        k_out=k,
        v_out=v,
        out_block_table=None if out_table is None else out_table.cpu(),
    )
    return k, v


def check_gather(
    caches: tuple[Tensor, Tensor],
    rows_table: Tensor,
    lens: Tensor,
    kv_format: str,
    shape: tuple[int, ...],
    scales: tuple[float, float] = (1.0, 1.0),
    out_table: Tensor | None = None,
) -> None:
    """Run the operator into sentinels and compare everything, untouched memory included."""
    device = caches[0].device
    k, v = (torch.full(shape, SENTINEL, dtype=torch.float16, device=device) for _ in range(2))
    kv_cache.gather_paged_kv(
        *caches,
        rows_table,
        lens,
        k_scale=scales[0],
        v_scale=scales[1],
        kv_format=kv_format,
        k_out=k,
        v_out=v,
        out_block_table=out_table,
    )
    expected = expected_gather(caches, rows_table, lens, scales, kv_format, shape, out_table)
    compare_bitwise(canonical_nan(k.cpu()), canonical_nan(expected[0]), "k_out")
    compare_bitwise(canonical_nan(v.cpu()), canonical_nan(expected[1]), "v_out")


@pytest.mark.memcheck
@pytest.mark.parametrize("scale", [1.0, 0.3371, 3.0e-38, 1.0e30])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_every_stored_value(device: torch.device, kv_format: str, scale: float) -> None:
    values = 65536 if kv_format == "fp16" else 256
    tokens = max(16, values // 256)
    codes = torch.arange(tokens * 256) % values
    stored = codes.to(torch.int16).view(torch.float16) if kv_format == "fp16" else codes.to(torch.uint8)
    key = stored.view(tokens // 16, 16, 1, 256).to(device)
    table = torch.arange(tokens // 16, dtype=torch.int32, device=device)[None]
    lens = torch.tensor([tokens], dtype=torch.int32, device=device)
    check_gather((key, key.flip(3).contiguous()), table, lens, kv_format, (1, tokens, 1, 256), (scale, 1 / scale))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float16])
def test_typed_cache_names_its_format(device: torch.device, dtype: torch.dtype) -> None:
    cache = torch.randn(2, 16, 1, 64).to(dtype).to(device)
    table = torch.tensor([[1, 0]], dtype=torch.int32, device=device)
    lens = torch.tensor([20], dtype=torch.int32, device=device)
    k, _ = kv_cache.gather_paged_kv(cache, cache, table, lens, max_tokens=32)
    assert torch.equal(k[0, :16].float(), cache[1].float()) and torch.equal(k[0, 16:20].float(), cache[0, :4].float())


@pytest.mark.parametrize("heads,dim", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_layouts(device: torch.device, kv_format: str, layout: str, heads: int, dim: int) -> None:
    page, pages = 48, 9
    caches = make_cache(layout, (pages, page, heads, dim), kv_format, device)
    rows = make_rows([100, 0, 17, 96], page, pages, device, max_tokens=160)
    fill_live(caches[0], rows, kv_format, 1)
    fill_live(caches[1], rows, kv_format, 2)
    check_gather(caches, rows.block_table, rows.seq_lens, kv_format, (4, 112, heads, dim), (0.5, 1.75))


ROUTES = [
    ("e4m3", "contiguous", 256, 8), ("e4m3", "token_stride_264", 256, 8), ("e4m3", "offset_8", 256, 8),
    ("e4m3", "offset_1", 256, 1), ("e5m2", "contiguous", 20, 1), ("e5m2", "contiguous", 40, 8),
    ("fp16", "contiguous", 256, 8), ("fp16", "offset_8", 256, 8), ("fp16", "offset_1", 256, 1),
]  # fmt: skip


@pytest.mark.parametrize("kv_format,layout,dim,width", ROUTES)
def test_route_is_the_widest_that_the_layout_allows(
    device: torch.device, kv_format: str, layout: str, dim: int, width: int
) -> None:
    kernel = f"kv_cache_gather_{kv_format}_x{width}"
    before = sum(kv_cache.library.launch_counts().get(kernel, {}).values())
    caches = make_cache(layout, (2, 16, 1, dim), kv_format, device)
    marks.clean(*caches)  # its poison is what is gathered
    rows = make_rows([16], 16, 2, device, max_tokens=32)
    kv_cache.gather_paged_kv(*caches, rows.block_table, rows.seq_lens, kv_format=kv_format, max_tokens=16)
    assert sum(kv_cache.library.launch_counts()[kernel].values()) == before + 1


LENGTHS = [0, 1, 2, 3, 15, 16, 17, 31, 63, 65, 127, 128, 129, 255, 256, 257, 783, 784, 785, 1567, 1568, 2925, 4130]
LONG_LENGTHS = [32767, 32768, 32769, 65535, 65537]


@pytest.mark.parametrize("length", [*LENGTHS, *LONG_LENGTHS])
@pytest.mark.parametrize("page", [16, 784, 1568])
def test_lengths(device: torch.device, page: int, length: int) -> None:
    # Heads of 16 elements keep the long rows small: the length arithmetic is the same for every width.
    pages = -(-length // page) + 1
    caches = make_cache("contiguous", (pages, page, 1, 16), "e4m3", device)
    rows = make_rows([length], page, pages, device, max_tokens=length + page)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    check_gather(caches, rows.block_table, rows.seq_lens, "e4m3", (1, max(length, 1) + 33, 1, 16))


@pytest.mark.parametrize("tokens", [1, 15, 17, 100])
def test_output_that_ends_inside_a_tile(device: torch.device, tokens: int) -> None:
    caches = make_cache("contiguous", (8, 16, 1, 64), "e4m3", device)
    rows = make_rows([tokens], 16, 8, device, max_tokens=112)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    check_gather(caches, rows.block_table, rows.seq_lens, "e4m3", (1, tokens, 1, 64))


@pytest.mark.memcheck
@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
@pytest.mark.parametrize("page,out_page", [(16, 48), (848, 16), (784, 784)])
def test_paged_output(device: torch.device, page: int, out_page: int, order: str) -> None:
    lengths = [900, 1, 0, 783, 64]
    pages, out_pages = sum(-(-n // page) for n in lengths), sum(-(-n // out_page) for n in lengths) + 3
    caches = make_cache("contiguous", (pages, page, 1, 64), "e4m3", device)
    rows = make_rows(lengths, page, pages, device, max_tokens=1000, order=order)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    out_rows = make_rows(lengths, out_page, out_pages, device, max_tokens=1000, seed=7, order=order)
    shape = (out_pages, out_page, 1, 64)
    check_gather(caches, rows.block_table, rows.seq_lens, "e4m3", shape, out_table=out_rows.block_table)


def test_large_batch_of_mixed_lengths(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(0, 200, (300,), generator=generator).tolist()
    lengths[17] = 5000  # one long row among short ones
    pages = sum(-(-n // 32) for n in lengths)
    caches = make_cache("contiguous", (pages, 32, 1, 16), "e4m3", device)
    rows = make_rows(lengths, 32, pages, device, max_tokens=5024)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    check_gather(caches, rows.block_table, rows.seq_lens, "e4m3", (300, 5008, 1, 16))


def test_strided_tables_and_outputs(device: torch.device) -> None:
    caches = make_cache("contiguous", (6, 16, 2, 64), "e4m3", device)
    rows = make_rows([40, 33], 16, 6, device, max_tokens=64)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    table = torch.full((2, 9), -1, dtype=torch.int32, device=device)
    table[:, 2:6] = rows.block_table[:, :4]
    lens = torch.stack([rows.seq_lens, rows.seq_lens * 1000], dim=1)[:, 0]
    outputs = [torch.full((2, 2, 60, 72), SENTINEL, dtype=torch.float16, device=device) for _ in range(2)]
    views = [out.permute(0, 2, 1, 3)[..., 8:] for out in outputs]
    kv_cache.gather_paged_kv(*caches, table[:, 2:6], lens, kv_format="e4m3", k_out=views[0], v_out=views[1])
    expected = expected_gather(caches, rows.block_table, rows.seq_lens, (1.0, 1.0), "e4m3", (2, 60, 2, 64))
    for view, out, want in zip(views, outputs, expected, strict=True):
        compare_bitwise(canonical_nan(view.cpu()), canonical_nan(want))
        assert bool((out[..., :8] == SENTINEL).all()), "written beside a strided output"


def test_device_scales_and_poison_stay_apart(device: torch.device) -> None:
    caches = make_cache("contiguous", (4, 16, 1, 64), "e4m3", device)
    rows = make_rows([19], 16, 4, device, max_tokens=64)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    scale = torch.tensor([0.25], device=device)
    outputs = kv_cache.gather_paged_kv(
        *caches, rows.block_table, rows.seq_lens, k_scale=scale, v_scale=scale * 2, kv_format="fp8", max_tokens=32
    )
    expected = expected_gather(caches, rows.block_table, rows.seq_lens, (0.25, 0.5), "e4m3", (1, 32, 1, 64))
    for got, want in zip(outputs, expected, strict=True):
        compare_bitwise(canonical_nan(got.cpu()), canonical_nan(want))


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_device_scale_gives_nan(device: torch.device, bad: float) -> None:
    cache = torch.zeros(1, 16, 1, 64, dtype=torch.uint8, device=device)
    table = torch.zeros(1, 1, dtype=torch.int32, device=device)
    lens = torch.tensor([16], dtype=torch.int32, device=device)
    scale = torch.tensor(bad, device=device)
    k, v = kv_cache.gather_paged_kv(cache, cache, table, lens, k_scale=scale, kv_format="e4m3", max_tokens=16)
    assert bool(k.isnan().all()) and bool((v == 0).all())


def test_no_rows_and_no_tokens(device: torch.device) -> None:
    cache = torch.zeros(1, 16, 1, 64, dtype=torch.uint8, device=device)
    for batch, tokens in ((0, 16), (2, 0)):
        table = torch.zeros(batch, 1, dtype=torch.int32, device=device)
        lens = torch.zeros(batch, dtype=torch.int32, device=device)
        k, _ = kv_cache.gather_paged_kv(cache, cache, table, lens, kv_format="e4m3", max_tokens=tokens)
        assert k.shape == (batch, tokens, 1, 64)


def test_pool_beyond_2_31_elements(device: torch.device) -> None:
    page, pages = 1568, 5351  # 2^31 bytes and one page more
    pool = empty_pool((pages, page, 1, 256), device)
    assert pool.numel() > 2**31
    rows = make_rows([1600], page, pages, device, max_tokens=2 * page, order="descending")
    fill_live(pool, rows, "e4m3", 5)
    k, v = kv_cache.gather_paged_kv(pool, pool, rows.block_table, rows.seq_lens, kv_format="e4m3", max_tokens=1600)
    top = pool[[pages - 1, pages - 2]].cpu()
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    expected = expected_gather((top, top), table, rows.seq_lens, (1.0, 1.0), "e4m3", (1, 1600, 1, 256))
    compare_bitwise(canonical_nan(k.cpu()), canonical_nan(expected[0]))
    compare_bitwise(canonical_nan(v.cpu()), canonical_nan(expected[1]))
