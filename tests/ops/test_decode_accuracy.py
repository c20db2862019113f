"""The numbers of decode: distances from float64 and between the variants, and what no data may do to them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.lab import emulator
from tests.ops.decode_cases import (
    FORMATS,
    LEAF,
    VARIANTS,
    Case,
    check,
    check_accuracy,
    check_same_bits,
    check_variants,
    make_case,
)
from tests.ops.kv_cases import canonical_nan, random_bytes


def stored(values: Tensor, like: Tensor, kv_format: str) -> Tensor:
    """Values as a cache of this format holds them."""
    return reference.quantize(values.half(), 1.0, kv_format).view(like.dtype).to(like.device)


def fill_live(case: Case, cache: Tensor, values: Tensor) -> None:
    """``values [tokens, Hkv, D]``, token ``t`` of each row, into the live tokens of every row."""
    page = cache.shape[1]
    codes = stored(values, cache, case.kv_format)
    for row, length in enumerate(case.seq_lens.tolist()):
        for first in range(0, length, page):
            live = min(page, length - first)
            cache[int(case.block_table[row, first // page]), :live] = codes[first : first + live]


@pytest.mark.parametrize("tensor_rounding", ["truncate", "nearest"])
def test_volta_truncation_costs_nothing(tensor_rounding: Any) -> None:
    """Truncating tensor cores, Volta's, and rounding ones, later GPUs': the same contract."""
    case = make_case([20000, 4111], page=800, group=16, head_dim=128, device=torch.device("cpu"))
    with emulator.enabled(tensor_rounding=tensor_rounding):
        check(case)


@pytest.mark.usefixtures("unwatched")
def test_every_stored_value_as_a_value(device: torch.device) -> None:
    """One key has weight 1, so the output is V: all 256 bytes, or 65536 halves."""
    for kv_format in FORMATS:
        rows = 256 if kv_format == "fp16" else 1
        case = make_case([1] * rows, kv_format=kv_format, group=2, device=device)
        codes = torch.arange(rows * 256, device=device)
        values = (codes.to(torch.int16) if kv_format == "fp16" else codes.to(torch.uint8)).view(case.value_cache.dtype)
        pages = case.block_table[:, 0].long()
        case.value_cache[pages, 0, 0] = values.view(rows, 256)
        exact = reference.dequantize_fp16(values, 1.0, kv_format).view(rows, 1, 256).expand(rows, 2, 256)
        for variant in VARIANTS:
            out = case.run(variant).out
            if kv_format == "e4m3":  # a NaN byte may make NaN of the whole row: contract
                assert bool(out.isnan().all())
                continue
            finite = exact.isfinite()
            assert torch.equal(out[finite], exact[finite])
            assert bool(out[exact.isnan()].isnan().all())


@pytest.mark.usefixtures("unwatched")
def test_every_e4m3_value_that_is_a_number(device: torch.device) -> None:
    case = make_case([1], group=2, device=device)
    codes = torch.arange(256, device=device).to(torch.uint8)
    codes[[0x7F, 0xFF]] = 0
    case.value_cache[case.block_table[0, 0].long(), 0, 0] = codes
    exact = reference.dequantize_fp16(codes, 1.0, "e4m3").expand(1, 2, 256)
    for variant in VARIANTS:
        assert torch.equal(case.run(variant).out, exact)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
def test_every_stored_value_as_a_key(device: torch.device, kv_format: str) -> None:
    """Scores of any finite byte, single elements and whole random rows; FP16 keys up to 448 here."""
    case = make_case([700, 33], group=8, head_dim=128, kv_format=kv_format, device=device, seed=3)
    for row, length in enumerate(case.seq_lens.tolist()):
        for first in range(0, length, 16):
            target = case.key_cache[int(case.block_table[row, first // 16]), : min(16, length - first)]
            codes = random_bytes(target, kv_format, first)
            values = reference.dequantize(codes, 1.0, kv_format)
            target.copy_(torch.where(values.abs() <= 448.0, codes, torch.zeros_like(codes)))
    scale = 2.0**-9  # |score| = 448 sqrt(128) |q| 2^-9, about 10
    check(case.but(softmax_scale=scale), largest_score=60.0)


MEANS = {"V + 8": (1.0, 8.0), "V x 64": (64.0, 0.0), "V - 100": (0.25, -100.0)}


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("factor,offset", MEANS.values(), ids=MEANS.keys())
@pytest.mark.parametrize("kv_format", FORMATS)
def test_values_of_large_mean_or_size(device: torch.device, kv_format: str, factor: float, offset: float) -> None:
    case = make_case([3000, 500], kv_format=kv_format, head_dim=128, page=48, device=device)
    values = torch.randn(3000, 1, 128, generator=torch.Generator().manual_seed(8)) * factor + offset
    fill_live(case, case.value_cache, values)
    check(case, value_size=factor + abs(offset))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("constant", [0.0, 1.0, -0.8125, 448.0, 2.0**-9])
@pytest.mark.parametrize("kv_format", ["e4m3", "fp16"])
def test_a_constant_v_gives_that_constant(device: torch.device, kv_format: str, constant: float) -> None:
    """The weights sum to 1 to within FP32: no bias is left for FP16 to see."""
    lengths = [1, 100, LEAF + 1, 5000]
    case = make_case(lengths, kv_format=kv_format, device=device, page=784)
    fill_live(case, case.value_cache, torch.full((5000, 1, 256), constant))
    for variant in VARIANTS:
        assert bool((case.run(variant).out == constant).all())
        # Scores far apart, and scores all equal.
        assert bool((case.but(softmax_scale=4.0).run(variant).out == constant).all())
        assert bool((case.but(softmax_scale=1e-30).run(variant).out == constant).all())


def spike_tokens() -> list[int]:
    """Every place in a leaf, and the same places further on, at other nodes of the tree."""
    return [*range(LEAF), *range(3 * LEAF, 4 * LEAF, 7), *range(6 * LEAF, 6 * LEAF + 40)]


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_key_above_all_others_at_every_place(device: torch.device, variant: str) -> None:
    """The spike has all the weight: the output is its V, whichever lane, tile, page and leaf it is in."""
    tokens = spike_tokens()
    length = 6 * LEAF + 40
    case = make_case([length], head_dim=64, group=2, device=device, seed=2)
    rows = len(tokens)
    q = torch.zeros(rows, 2, 64, dtype=torch.float16, device=device)
    q[:, :, 0] = 1.0
    # Key t is e_0 * 448 when it is the row's spike, else 0: rows are requests of one table with their own pages.
    key, value = (cache[case.block_table[0, : -(-length // 16)].long()].clone() for cache in case.caches)
    key.zero_()
    keys = key.repeat(rows, 1, 1, 1).view(rows, -1, 1, 64)
    top = stored(torch.tensor([448.0]), key, "e4m3")[0]
    keys[torch.arange(rows), torch.tensor(tokens), 0, 0] = top
    blocks = key.shape[0]
    table = torch.arange(rows * blocks, dtype=torch.int32, device=device).view(rows, blocks)
    spiked = Case(
        q,
        keys.view(-1, 16, 1, 64),
        value.repeat(rows, 1, 1, 1),
        table,
        torch.full((rows,), length, dtype=torch.int32, device=device),
        "e4m3",
        softmax_scale=0.25,
    )
    out = spiked.run(variant).out
    expected = reference.dequantize_fp16(value.view(-1, 64)[torch.tensor(tokens)], 1.0, "e4m3")
    assert torch.equal(out, expected[:, None].expand(rows, 2, 64))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_one_value_among_zeros_at_every_place(device: torch.device, variant: str) -> None:
    """Equal weights and one V of 256 at token t, dimension t % 64: 256 / length there, and zeros elsewhere."""
    length = 4 * LEAF + 3
    tokens = [*range(LEAF), *range(3 * LEAF + 1, length)]
    rows, blocks = len(tokens), -(-length // 16)
    values = torch.zeros(rows, blocks * 16, 1, 64)
    values[torch.arange(rows), torch.tensor(tokens), 0, torch.tensor(tokens) % 64] = 256.0
    shape = (rows * blocks, 16, 1, 64)
    key = torch.zeros(shape, dtype=torch.uint8, device=device)
    value = stored(values.view(shape), key, "e4m3")
    table = torch.arange(rows * blocks, dtype=torch.int32, device=device).view(rows, blocks)
    lengths = torch.full((rows,), length, dtype=torch.int32, device=device)
    q = torch.ones(rows, 3, 64, dtype=torch.float16, device=device)
    result = Case(q, key, value, table, lengths, "e4m3").run(variant)
    expected = torch.zeros(rows, 3, 64, dtype=torch.float16)
    expected[torch.arange(rows), :, torch.tensor(tokens) % 64] = 256.0 / length
    assert torch.equal(result.out.cpu(), expected)
    assert float((result.lse.cpu() - math.log(length)).abs().max()) < 1e-6


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format,largest", [("e4m3", 448.0), ("fp16", 60000.0)])
def test_scores_beyond_fp16_stay_finite(device: torch.device, kv_format: str, largest: float) -> None:
    """Q.K up to 1e9, of both signs: nothing between is FP16."""
    case = make_case([400, 77], kv_format=kv_format, head_dim=64, group=4, device=device)
    generator = torch.Generator().manual_seed(4)
    keys = torch.where(torch.rand(400, 1, 64, generator=generator) < 0.5, -largest, largest)
    fill_live(case, case.key_cache, keys)
    q = torch.where(torch.rand(2, 4, 64, generator=generator) < 0.5, -1000.0, 1000.0).half().to(device)
    large = case.but(q=q, softmax_scale=1.0)
    exact = large.exact()
    assert float(exact.lse.max()) > 65504.0
    for variant in VARIANTS:
        result = large.run(variant)
        assert bool(result.out.isfinite().all()) and bool(result.lse.isfinite().all())
    # Scores are whole multiples of 1000 * largest, exact in FP32 up to the softmax scale: so far apart that the weights
    # are 0 and 1, or ties. Scaled down to 1e5, the error of a score shows in the weights, and is bounded.
    scale = 1e5 / float(exact.lse.max())
    check(large.but(softmax_scale=scale), largest_score=1e5)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("k_scale,v_scale", [(0.0371, 1.93), (3.0, 0.004), (0.25, 100.0)])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_scales(device: torch.device, kv_format: str, k_scale: float, v_scale: float) -> None:
    case = make_case([513, 40], kv_format=kv_format, group=7, head_dim=64, kv_heads=2, device=device)
    host = check(case.but(k_scale=k_scale, v_scale=v_scale))
    tensors = [torch.tensor([scale], device=device) for scale in (k_scale, v_scale)]
    check_same_bits(case.but(k_scale=tensors[0], v_scale=tensors[1][0]).run(), host, "scales on the device:")


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("k_scale,v_scale", [(1e-30, 1e-4), (1e-8, 1.0), (1.2e-38, 1000.0)])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scales_that_make_all_weights_equal(device: torch.device, variant: str, k_scale: float, v_scale: float) -> None:
    case = make_case([513, 40, 3000], group=2, head_dim=64, device=device, scales=(k_scale, v_scale))
    check_accuracy(case.run(variant), case.exact())


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_softmax_scale_is_a_k_scale(device: torch.device, kv_format: str) -> None:
    """Powers of two are exact wherever they are multiplied in: the same bits."""
    case = make_case([300], kv_format=kv_format, head_dim=64, device=device, scales=(4.0, 1.0))
    check_same_bits(replace(case, k_scale=1.0, softmax_scale=0.5).run(), case.run())


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bad_device_scale_gives_nan(device: torch.device, bad: float, variant: str) -> None:
    """In every row that has keys, in one unit or several; rows without keys are zeros nevertheless."""
    case = make_case([40, 0, 4000], head_dim=64, group=2, device=device)
    scale = torch.tensor([bad], device=device)
    for changed in (case.but(k_scale=scale), case.but(v_scale=scale)):
        out = changed.run(variant).out
        assert bool(out[[0, 2]].isnan().all()) and not out[1].view(torch.int16).any()


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
def test_results_beyond_fp16_are_infinite(device: torch.device, variant: str) -> None:
    case = make_case([50], head_dim=64, group=2, device=device)
    fill_live(case, case.value_cache, torch.full((50, 1, 64), 448.0))
    assert bool((case.but(v_scale=1000.0).run(variant).out == math.inf).all())
    assert bool((case.but(v_scale=146.0).run(variant).out == 65408.0).all())


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("group", range(1, 17))
def test_group_sizes(device: torch.device, group: int) -> None:
    check(make_case([700, 19], group=group, kv_heads=2, head_dim=64, page=48, device=device, seed=group))


@pytest.mark.usefixtures("unwatched")
def test_a_quarter_of_a_million_keys(device: torch.device) -> None:
    """Rounding and truncation do not pile up along a row."""
    case = make_case([262144], page=1568, device=device)
    check_accuracy(case.run(), case.exact())


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("kv_format", FORMATS)
def test_variants_agree_at_32k(device: torch.device, kv_format: str) -> None:
    """Enough elements that half a percent of them is a number to rely on."""
    case = make_case([32768], kv_format=kv_format, group=16, kv_heads=2, head_dim=64, page=1568, device=device)
    check_variants(case.run("xqa"), case.run("scalar"))


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_nan_in_one_query_head_stays_there(device: torch.device, kv_format: str, variant: str) -> None:
    case = make_case([3000, 100], kv_format=kv_format, group=5, kv_heads=2, head_dim=64, device=device)
    clean = case.run(variant)
    q = case.q.clone()
    q[0, 3, 17] = math.nan
    spoilt = case.but(q=q).run(variant)
    assert bool(spoilt.out[0, 3].isnan().all()) and bool(spoilt.lse[0, 3].isnan())
    clean.out[0, 3], clean.lse[0, 3] = math.nan, math.nan
    assert torch.equal(canonical_nan(spoilt.out).view(torch.int16), canonical_nan(clean.out).view(torch.int16))
