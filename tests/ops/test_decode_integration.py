"""decode inside torch: graphs, streams, threads, torch.compile, and what a bad index does."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.ops import decode
from tests.ops import integration_cases
from tests.ops.decode_cases import FORMATS, VARIANTS, Case, GraphPages, check_accuracy, make_case

#: Lengths of four rows, K and V scale, step by step. A scale of 0 is no scale: NaN, until it is restored.
STEPS = [
    ([0, 0, 0, 0], 1.0, 1.0), ([700, 1, 0, 300], 1.0, 1.0), ([5000, 4999, 47, 49], 0.5, 3.0), ([0, 0, 0, 0], 2.0, 1.0),
    ([100, 100, 100, 100], 0.3, 0.01), ([20000, 1, 1, 1], 1.0, 1.0), ([700, 1, 0, 300], 0.0, 1.0),
    ([700, 1, 0, 300], 1.0, 0.0), ([700, 1, 0, 300], 1.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_serves_other_lengths_pages_and_scales(cuda_device: torch.device, variant: str, kv_format: str) -> None:
    pages = GraphPages(kv_format, cuda_device)
    case = Case(
        torch.zeros(4, 12, pages.dim, dtype=torch.float16, device=cuda_device),
        *pages.caches,
        pages.new_table(4),
        torch.zeros(4, dtype=torch.int32, device=cuda_device),
        kv_format,
        **pages.new_scales(),
    )

    def fill(seed: int, lengths: list[int]) -> None:
        pages.fill(seed, lengths, case.block_table)
        case.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))

    integration_cases.check_paged_graph(case, STEPS, fill, check_accuracy, variant=variant)


def test_six_replays_are_bitwise_equal(cuda_device: torch.device) -> None:
    for variant in VARIANTS:
        case = make_case([30000, 0, 17, 900], page=784, kv_heads=2, device=cuda_device)
        integration_cases.check_six_replays(case, variant=variant)


def test_current_stream_is_used(cuda_device: torch.device) -> None:
    integration_cases.check_current_stream(make_case([300], head_dim=64, device=cuda_device))


def test_two_streams_with_their_own_workspaces(cuda_device: torch.device) -> None:
    cases = [make_case([60000, 100], page=800, seed=seed, device=cuda_device) for seed in (1, 2)]
    integration_cases.check_streams_at_once(cases, repeats=20)


def test_threads_at_once(device: torch.device) -> None:
    integration_cases.check_threads_at_once(make_case([2000, 5], head_dim=64, device=device), repeats=4)


def test_opcheck(device: torch.device) -> None:
    case = make_case([100, 0], head_dim=64, kv_heads=2, device=device)
    into, workspace = case.new_result(), case.plan().new_workspace().zero_()
    into.out.zero_(), into.lse.zero_()
    one = torch.ones(1, device=device)
    requests = torch.tensor([0, 1], dtype=torch.int32, device=device)
    arguments = (case.q, *case.caches, case.block_table, case.seq_lens, into.out, workspace, "e4m3", "xqa", 0.125)
    operator = torch.ops.sm70_kernels.decode.default
    torch.library.opcheck(operator, (*arguments, 1.0, 1.0))
    torch.library.opcheck(operator, (*arguments, 1.0, 1.0, one, one, requests, into.lse))


def test_compiled_plan_without_recompiles(device: torch.device) -> None:
    lengths = ([100, 97], [0, 112], [112, 1])
    spare = [40 - sum(-(-length // 16) for length in rows) for rows in lengths]
    cases = [
        make_case(rows, head_dim=64, device=device, spare_pages=pages, seed=seed)
        for seed, (rows, pages) in enumerate(zip(lengths, spare, strict=True))
    ]
    integration_cases.check_compiled_paged_plan(cases, device)


def test_compiled_functional_form(device: torch.device) -> None:
    cases = [make_case(lengths, head_dim=64, device=device) for lengths in ([100, 30], [20], [5, 6, 7])]
    integration_cases.check_compiled_paged_function(decode.decode, cases, device)


def test_fake_tensors_have_the_shapes_of_results() -> None:
    case = make_case([100, 30], head_dim=64, device=torch.device("cpu"))
    integration_cases.check_fake_result(case, case.tensors)


SETUP = """
import torch
from sm70_kernels.ops import decode
cache = torch.zeros(4, 16, 1, 64, dtype=torch.uint8, device="cuda")
q = torch.ones(2, 3, 64, dtype=torch.float16, device="cuda")
out = torch.zeros_like(q)
table = torch.zeros(2, 4, dtype=torch.int32, device="cuda")
lengths = torch.full((2,), 64, dtype=torch.int32, device="cuda")
requests = torch.tensor([1, 0], dtype=torch.int32, device="cuda")
def run(**changes):
    return decode.decode(q, cache, cache, table, lengths, kv_format="e4m3", row_requests=requests, **changes)
"""

BAD_INDICES = {
    "length too long": "lengths[1] = 65; run()",
    "negative length": "lengths[0] = -1; run()",
    "page too large": "table[0, 1] = 4; run()",
    "page -1": "table[1, 3] = -1; run()",
    "page of 2**31 - 1, scalar": "table[1, 0] = 2**31 - 1; run(variant='scalar')",
    "request too large": "requests[0] = 2; run()",
    "request -1, scalar": "requests[1] = -1; run(variant='scalar')",
}


@pytest.mark.parametrize("action", BAD_INDICES.values(), ids=BAD_INDICES.keys())
def test_bad_index_stops_the_emulated_kernel(action: str) -> None:
    integration_cases.check_emulated_trap(SETUP, action, r"decode_\w+_e4m3_d64\w*")


def test_bad_indices_stop_the_kernel(cuda_device: torch.device) -> None:
    integration_cases.check_traps(SETUP, BAD_INDICES)


def test_first_call_of_a_process_inside_a_capture(cuda_device: torch.device) -> None:
    integration_cases.check_first_call_inside_a_capture(f"{SETUP}\ncache.fill_(0x38)", "run(out=out)")


def test_several_devices_in_one_process(cuda_device: torch.device) -> None:
    integration_cases.check_devices(lambda where: make_case([3000, 1], device=where))


def test_nothing_is_allocated_or_synchronised(cuda_device: torch.device) -> None:
    integration_cases.check_nothing_is_allocated_or_synchronised(make_case([3000, 1], device=cuda_device))
