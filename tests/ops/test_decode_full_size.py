"""decode at the sizes it is for, on a GPU: batches of 1 to 32, contexts of 8K to 256K, every page size.

Everything is checked, against float64 and between the variants: the reference runs on the GPU too. On the emulated
V100 the same is tested on small shapes, and one row of 256K tokens (test_decode_accuracy).
"""

from __future__ import annotations

import pytest
import torch

from tests.ops.decode_cases import FORMATS, VARIANTS, check, check_same_bits, make_case
from tests.ops.kv_cases import PAGES

K = 1024
BATCHES = [1, 2, 4, 8, 16, 32]
CONTEXTS = [8 * K, 64 * K, 128 * K, 256 * K]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("page", [800, 1568])
@pytest.mark.parametrize("batch", BATCHES)
def test_standard_shapes(cuda_device: torch.device, batch: int, page: int, context: int) -> None:
    check(make_case([context] * batch, page=page, device=cuda_device, seed=batch))


@pytest.mark.parametrize("page", sorted({*PAGES} - {800, 1568}))
def test_other_page_sizes(cuda_device: torch.device, page: int) -> None:
    check(make_case([256 * K], page=page, device=cuda_device))
    check(make_case([32 * K, 32 * K - 1, 32 * K + 1, 64 * K - 1, 64 * K + 1, page, 0], page=page, device=cuda_device))


@pytest.mark.parametrize("kv_format", ["e5m2", "fp16"])
@pytest.mark.parametrize("page", [800, 1568])
@pytest.mark.parametrize("batch,context", [(1, 256 * K), (4, 128 * K), (8, 8 * K), (32, 64 * K)])
def test_other_formats(cuda_device: torch.device, batch: int, context: int, page: int, kv_format: str) -> None:
    check(make_case([context] * batch, page=page, kv_format=kv_format, device=cuda_device))


@pytest.mark.parametrize(
    "group,kv_heads,head_dim",
    [(8, 1, 128), (4, 8, 128), (16, 1, 128), (16, 2, 256), (1, 8, 64), (1, 1, 256), (7, 2, 64)],
)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_other_shapes(cuda_device: torch.device, kv_format: str, group: int, kv_heads: int, head_dim: int) -> None:
    shape = {"group": group, "kv_heads": kv_heads, "head_dim": head_dim, "kv_format": kv_format}
    check(make_case([64 * K, 50001, 17, 0], page=800, layout="unbind", device=cuda_device, **shape))


def test_one_long_row_among_31_short_ones(cuda_device: torch.device) -> None:
    check(make_case([K] * 13 + [256 * K] + [K] * 18, page=800, device=cuda_device))


@pytest.mark.parametrize("seed", range(4))
def test_mixed_lengths(cuda_device: torch.device, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = (2.0 ** (torch.rand(32, generator=generator) * 18)).long().tolist()  # 1 to 256K, every size alike
    lengths[:: 7 + seed] = [0] * len(lengths[:: 7 + seed])
    check(make_case(lengths, page=[16, 784, 848, 3456][seed], device=cuda_device, seed=seed))


def test_rows_of_a_chunked_prefill(cuda_device: torch.device) -> None:
    """Sixteen query rows of each of four long requests, each with its own prefix."""
    totals = [100000, 65536 + 15, 4000, 16]
    source = make_case(totals, page=800, device=cuda_device)
    requests = [request for request in range(4) for _ in range(16)]
    lengths = [total - 15 + row for total in totals for row in range(16)]
    mixed = source.but(
        q=torch.randn(64, 6, 256, generator=torch.Generator().manual_seed(5)).half().to(cuda_device),
        seq_lens=torch.tensor(lengths, dtype=torch.int32, device=cuda_device),
        row_requests=torch.tensor(requests, dtype=torch.int32, device=cuda_device),
    )
    check(mixed)


def test_a_batch_beyond_a_window_of_rows(cuda_device: torch.device) -> None:
    lengths = [(row * 977) % 3000 for row in range(700)]
    check(make_case(lengths, page=48, device=cuda_device))


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_of_a_long_row_do_not_depend_on_the_batch(cuda_device: torch.device, variant: str) -> None:
    case = make_case([256 * K, 100 * K + 77, 5 * K], page=1568, device=cuda_device)
    alone = case.run(variant)
    for rows in ([0], [1], [0, 1, 2] * 4, [2, 1, 0] * 20):
        some = case.but(q=case.q[rows].contiguous(), block_table=case.block_table[rows], seq_lens=case.seq_lens[rows])
        result = some.run(variant)
        check_same_bits(result, type(result)(alone.out[rows], alone.lse[rows]), f"rows {rows}:")


@pytest.mark.parametrize("tokens", [2**20 + 1, 4 * 2**20])
def test_rows_beyond_a_million_tokens(cuda_device: torch.device, tokens: int) -> None:
    check(make_case([tokens, 1], page=3456, device=cuda_device))
