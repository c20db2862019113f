"""Attention and state merging of the reference against torch's SDPA in float64 and direct formulas."""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from sm70_kernels import reference

TILE_EDGES = (0, 1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 128, 129)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Keep products of this size on one thread: on a busy machine, handing them out costs more than they do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Allow what float64 sums of a few thousand terms differ by when taken in another order."""
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-13)


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visible: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend with torch: ``q [Q, Hq, D]``, ``k``/``v`` ``[KV, Hkv, D]``, boolean ``visible [Q, KV]``."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1).transpose(0, 1) for x in (k, v))
    return scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=visible, scale=scale).transpose(0, 1)


def direct_lse(q: torch.Tensor, k: torch.Tensor, visible: torch.Tensor, scale: float) -> torch.Tensor:
    """Return ``ln sum exp`` of the visible scores, ``[Q, Hq]``."""
    group = q.shape[1] // k.shape[1]
    scores = scale * torch.einsum("qhd,khd->qhk", q, k.repeat_interleave(group, dim=1))
    return scores.masked_fill(~visible[:, None], -math.inf).logsumexp(dim=-1)


def paged_case(
    lengths: list[int], page: int, heads: int, head_dim: int, fmt: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make random caches as views of one pool, poison in every byte that no row owns, and a block table."""
    blocks = [-(-length // page) for length in lengths]
    pages = sum(blocks) + 2
    generator = torch.Generator().manual_seed(7)
    order = torch.randperm(pages, generator=generator).tolist()
    values = torch.randn((pages, 2, page, heads, head_dim), generator=generator)
    if fmt == "fp16":
        pool = values.half()
        live = torch.full_like(pool, math.nan)
    else:
        pool = reference.encode(values, fmt)
        live = torch.full_like(pool, 0x7F)
    table = []
    for length, count in zip(lengths, blocks, strict=True):
        ids = [order.pop() for _ in range(count)]
        for token in range(length):
            live[ids[token // page], :, token % page] = pool[ids[token // page], :, token % page]
        table.append(ids + [(-1, 2**31 - 1, -7)[i % 3] for i in range(max(blocks) + 3 - count)])
    key_cache, value_cache = live.unbind(1)
    return key_cache, value_cache, torch.tensor(table, dtype=torch.int32)


def dense_of(cache: torch.Tensor, table_row: torch.Tensor, length: int, scale: float, fmt: str) -> torch.Tensor:
    page = cache.shape[1]
    pages = table_row.tolist()
    tokens = [cache[pages[token // page], token % page] for token in range(length)]
    return reference.dequantize(torch.stack(tokens), scale, fmt)


@pytest.mark.parametrize(("query_heads", "kv_heads"), [(1, 1), (6, 1), (4, 4), (8, 2), (16, 1)])
@pytest.mark.parametrize("causal", [True, False])
def test_prefill_is_sdpa(query_heads: int, kv_heads: int, causal: bool) -> None:
    queries, keys, scale = 33, 70, 0.3
    q, k, v = (
        normal(1, queries, query_heads, 16),
        normal(1, keys, kv_heads, 16),
        normal(1, keys, kv_heads, 16),
    )
    visible = torch.ones(queries, keys, dtype=torch.bool)
    if causal:
        visible = visible.tril(keys - queries)  # row i sees keys 0 .. KV - Q + i
    out, lse = reference.prefill_attention(q, k, v, scale, causal=causal)
    assert_same(out[0], sdpa(q[0], k[0], v[0], visible, scale))
    assert_same(lse[0], direct_lse(q[0], k[0], visible, scale))


@pytest.mark.parametrize("queries", [1, 2, 16, 17])
@pytest.mark.parametrize("prefix", [0, 1, 15, 16, 100])
def test_the_last_query_is_aligned_to_the_last_key(queries: int, prefix: int) -> None:
    keys = queries + prefix
    q, k, v = normal(1, queries, 2, 8), normal(1, keys, 1, 8, seed=1), normal(1, keys, 1, 8, seed=2)
    whole = reference.prefill_attention(q, k, v, 1.0)
    for row in range(queries):
        seen = prefix + row + 1
        alone = reference.prefill_attention(q[:, row : row + 1], k[:, :seen], v[:, :seen], 1.0, causal=False)
        assert_same(whole.out[:, row], alone.out[:, 0])
        assert_same(whole.lse[:, row], alone.lse[:, 0])
    first_key_only = reference.prefill_attention(q, k[:, :queries], v[:, :queries], 1.0).out[:, 0]
    assert_same(first_key_only, v[:, 0].expand(1, 2, 8))


def test_sampled_rows_are_rows_of_the_whole() -> None:
    q, k, v = normal(1, 260, 6, 8), normal(1, 400, 2, 8, seed=1), normal(1, 400, 2, 8, seed=2)
    whole = reference.prefill_attention(q, k, v, 0.5, chunk_keys=128)
    rows = torch.tensor([259, 0, 255, 256, 17])
    sampled = reference.prefill_attention(q, k, v, 0.5, rows=rows)
    assert_same(sampled.out, whole.out[:, rows])
    assert_same(sampled.lse, whole.lse[:, rows])


@pytest.mark.parametrize("chunk_keys", [1, 3, 16, 64, 129, 10_000])
def test_results_do_not_depend_on_the_chunk(chunk_keys: int) -> None:
    lengths = torch.tensor(TILE_EDGES)
    q, k, v = normal(len(TILE_EDGES), 4, 8), normal(129, 2, 8, seed=1), normal(129, 2, 8, seed=2)
    k[::7] *= 40.0  # scores that move the running maximum far
    source = reference.DenseRow(k, v)
    expected = reference.attention(q, source, lengths, 2, 1.0, chunk_keys=4096)
    got = reference.attention(q, source, lengths, 2, 1.0, chunk_keys=chunk_keys)
    assert_same(got.out, expected.out)
    assert_same(got.lse, expected.lse)


def test_a_row_of_length_zero_is_zeros_with_lse_minus_infinity() -> None:
    poison = torch.full((4, 1, 8), math.nan)
    source = reference.DenseRow(poison, poison)
    out, lse = reference.attention(normal(2, 3, 8), source, torch.tensor([0, 0]), 1, 1.0)
    reference.compare_bitwise(out, torch.zeros(2, 3, 8, dtype=torch.float64), "out")
    assert bool((lse == -math.inf).all())


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2", "fp16"])
@pytest.mark.parametrize("page", [16, 48, 784])
def test_decode_reads_only_the_live_prefix(page: int, fmt: str) -> None:
    lengths, heads, head_dim, scale = [*TILE_EDGES, page - 1, page, page + 1], 2, 16, 0.25
    key_cache, value_cache, table = paged_case(lengths, page, heads, head_dim, fmt)
    q = normal(len(lengths), 6, head_dim)
    seq_lens = torch.tensor(lengths, dtype=torch.int32)
    out, lse = reference.decode_attention(
        q,
        key_cache,
        value_cache,
        table,
        seq_lens,
        k_scale=0.5,
        v_scale=torch.tensor([1.7]),
        kv_format=fmt,
        softmax_scale=scale,
        chunk_keys=50,
    )
    for row, length in enumerate(lengths):
        if length == 0:
            assert bool((out[row] == 0).all())
            assert bool((lse[row] == -math.inf).all())
            continue
        k = dense_of(key_cache, table[row], length, 0.5, fmt)
        v = dense_of(value_cache, table[row], length, 1.7, fmt)
        visible = torch.ones(1, length, dtype=torch.bool)
        assert_same(out[row, None], sdpa(q[row, None], k, v, visible, scale))
        assert_same(lse[row, None], direct_lse(q[row, None], k, visible, scale))


def test_verify_rows_have_prefixes_of_their_own() -> None:
    lengths, page = [100, 3, 0], 48
    key_cache, value_cache, table = paged_case(lengths, page, 1, 16, "e4m3")
    q = normal(3, 8, 6, 16)
    seq_lens = reference.causal_seq_lens(torch.tensor(lengths, dtype=torch.int32), 8)
    assert seq_lens[0].tolist() == list(range(93, 101))
    assert seq_lens[1].tolist() == [0, 0, 0, 0, 0, 1, 2, 3]
    seq_lens[0, 2] = 0  # a padding row
    named: dict[str, Any] = {"k_scale": 1.0, "v_scale": 2.0, "kv_format": "e4m3", "softmax_scale": 0.25}
    out, lse = reference.verify_attention(q, key_cache, value_cache, table, seq_lens, **named)
    flat = reference.verify_attention(q, key_cache, value_cache, table, seq_lens.flatten(), **named)
    reference.compare_bitwise(flat.out, out, "flat row lengths")
    for row in range(8):
        alone = reference.decode_attention(q[:, row], key_cache, value_cache, table, seq_lens[:, row], **named)
        assert_same(out[:, row], alone.out)
        assert_same(lse[:, row], alone.lse)
    assert bool((out[0, 2] == 0).all())
    assert bool((lse[2] == -math.inf).all())


def test_nan_in_the_live_prefix_reaches_exactly_its_outputs() -> None:
    # The poisoned key has by far the smallest weight (it underflows to 0): 0 x NaN must still be seen.
    q = torch.ones(1, 1, 4, 8, dtype=torch.float64)
    k, v = normal(1, 40, 2, 8), normal(1, 40, 2, 8, seed=1)
    k[0, 30, 1] = -1000.0
    v[0, 30, 1, 5] = math.nan
    for chunk_keys in (7, 4096):
        out = reference.prefill_attention(q, k, v, 1.0, chunk_keys=chunk_keys).out[0, 0]
        expected = torch.zeros(4, 8, dtype=torch.bool)
        expected[2:, 5] = True
        assert torch.equal(out.isnan(), expected)
    v[0, 30, 1, 5] = 0.0
    k[0, 30, 0, 3] = math.nan
    for chunk_keys in (7, 4096):
        out, lse = reference.prefill_attention(q, k, v, 1.0, chunk_keys=chunk_keys)
        assert bool(out[0, 0, :2].isnan().all())
        assert bool(lse[0, 0, :2].isnan().all())
        assert not bool(out[0, 0, 2:].isnan().any())


def test_nan_just_past_a_causal_row_does_not_reach_it() -> None:
    q, k, v = normal(1, 8, 2, 8), normal(1, 20, 1, 8), normal(1, 20, 1, 8, seed=1)
    clean = reference.prefill_attention(q, k, v, 1.0).out
    k[0, 16], v[0, 16] = math.nan, math.nan
    out = reference.prefill_attention(q, k, v, 1.0).out
    assert_same(out[:, :4], clean[:, :4])  # row 3 sees keys 0 .. 15
    assert bool(out[:, 4:].isnan().all())


def test_constant_values_come_out_as_the_constant() -> None:
    q, k = normal(1, 3, 6, 16), 30 * normal(1, 5000, 1, 16, seed=1)
    out = reference.prefill_attention(q, k, torch.full_like(k, 0.7), 1.0, chunk_keys=999).out
    assert_same(out, torch.full_like(out, 0.7))


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_sparse_attention_sees_exactly_the_selected_blocks(kv_heads: int) -> None:
    rows, query_heads, keys, scale = 5, 6, 90, 0.4
    lengths = torch.tensor([90, 61, 8, 0, 90], dtype=torch.int32)
    q, k, v = (
        normal(rows, query_heads, 8),
        normal(keys, kv_heads, 8, seed=1),
        normal(keys, kv_heads, 8, seed=2),
    )
    generator = torch.Generator().manual_seed(3)
    selected = torch.stack([torch.randperm(23, generator=generator) for _ in range(rows * kv_heads)])
    selected = selected[:, :9].reshape(rows, kv_heads, 9).to(torch.int32)
    selected[:, :, 4] = -1
    selected[0, :, 0] = 22  # the last block, of which only tokens 88 and 89 exist
    selected[0, :, 1:] = torch.tensor([3, 15, 0, -1, 7, 8, 21, -1], dtype=torch.int32)
    selected[4] = -1
    source = reference.DenseRow(k, v)
    out, lse = reference.attention(q, source, lengths, kv_heads, scale, selected_blocks=selected, chunk_keys=10)
    group = query_heads // kv_heads
    for row in range(rows):
        for head in range(kv_heads):
            visible = torch.zeros(1, keys, dtype=torch.bool)
            for block in selected[row, head].tolist():
                if block >= 0:
                    visible[0, 4 * block : 4 * block + 4] = True
            visible[0, int(lengths[row]) :] = False
            mine = slice(group * head, group * (head + 1))
            if not bool(visible.any()):
                assert bool((out[row, mine] == 0).all())
                assert bool((lse[row, mine] == -math.inf).all())
                continue
            one = (q[row, None, mine], k[:, head, None], v[:, head, None])
            assert_same(out[row, None, mine], sdpa(*one, visible, scale))
            assert_same(lse[row, None, mine], direct_lse(*one[:2], visible, scale))


def test_selecting_every_block_is_dense_attention_over_pages() -> None:
    lengths = [33, 100]
    key_cache, value_cache, table = paged_case(lengths, 16, 2, 16, "e5m2")
    q = normal(2, 3, 4, 16)
    seq_lens = reference.causal_seq_lens(torch.tensor(lengths, dtype=torch.int32), 3)
    selected = torch.arange(25, dtype=torch.int32).flip(0).expand(2, 3, 2, 25)
    arguments = (q, key_cache, value_cache, table, seq_lens)
    named: dict[str, Any] = {"k_scale": 1.0, "v_scale": 0.5, "kv_format": "e5m2", "softmax_scale": 0.25}
    dense = reference.verify_attention(*arguments, **named)
    sparse = reference.verify_attention(*arguments, **named, selected_blocks=selected)
    assert_same(sparse.out, dense.out)
    assert_same(sparse.lse, dense.lse)


def test_merged_parts_are_the_whole() -> None:
    q, k, v = normal(7, 6, 16), 3 * normal(200, 2, 16, seed=1), normal(200, 2, 16, seed=2)
    everything = torch.full((7,), 200)
    whole = reference.attention(q, reference.DenseRow(k, v), everything, 2, 1.0)
    for cuts in ([0, 200], [0, 1, 200], [0, 64, 64, 128, 200], list(range(201))):
        parts = [
            reference.attention(
                q, reference.DenseRow(k[start:stop], v[start:stop]), torch.full((7,), stop - start), 2, 1.0
            )
            for start, stop in pairwise(cuts)
        ]
        out, lse = reference.merge_states([part.out for part in parts], [part.lse for part in parts])
        assert_same(out, whole.out)
        assert_same(lse, whole.lse)
        stacked = reference.merge_states(
            torch.stack([part.out for part in parts]), torch.stack([part.lse for part in parts])
        )
        reference.compare_bitwise(stacked[0], out, "stacked")


def test_merging_is_associative_and_ignores_empty_parts() -> None:
    outs, lses = normal(4, 5, 3, 8), 20 * normal(4, 5, 3, seed=1)
    whole = reference.merge_states(outs, lses)
    left, right = reference.merge_states(outs[:2], lses[:2]), reference.merge_states(outs[2:], lses[2:])
    pairs = reference.merge_states([left[0], right[0]], [left[1], right[1]])
    assert_same(pairs[0], whole[0])
    assert_same(pairs[1], whole[1])

    poison, empty = torch.full((1, 5, 3, 8), math.nan), torch.full((1, 5, 3), -math.inf)
    padded = reference.merge_states(torch.cat((poison, outs)), torch.cat((empty, lses)))
    assert_same(padded[0], whole[0])
    nothing = reference.merge_states(torch.cat((poison, poison)), torch.cat((empty, empty)))
    assert bool((nothing[0] == 0).all())
    assert bool((nothing[1] == -math.inf).all())


def test_merging_keeps_nan_of_a_part_with_keys() -> None:
    outs = torch.zeros(2, 1, 4)
    outs[1, 0, 2] = math.nan
    out, lse = reference.merge_states(outs, torch.tensor([[1000.0], [-1000.0]]))  # its weight underflows to 0
    assert out.isnan().tolist() == [[False, False, True, False]]
    assert lse.item() == 1000.0
    out, lse = reference.merge_states(torch.zeros(2, 1, 4), torch.tensor([[0.0], [math.nan]]))
    assert bool(out.isnan().all())
    assert bool(lse.isnan().all())


def test_refusals_name_the_argument() -> None:
    q, k = normal(1, 4, 6, 8), normal(1, 3, 4, 8)
    with pytest.raises(ValueError, match="q: got Hq=6; wanted a positive multiple of Hkv=4"):
        reference.prefill_attention(q, k, k, 1.0, causal=False)
    with pytest.raises(ValueError, match="k: got KV=3; wanted at least Q=4"):
        reference.prefill_attention(q, k[:, :, :1], k[:, :, :1], 1.0)
    with pytest.raises(ValueError, match="k: got shape"):
        reference.prefill_attention(q, k[..., :4], k, 1.0)
    k = normal(1, 8, 1, 8)
    with pytest.raises(ValueError, match=r"rows: got 4; wanted query rows in 0\.\.3"):
        reference.prefill_attention(q, k, k, 1.0, rows=torch.tensor([4]))
    with pytest.raises(ValueError, match="softmax_scale: got nan"):
        reference.prefill_attention(q, k, k, math.nan)
    source, lengths = reference.DenseRow(k[0], k[0]), torch.tensor([1, 2, 3, 4])
    with pytest.raises(ValueError, match="lengths: got a length that reaches key 8; wanted KV=8 at most"):
        reference.attention(q[0], source, torch.tensor([1, 2, 3, 9]), 1, 1.0)
    with pytest.raises(ValueError, match="lengths: got -1"):
        reference.attention(q[0], source, torch.tensor([1, 2, 3, -1]), 1, 1.0)
    for block, got in ((-2, "-2"), (1, "block 1 more than once")):
        selected = torch.tensor([1, block]).expand(4, 1, 2)
        with pytest.raises(ValueError, match=rf"selected_blocks\[0, 0\]: got {got}"):
            reference.attention(q[0], source, lengths, 1, 1.0, selected_blocks=selected)
    with pytest.raises(ValueError, match="lses: got 1 parts; wanted 2 parts"):
        reference.merge_states(torch.zeros(2, 3, 4), torch.zeros(1, 3))
    with pytest.raises(ValueError, match="outs: got no parts"):
        reference.merge_states([], [])


@pytest.mark.parametrize(
    ("argument", "table", "length"),
    [("block_table", [[0, -1]], 17), ("block_table", [[0, 2]], 32), ("block_table", [[0]], 17)],
)
def test_live_block_table_entries_must_be_pages(argument: str, table: list[list[int]], length: int) -> None:
    cache = torch.zeros((2, 16, 1, 8), dtype=torch.uint8)
    block_table, seq_lens = torch.tensor(table, dtype=torch.int32), torch.tensor([length], dtype=torch.int32)
    named: dict[str, Any] = {"k_scale": 1.0, "v_scale": 1.0, "kv_format": "e4m3", "softmax_scale": 1.0}
    with pytest.raises(ValueError, match=rf"^{argument}\[0\]: got .*; wanted "):
        reference.decode_attention(normal(1, 2, 8), cache, cache, block_table, seq_lens, **named)
