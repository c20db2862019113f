"""verify at the sizes it is for, on a GPU: 2 to 8 rows, contexts of 8K to 256K, every page size, against float64.

The reference runs on the GPU too. On the emulated V100 the same is tested on small shapes, and ties at 256K tokens
(test_verify_accuracy).
"""

from __future__ import annotations

import pytest
import torch

from tests.ops import verify_controls
from tests.ops.kv_cases import PAGES
from tests.ops.verify_cases import FORMATS, check, check_same_bits, draft, make_case, picked, rows_of

K = 1024
CONTEXTS = [8 * K, 64 * K, 128 * K, 256 * K]


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("q_rows", range(2, 9))
def test_standard_shapes(cuda_device: torch.device, q_rows: int, context: int) -> None:
    check(make_case([draft(context, q_rows)], page=3296, device=cuda_device, seed=q_rows))


@pytest.mark.parametrize("page", PAGES)
def test_page_sizes(cuda_device: torch.device, page: int) -> None:
    check(make_case([draft(256 * K, 5)], page=page, device=cuda_device))
    lengths = [32 * K, 32 * K - 1, 32 * K + 1, 64 * K - 1, 64 * K + 1, page, 0, 1]
    check(make_case([lengths, draft(8 * K, 8)], page=page, device=cuda_device))


@pytest.mark.parametrize("q_rows", [8, 16])
@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("requests,context", [(1, 256 * K), (4, 64 * K), (16, 8 * K)])
def test_batches(cuda_device: torch.device, requests: int, context: int, kv_format: str, q_rows: int) -> None:
    check(make_case([draft(context, q_rows)] * requests, page=3296, kv_format=kv_format, device=cuda_device))


@pytest.mark.parametrize(
    "group,kv_heads,head_dim",
    [(8, 1, 128), (4, 8, 128), (16, 1, 128), (16, 2, 256), (1, 8, 64), (1, 1, 256), (7, 2, 64)],
)
@pytest.mark.parametrize("kv_format", FORMATS)
def test_other_shapes(cuda_device: torch.device, kv_format: str, group: int, kv_heads: int, head_dim: int) -> None:
    shape = {"group": group, "kv_heads": kv_heads, "head_dim": head_dim, "kv_format": kv_format}
    lengths = [draft(64 * K, 6), draft(50001, 6), [17, 0, 1, 129, 0, 0]]
    check(make_case(lengths, page=800, layout="unbind", device=cuda_device, **shape))


def test_bits_of_a_row_do_not_depend_on_the_batch(cuda_device: torch.device) -> None:
    case = make_case([draft(256 * K, 8), draft(100 * K + 77, 8), draft(10 * K + 3, 8)], page=1568, device=cuda_device)
    together = case.run()
    for request in range(3):
        for rows in ([0], [7], [3, 1], [7, 6, 5, 4, 3, 2, 1, 0]):
            check_same_bits(rows_of(case, request, rows).run(), picked(together, request, rows), f"rows {rows}:")


@pytest.mark.parametrize("numerics", ["none", "plain", "kahan"])
def test_compensations(cuda_device: torch.device, numerics: str) -> None:
    """All three keep the contract on random data, at full size; test_verify_accuracy tells them apart."""
    verify_controls.load()
    from tests.ops.verify_cases import check_accuracy

    case = make_case([draft(256 * K, 8)], page=3296, device=cuda_device)
    check_accuracy(verify_controls.run(case, numerics)[0], case.exact(), what=numerics)
