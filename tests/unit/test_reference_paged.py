"""Paged writes and gathers of the reference against a loop over single tokens."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from sm70_kernels import reference

FORMATS = ("e4m3", "e5m2", "fp16")
STALE = (-1, 2**31 - 1, -(2**31), 10**6)
UNTOUCHED = 777.0
UNIT: dict[str, Any] = {"k_scale": 1.0, "v_scale": 1.0, "kv_format": "e4m3"}
HEAD_DIM = 8

Layout = Callable[[torch.dtype, int, int, int], tuple[torch.Tensor, torch.Tensor]]


def separate(dtype: torch.dtype, pages: int, page: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (pages, page, heads, HEAD_DIM)
    return torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)


def nhd_pair(dtype: torch.dtype, pages: int, page: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = torch.zeros((pages, 2, page, heads, HEAD_DIM), dtype=dtype).unbind(1)
    return key, value


def hnd_pair(dtype: torch.dtype, pages: int, page: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    key, value = torch.zeros((pages, 2, heads, page, HEAD_DIM), dtype=dtype).unbind(1)
    return key.transpose(1, 2), value.transpose(1, 2)


def padded(dtype: torch.dtype, pages: int, page: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    pool = torch.zeros((2, pages, page, heads, HEAD_DIM + 8), dtype=dtype)[..., :HEAD_DIM]
    return pool[0], pool[1]


LAYOUTS = (separate, nhd_pair, hnd_pair, padded)


def storage(fmt: str) -> torch.dtype:
    return torch.float16 if fmt == "fp16" else torch.uint8


def fill_with_random_bits(cache: torch.Tensor, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if cache.dtype == torch.float16:
        bits = torch.randint(0, 65536, cache.shape, generator=generator)
        cache.copy_(bits.to(torch.int16).view(torch.float16))
    else:
        cache.copy_(torch.randint(0, 256, cache.shape, generator=generator).to(torch.uint8))


def random_block_table(lengths: list[int], page: int, pages: int, seed: int) -> torch.Tensor:
    """Give every row pages of its own in random order, and stale entries past its last live page."""
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(seed)).tolist()
    blocks = max(-(-length // page) for length in lengths) + len(STALE)
    rows = []
    for length in lengths:
        live = -(-length // page)
        rows.append([order.pop() for _ in range(live)] + [STALE[i % len(STALE)] for i in range(blocks - live)])
    return torch.tensor(rows, dtype=torch.int32)


def into(outputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"k_out": outputs[0], "v_out": outputs[1]}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("page", [16, 48, 784])
def test_gather_is_a_copy_of_live_tokens(page: int, fmt: str, layout: Layout) -> None:
    lengths = [0, 1, 15, 16, 17, page - 1, page, page + 1, 2 * page + 5] if page < 100 else [0, 17, page + 1]
    heads, pages = 2, 24
    key_cache, value_cache = layout(storage(fmt), pages, page, heads)
    fill_with_random_bits(key_cache, 1)
    fill_with_random_bits(value_cache, 2)
    block_table = random_block_table(lengths, page, pages, 3)
    out = [torch.full((len(lengths), 2 * page + 24, heads, HEAD_DIM), UNTOUCHED).half() for _ in range(2)]
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    reference.gather_paged_kv(
        key_cache, value_cache, block_table, seq_lens, k_scale=1.0, v_scale=0.3, kv_format=fmt, **into(out)
    )

    for cache, scale, gathered in ((key_cache, 1.0, out[0]), (value_cache, 0.3, out[1])):
        values, table = reference.dequantize_fp16(cache, scale, fmt), block_table.tolist()
        expected = torch.full_like(gathered, UNTOUCHED)
        for row, length in enumerate(lengths):
            for token in range(length):
                expected[row, token] = values[table[row][token // page], token % page]
            for token in range(length, min(-(-length // 16) * 16, gathered.shape[1])):
                expected[row, token] = 0.0
        reference.compare_bitwise(gathered, expected, f"gather {fmt} page {page}")


def test_zero_padding_stops_at_the_end_of_the_output() -> None:
    key_cache, value_cache = separate(torch.uint8, 2, 16, 1)
    out = [torch.full((2, 9, 1, HEAD_DIM), UNTOUCHED).half() for _ in range(2)]
    block_table, seq_lens = (
        torch.tensor([[1], [0]], dtype=torch.int32),
        torch.tensor([9, 3], dtype=torch.int32),
    )
    reference.gather_paged_kv(key_cache, value_cache, block_table, seq_lens, **UNIT, **into(out))
    assert bool((out[0] == 0).all())
    assert bool((out[1] == 0).all())


def test_unit_scale_is_exact_and_keeps_nan() -> None:
    key_cache, value_cache = separate(torch.uint8, 2, 16, 1)
    key_cache.copy_(torch.arange(256, dtype=torch.uint8).reshape(2, 16, 1, HEAD_DIM))
    out = [torch.empty((1, 32, 1, HEAD_DIM), dtype=torch.float16) for _ in range(2)]
    block_table, seq_lens = torch.tensor([[0, 1]], dtype=torch.int32), torch.tensor([32], dtype=torch.int32)
    reference.gather_paged_kv(key_cache, value_cache, block_table, seq_lens, **UNIT, **into(out))
    expected = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).double()
    torch.testing.assert_close(out[0].flatten().double(), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("out_page", [16, 48, 80])
def test_gather_into_pages_is_the_contiguous_gather_cut_up(out_page: int) -> None:
    lengths, page, pages, out_pages = [0, 1, 47, 48, 49, 130], 48, 12, 32
    key_cache, value_cache = nhd_pair(torch.uint8, pages, page, 2)
    fill_with_random_bits(key_cache, 1)
    fill_with_random_bits(value_cache, 2)
    block_table = random_block_table(lengths, page, pages, 3)
    out_block_table = random_block_table(lengths, out_page, out_pages, 4)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    dense = [torch.full((len(lengths), 192, 2, HEAD_DIM), UNTOUCHED).half() for _ in range(2)]
    paged = [torch.full((out_pages, out_page, 2, HEAD_DIM), UNTOUCHED).half() for _ in range(2)]
    inputs = (key_cache, value_cache, block_table, seq_lens)
    kinds: dict[str, Any] = {"k_scale": 2.5, "v_scale": 1.0, "kv_format": "e4m3"}
    reference.gather_paged_kv(*inputs, **kinds, **into(dense))
    reference.gather_paged_kv(*inputs, **kinds, **into(paged), out_block_table=out_block_table)

    table = out_block_table.tolist()
    for contiguous, got in zip(dense, paged, strict=True):
        expected = torch.full_like(got, UNTOUCHED)
        for row, length in enumerate(lengths):
            for token in range(-(-length // 16) * 16):
                expected[table[row][token // out_page], token % out_page] = contiguous[row, token]
        reference.compare_bitwise(got, expected, "paged gather")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("page", [16, 48, 784])
def test_write_quantises_each_token_into_its_slot(page: int, fmt: str, layout: Layout) -> None:
    tokens, heads, pages = 40, 2, 5
    generator = torch.Generator().manual_seed(0)
    k, v = (200 * torch.randn((2, tokens, heads, HEAD_DIM), generator=generator)).half().unbind(0)
    slots = torch.randperm(pages * page, generator=generator)[:tokens]
    slots[[0, 7, 39]] = -1
    key_cache, value_cache = layout(storage(fmt), pages, page, heads)
    fill_with_random_bits(key_cache, 1)
    fill_with_random_bits(value_cache, 2)
    expected = [key_cache.clone(), value_cache.clone()]
    for token, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[0][slot // page, slot % page] = reference.quantize(k[token], 0.7, fmt)
            expected[1][slot // page, slot % page] = reference.quantize(v[token], 3.0, fmt)
    reference.write_paged_kv(
        k, v, key_cache, value_cache, slots, k_scale=torch.tensor([0.7]), v_scale=3.0, kv_format=fmt
    )
    reference.compare_bitwise(key_cache, expected[0], "key_cache")
    reference.compare_bitwise(value_cache, expected[1], "value_cache")


@pytest.mark.parametrize(("fmt", "dtype"), [("e4m3", torch.float8_e4m3fn), ("e5m2", torch.float8_e5m2)])
def test_float8_caches_are_the_same_bytes(fmt: str, dtype: torch.dtype) -> None:
    k = torch.randn((3, 2, HEAD_DIM), generator=torch.Generator().manual_seed(0)).half()
    slots = torch.tensor([5, -1, 40])
    kinds: dict[str, Any] = {"k_scale": 0.5, "v_scale": 1.0, "kv_format": fmt}
    results = []
    for cache_dtype in (torch.uint8, dtype):
        caches = [torch.zeros((3, 2, 16, 2, HEAD_DIM), dtype=torch.uint8).view(cache_dtype) for _ in range(2)]
        key_cache, value_cache = caches[0][:, 0], caches[1][:, 1]
        reference.write_paged_kv(k, -k, key_cache, value_cache, slots, **kinds)
        out = [torch.empty((1, 48, 2, HEAD_DIM), dtype=torch.float16) for _ in range(2)]
        table, seq_lens = torch.tensor([[2, 0, 1]], dtype=torch.int32), torch.tensor([48], dtype=torch.int32)
        reference.gather_paged_kv(key_cache, value_cache, table, seq_lens, **kinds, **into(out))
        results.append(torch.cat(out))
    assert bool(results[0].any())
    reference.compare_bitwise(results[1], results[0], "float8 cache")


def test_write_then_gather_returns_what_fp8_can_hold() -> None:
    values = reference.decode_table("e4m3")[:0x7F].half()[: 15 * HEAD_DIM].reshape(15, 1, HEAD_DIM)
    key_cache, value_cache = separate(torch.uint8, 1, 16, 1)
    reference.write_paged_kv(values, -values, key_cache, value_cache, torch.arange(15), **UNIT)
    out = [torch.empty((1, 16, 1, HEAD_DIM), dtype=torch.float16) for _ in range(2)]
    table, seq_lens = torch.zeros((1, 1), dtype=torch.int32), torch.tensor([15], dtype=torch.int32)
    reference.gather_paged_kv(key_cache, value_cache, table, seq_lens, **UNIT, **into(out))
    reference.compare_bitwise(out[0][0, :15], values, "K")
    reference.compare_bitwise(out[1][0, :15], -values, "V")


def write_arguments() -> dict[str, object]:
    key_cache, value_cache = separate(torch.uint8, 2, 16, 1)
    k = torch.ones((2, 1, HEAD_DIM), dtype=torch.float16)
    return {
        "k": k,
        "v": k.clone(),
        "key_cache": key_cache,
        "value_cache": value_cache,
        "slot_mapping": torch.tensor([3, 9]),
        "k_scale": 1.0,
        "v_scale": 1.0,
        "kv_format": "e4m3",
    }


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("k", torch.ones((2, 1, HEAD_DIM))),
        ("v", torch.ones((3, 1, HEAD_DIM), dtype=torch.float16)),
        ("key_cache", torch.zeros((2, 24, 1, HEAD_DIM), dtype=torch.uint8)),
        ("value_cache", torch.zeros((2, 32, 1, HEAD_DIM), dtype=torch.uint8)),
        ("value_cache", torch.zeros((2, 16, 1, HEAD_DIM), dtype=torch.float16)),
        ("slot_mapping", torch.tensor([3, 9], dtype=torch.int32)),
        ("slot_mapping", torch.tensor([3, 32])),
        ("slot_mapping", torch.tensor([3, -2])),
        ("slot_mapping", torch.tensor([3, 3])),
        ("k_scale", 0.0),
        ("v_scale", math.nan),
        ("kv_format", "fp4"),
    ],
)
def test_a_refused_write_names_the_argument_and_writes_nothing(argument: str, value: object) -> None:
    arguments = write_arguments() | {argument: value}
    caches = [arguments["key_cache"], arguments["value_cache"]]
    with pytest.raises(ValueError, match=rf"^{argument}.*: got .*; wanted "):
        reference.write_paged_kv(**arguments)  # type: ignore[arg-type]
    assert not any(bool(cache.any()) for cache in caches if isinstance(cache, torch.Tensor))


def gather_arguments() -> dict[str, object]:
    key_cache, value_cache = separate(torch.uint8, 4, 16, 1)
    out = torch.full((2, 48, 1, HEAD_DIM), UNTOUCHED).half()
    return {
        "key_cache": key_cache,
        "value_cache": value_cache,
        "block_table": torch.tensor([[0, 1, -1], [2, 3, 99]], dtype=torch.int32),
        "seq_lens": torch.tensor([17, 32], dtype=torch.int32),
        "k_scale": 1.0,
        "v_scale": 1.0,
        "kv_format": "e4m3",
        "k_out": out,
        "v_out": out.clone(),
    }


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("block_table", {"block_table": torch.tensor([[0, 1], [2, 3]])}),
        ("block_table", {"block_table": torch.tensor([[0], [2]], dtype=torch.int32)}),
        ("block_table", {"block_table": torch.tensor([[0, -1], [2, 3]], dtype=torch.int32)}),
        ("block_table", {"block_table": torch.tensor([[0, 1], [2, 4]], dtype=torch.int32)}),
        ("seq_lens", {"seq_lens": torch.tensor([17, 32])}),
        ("seq_lens", {"seq_lens": torch.tensor([17, -1], dtype=torch.int32)}),
        ("seq_lens", {"seq_lens": torch.tensor([17, 49], dtype=torch.int32)}),
        ("seq_lens", {"seq_lens": torch.tensor([17], dtype=torch.int32)}),
        ("v_scale", {"v_scale": -2.0}),
        ("v_out", {"v_out": torch.full((2, 32, 1, HEAD_DIM), UNTOUCHED).half()}),
        ("k_out", {"k_out": torch.full((2, 48, 1, HEAD_DIM), UNTOUCHED)}),
        ("out_block_table", {"out_block_table": torch.tensor([[0], [0]], dtype=torch.int32)}),
        ("out_block_table", {"out_block_table": torch.tensor([[0], [2]], dtype=torch.int32)}),
        ("seq_lens", {"out_block_table": torch.zeros((2, 0), dtype=torch.int32)}),
    ],
)
def test_a_refused_gather_names_the_argument_and_writes_nothing(argument: str, changes: dict[str, object]) -> None:
    arguments = gather_arguments() | changes
    with pytest.raises(ValueError, match=rf"^{argument}.*: got .*; wanted "):
        reference.gather_paged_kv(**arguments)  # type: ignore[arg-type]
    for out in (arguments["k_out"], arguments["v_out"]):
        assert isinstance(out, torch.Tensor)
        assert bool((out == UNTOUCHED).all())


def test_an_empty_batch_and_an_empty_output_are_served() -> None:
    key_cache, value_cache = separate(torch.uint8, 1, 16, 1)
    for rows in (0, 2):
        out = [torch.empty((rows, 0, 1, HEAD_DIM), dtype=torch.float16) for _ in range(2)]
        table, seq_lens = torch.full((rows, 1), -1, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
        reference.gather_paged_kv(key_cache, value_cache, table, seq_lens, **UNIT, **into(out))
