"""Ragged batches, and prefill over a paged cache: one gather, then the same kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sm70_kernels.ops import kv_cache, prefill
from sm70_kernels.reference import dequantize_fp16
from tests.ops.kv_cases import FORMATS, fill_live, make_cache, make_rows
from tests.ops.prefill_cases import Case, Result, check, check_accuracy, check_same_bits, launched, make_case, normals

NAN = float("nan")
BATCHES = {
    "mixed": [(3, 3), (1, 300), (40, 300), (5, 129), (130, 140)],
    "empty ones between": [(0, 0), (7, 90), (0, 50), (0, 0), (20, 20), (0, 0)],
    "only empty ones": [(0, 0), (0, 0)],
    "none": [],
    "one": [(33, 77)],
}


@pytest.mark.parametrize("kv_heads,head_dim", [(1, 256), (3, 64)])
@pytest.mark.parametrize("lengths", BATCHES.values(), ids=BATCHES)
def test_ragged_batches(device: torch.device, lengths: list[tuple[int, int]], kv_heads: int, head_dim: int) -> None:
    case = make_case(lengths, group=2, kv_heads=kv_heads, head_dim=head_dim, device=device)
    if sum(queries for queries, _ in lengths) == 0:
        assert case.run().out.numel() == 0
        return
    check(case)
    check(case.but(causal=False))


def test_sequences_without_keys_among_others(device: torch.device) -> None:
    """Without a causal mask a sequence may have queries and no keys: zeros, and lse -inf."""
    result = check(make_case([(9, 0), (5, 200), (30, 0)], head_dim=64, causal=False, device=device))
    assert not result.out[:9].view(torch.int16).any() and not result.out[14:].view(torch.int16).any()


def test_more_queries_than_keys_without_a_causal_mask(device: torch.device) -> None:
    check(make_case([(60, 5), (140, 129)], head_dim=64, causal=False, device=device))
    check(make_case((60, 5), head_dim=64, causal=False, device=device))


def test_tokens_of_no_sequence_are_not_written(device: torch.device) -> None:
    """Offsets need neither start at 0 nor end at the last token."""
    case = make_case((30, 60), head_dim=64, device=device)
    offsets = [torch.tensor(of, dtype=torch.int32, device=device) for of in ([4, 20], [10, 50])]
    result = case.new_result()
    prefill.prefill(
        case.q,
        case.k,
        case.v,
        cu_seqlens_q=offsets[0],
        cu_seqlens_k=offsets[1],
        max_seqlen_q=16,
        max_seqlen_k=40,
        out=result.out,
        lse=result.lse,
    )
    for tensor in result:
        assert bool(tensor[:4].isnan().all()) and bool(tensor[20:].isnan().all())
    expected = Case(case.q[4:20], case.k[10:50], case.v[10:50]).run()
    check_same_bits(Result(result.out[4:20], result.lse[4:20]), expected)


def test_generous_maximum_lengths(device: torch.device) -> None:
    """``max_seqlen_q`` and ``max_seqlen_k`` bound the lengths; they need not be reached."""
    case = make_case([(5, 70), (20, 200)], head_dim=64, device=device)
    result = case.new_result()
    prefill.prefill(
        case.q, case.k, case.v, **case.ragged, max_seqlen_q=300, max_seqlen_k=5000, out=result.out, lse=result.lse
    )
    check_accuracy(result, case.exact())


def paged_case(
    device: torch.device, kv_format: str, lengths: list[tuple[int, int]], **shape: Any
) -> tuple[Case, dict[str, Any]]:
    """A ragged batch, and the same as arguments of ``prefill_paged``: NaN in every byte of no token."""
    page, heads, dim = 48, shape.get("kv_heads", 1), shape.get("head_dim", 64)
    pages = sum(-(-keys // page) for _, keys in lengths) + 1
    rows = make_rows([keys for _, keys in lengths], page, pages, device, max_tokens=max(k for _, k in lengths) + page)
    caches = make_cache("unbind", (pages, page, heads, dim), kv_format, device)
    dense: list[torch.Tensor] = []
    for number, cache in enumerate(caches):
        fill_live(cache, rows, kv_format, number)
        typed = cache.view({"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16}[kv_format])
        parts = []
        for row, (_, keys) in enumerate(lengths):
            for block in range(-(-keys // page)):
                live = min(page, keys - block * page)
                target = typed[int(rows.block_table[row, block]), :live]
                target.copy_(normals(tuple(target.shape), device, 100 * row + 2 * block + number).to(typed.dtype))
                parts.append(dequantize_fp16(target.view(cache.dtype), 1.0, kv_format))
        dense.append(torch.cat(parts))
    queries = sum(pair[0] for pair in lengths)
    q = normals((queries, 3 * heads, dim), device, 7)
    case = Case(q, dense[0], dense[1], lengths)
    arguments = {"q": q, "key_cache": caches[0], "value_cache": caches[1], "block_table": rows.block_table,
                 "seq_lens": rows.seq_lens, "kv_format": kv_format}  # fmt: skip
    return case, arguments


@pytest.mark.parametrize("kv_format", FORMATS)
def test_prefill_over_pages(device: torch.device, kv_format: str) -> None:
    """Several sequences: one gather, one prefill, the result of the same keys laid out without pages."""
    lengths = [(5, 100), (0, 48), (20, 20), (7, 150)]
    case, arguments = paged_case(device, kv_format, lengths, kv_heads=2)
    gathered = torch.full(prefill.gathered_shape(4, 160, 2, 64), NAN, dtype=torch.float16, device=device)
    result = case.new_result()
    route, counts = "prefill_d64_a16", kv_cache.library.launch_counts()
    before = launched(route)
    out = prefill.prefill_paged(
        **arguments,
        cu_seqlens_q=case.ragged["cu_seqlens_q"],
        max_seqlen_q=20,
        gathered=gathered,
        out=result.out,
        lse=result.lse,
    )
    assert out is result.out and launched(route) == before + 1
    after = kv_cache.library.launch_counts()
    assert [kernel for kernel in after if after[kernel] != counts.get(kernel)] == [f"kv_cache_gather_{kv_format}_x8"]
    check_accuracy(result, case.exact())
    assert gathered.numel() * 2 == prefill.gathered_bytes(4, 160, 2, 64)


def test_prefill_over_pages_of_one_sequence(device: torch.device) -> None:
    """The contract's shapes, and the bits of a prefill of the same keys."""
    case, arguments = paged_case(device, "fp16", [(20, 200)], head_dim=128)
    arguments["q"] = case.q[None]
    out = prefill.prefill_paged(**arguments, max_tokens=200)
    assert out.shape == (1, *case.q.shape)
    assert torch.equal(out[0], case.but(lengths=None).run().out)


def test_scales_of_a_paged_cache(device: torch.device) -> None:
    """A K scale is a softmax scale, a V scale multiplies the output: powers of two, exactly."""
    case, arguments = paged_case(device, "e4m3", [(20, 200)])
    expected = prefill.prefill_paged(**arguments, max_tokens=208, softmax_scale=0.25)
    scaled = prefill.prefill_paged(**arguments, max_tokens=208, k_scale=2.0, v_scale=4.0)
    on_device = [torch.tensor([scale], device=device) for scale in (2.0, 4.0)]
    for result in (scaled, prefill.prefill_paged(**arguments, k_scale=on_device[0], v_scale=on_device[1],
                                                 max_tokens=208)):  # fmt: skip
        normal = expected.abs() >= 2.0**-14
        assert torch.equal(result[normal], expected[normal] * 4)
    assert case.q.shape == expected.shape
