"""write_paged_kv against the float64 reference, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import reference
from sm70_kernels.ops import kv_cache
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops.kv_cases import FORMATS, HEADS, LAYOUTS, canonical_nan, empty_pool, make_cache

SCALES = [1.0, 0.0123, 448.0, 1 / 448, 3.0, 2.0**-61, 2.0**61, 1.1754944e-38, 3.4e38, 1e-45]

#: Scales whose split reciprocal would round some FP16 input to the wrong side of a boundary (write_scale.h).
NOT_SPLIT = [1.7898305654525757, 1.0302332639694214]


def check_write(
    k: Tensor,
    v: Tensor,
    caches: tuple[Tensor, Tensor],
    slots: Tensor,
    kv_format: str,
    scales: tuple[float, float] = (1.0, 1.0),
) -> None:
    """Run the operator and compare the whole caches, untouched slots included."""
    expected = [cache.cpu().clone() for cache in caches]
    kinds: dict[str, Any] = {"k_scale": scales[0], "v_scale": scales[1], "kv_format": kv_format}
    reference.paged.write_paged_kv(k.cpu(), v.cpu(), *expected, slots.cpu(), **kinds)
    kv_cache.write_paged_kv(k, v, *caches, slots, **kinds)
    for got, want, name in zip(caches, expected, ("key_cache", "value_cache"), strict=True):
        if kv_format == "fp16":
            compare_bitwise(canonical_nan(got.cpu()), canonical_nan(want), name)
        else:
            compare_bitwise(got.cpu(), want, name)


def all_halves(device: torch.device) -> Tensor:
    """Every FP16 bit pattern, ``[256, 1, 256]``."""
    return torch.arange(65536).to(torch.int16).view(torch.float16).view(256, 1, 256).to(device)


@pytest.mark.parametrize("scale", [pytest.param(1.0, marks=pytest.mark.memcheck), *SCALES[1:]])
@pytest.mark.parametrize("kv_format", FORMATS)
def test_every_half(device: torch.device, kv_format: str, scale: float) -> None:
    k = all_halves(device)
    slots = torch.randperm(256, generator=torch.Generator().manual_seed(1)).to(device)
    caches = make_cache("contiguous", (16, 16, 1, 256), kv_format, device)
    other = SCALES[(SCALES.index(scale) + 1) % len(SCALES)]
    check_write(k, k.flip(2), caches, slots, kv_format, (scale, other))


def test_division_is_correctly_rounded_for_many_scales(device: torch.device) -> None:
    # The quotient's last bits decide ties of the second rounding: random and near-power-of-two scales.
    generator = torch.Generator().manual_seed(11)
    scales = [float(s) for s in torch.exp2(torch.rand(24, generator=generator) * 40 - 20).float()]
    scales += [float(torch.nextafter(torch.tensor(2.0**e), torch.tensor(d))) for e in (-3, 0, 5) for d in (0.0, 99.0)]
    scales += NOT_SPLIT
    k = all_halves(device)
    slots = torch.arange(256, device=device)
    for kv_format in FORMATS:
        caches = make_cache("contiguous", (16, 16, 1, 256), kv_format, device)
        for scale in scales:
            check_write(k, k, caches, slots, kv_format, (scale, 1 / scale))


@pytest.mark.parametrize("kv_format", FORMATS)
def test_device_scales_store_what_host_scales_do(device: torch.device, kv_format: str) -> None:
    k = all_halves(device)
    slots = torch.arange(256, device=device)
    for scale in (0.37, 1.0, *NOT_SPLIT, 1e-38, 3e38):
        host, on_device = (make_cache("contiguous", (16, 16, 1, 256), kv_format, device) for _ in range(2))
        kv_cache.write_paged_kv(k, k, *host, slots, k_scale=scale, v_scale=2.0, kv_format=kv_format)
        k_scale, v_scale = (torch.tensor([value], device=device) for value in (scale, 2.0))
        kv_cache.write_paged_kv(k, k, *on_device, slots, k_scale=k_scale, v_scale=v_scale, kv_format=kv_format)
        for got, want in zip(on_device, host, strict=True):
            compare_bitwise(got.cpu(), want.cpu(), f"scale {scale}")


@pytest.mark.parametrize("heads,dim", HEADS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_layouts(device: torch.device, kv_format: str, layout: str, heads: int, dim: int) -> None:
    caches = make_cache(layout, (5, 48, heads, dim), kv_format, device)
    generator = torch.Generator().manual_seed(2)
    k, v = (torch.randn(37, heads, dim, generator=generator).half().to(device) for _ in range(2))
    slots = torch.randperm(240, generator=generator)[:37]
    slots[::5] = -1
    check_write(k, v, caches, slots.to(device), kv_format, (0.7, 1.0))


@pytest.mark.parametrize("offset", [1, 4, 7, 8])
def test_misaligned_and_strided_inputs(device: torch.device, offset: int) -> None:
    tokens, heads, dim = 19, 2, 64
    flat = torch.randn(tokens * heads * (dim + 8) + 8, generator=torch.Generator().manual_seed(4)).half().to(device)
    k = flat[offset : offset + tokens * heads * (dim + 8)].view(tokens, heads, dim + 8)[..., :dim]
    v = flat[offset : offset + tokens * heads * dim].view(heads, tokens, dim).permute(1, 0, 2)
    slots = torch.stack([torch.arange(tokens) + 3, torch.full((tokens,), 10**12)], dim=1).to(device)[:, 0]
    caches = make_cache("contiguous", (3, 16, heads, dim), "e4m3", device)
    check_write(k, v, caches, slots, "e4m3")


def test_no_tokens_and_all_skipped(device: torch.device) -> None:
    caches = make_cache("contiguous", (2, 16, 1, 64), "e4m3", device)
    for tokens in (0, 5):
        k = torch.ones(tokens, 1, 64, dtype=torch.float16, device=device)
        slots = torch.full((tokens,), -1, dtype=torch.int64, device=device)
        check_write(k, k, caches, slots, "e4m3")


@pytest.mark.parametrize("bad", [0.0, -1.0, float("inf"), float("nan")])
def test_bad_device_scale_stores_nan(device: torch.device, bad: float) -> None:
    key, value = make_cache("contiguous", (1, 16, 1, 64), "e4m3", device)
    key.zero_(), value.zero_()
    k = torch.ones(16, 1, 64, dtype=torch.float16, device=device)
    slots = torch.arange(16, device=device)
    kv_cache.write_paged_kv(k, k, key, value, slots, v_scale=torch.tensor([bad], device=device), kv_format="fp8")
    assert bool((key == 0x38).all()) and bool((value == 0x7F).all())


def test_written_then_gathered(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(9)
    k = torch.randn(80, 2, 128, generator=generator).half().to(device)
    caches = make_cache("unbind", (5, 16, 2, 128), "fp16", device)
    slots = torch.randperm(80, generator=generator).to(device)
    kv_cache.write_paged_kv(k, -k, *caches, slots)
    table = torch.arange(5, dtype=torch.int32, device=device)[None]
    lens = torch.tensor([80], dtype=torch.int32, device=device)
    k_out, v_out = kv_cache.gather_paged_kv(*caches, table, lens, max_tokens=80)
    compare_bitwise(k_out[0][slots].cpu(), k.cpu())
    compare_bitwise(v_out[0][slots].cpu(), -k.cpu())


def test_slot_at_the_top_of_a_pool_beyond_2_31_elements(device: torch.device) -> None:
    page, pages = 1568, 5351
    pool = empty_pool((pages, page, 1, 256), device)
    around = pool[[0, 1, pages - 2, pages - 1]].clone()
    k = torch.randn(2, 1, 256, generator=torch.Generator().manual_seed(6)).half().to(device)
    slots = torch.tensor([pages * page - 1, 0], device=device)
    kv_cache.write_paged_kv(k, k, pool, pool, slots, kv_format="e4m3")
    expected = reference.fp8.quantize(k.cpu(), 1.0, "e4m3")
    around[3, -1], around[0, 0] = expected[0].to(device), expected[1].to(device)
    compare_bitwise(pool[[0, 1, pages - 2, pages - 1]].cpu(), around.cpu())
