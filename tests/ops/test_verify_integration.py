"""verify inside torch: graphs, streams, torch.compile, and what a bad index does."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.ops import verify
from tests.ops import integration_cases
from tests.ops.decode_cases import GraphPages
from tests.ops.verify_cases import FORMATS, Case, Result, check_accuracy, check_same_bits, draft, make_case

#: Lengths of two requests, K and V scale, step by step: live, all zero, the last rows zero, the first rows zero, long
#: enough for other chunks, and restored. A scale of 0 is no scale: NaN, until it is restored.
LIVE = [draft(700, 4), draft(130, 4)]
STEPS = [
    ([[0] * 4] * 2, 1.0, 1.0), (LIVE, 1.0, 1.0), ([[0] * 4] * 2, 2.0, 1.0),
    ([[697, 698, 0, 0], [127, 0, 0, 0]], 1.0, 1.0),
    ([[0, 0, 699, 700], [0, 128, 129, 130]], 0.5, 3.0), ([draft(20000, 4), [1, 0, 1, 0]], 1.0, 1.0),
    (LIVE, 0.0, 1.0), (LIVE, 1.0, 0.0), (LIVE, 1.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("kv_format", FORMATS)
def test_a_graph_serves_other_lengths_pages_and_scales(cuda_device: torch.device, kv_format: str) -> None:
    pages = GraphPages(kv_format, cuda_device)
    case = Case(
        torch.zeros(2, 4, 12, pages.dim, dtype=torch.float16, device=cuda_device),
        *pages.caches,
        pages.new_table(2),
        torch.zeros(2, 4, dtype=torch.int32, device=cuda_device),
        kv_format,
        **pages.new_scales(),
    )

    def fill(seed: int, lengths: list[list[int]]) -> None:
        pages.fill(seed, [max(rows) for rows in lengths], case.block_table)
        case.seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))

    integration_cases.check_paged_graph(case, STEPS, fill, check_accuracy)


@pytest.mark.usefixtures("unwatched")
def test_the_same_steps_in_one_set_of_buffers(device: torch.device) -> None:
    """What the graph does, launch by launch: nothing of one step is left for the next."""
    longest = [700, 130]
    case = make_case([[length] * 4 for length in longest], page=48, group=2, kv_heads=2, head_dim=64, device=device)
    into, workspace = case.new_result(), case.plan().new_workspace().fill_(0xFF)
    results = []
    for lengths, _, _ in (STEPS[1], STEPS[2], STEPS[3], STEPS[4], STEPS[1]):
        step = case.but(seq_lens=torch.tensor(lengths, dtype=torch.int32, device=device))
        step.run(into, workspace)
        results.append(Result(into.out.clone(), into.lse.clone()))
        check_accuracy(results[-1], step.exact(), what=f"{lengths}")
    check_same_bits(results[-1], results[0], "restored:")
    for row, request in ((0, 0), (0, 1)):  # the rows that step 3 kept
        assert torch.equal(results[2].out[request, row], results[0].out[request, row])


def test_six_replays_are_bitwise_equal(cuda_device: torch.device) -> None:
    case = make_case([draft(30000, 5), [0, 17, 900, 3, 0]], page=784, kv_heads=2, device=cuda_device)
    integration_cases.check_six_replays(case)


def test_current_stream_is_used(cuda_device: torch.device) -> None:
    integration_cases.check_current_stream(make_case([draft(300, 2)], head_dim=64, device=cuda_device))


def test_opcheck(device: torch.device) -> None:
    case = make_case([[100, 0]], head_dim=64, kv_heads=2, device=device)
    into, workspace = case.new_result(), case.plan().new_workspace().zero_()
    into.out.zero_(), into.lse.zero_()
    one = torch.ones(1, device=device)
    arguments = (case.q, *case.caches, case.block_table, case.seq_lens, into.out, workspace, "e4m3", 0.125)
    operator = torch.ops.sm70_kernels.verify.default
    torch.library.opcheck(operator, (*arguments, 1.0, 1.0))
    torch.library.opcheck(operator, (*arguments, 1.0, 1.0, one, one, into.lse))


def test_compiled_plan_without_recompiles(device: torch.device) -> None:
    cases = [
        make_case([rows], head_dim=64, device=device, spare_pages=40 - -(-max(rows) // 16), seed=seed)
        for seed, rows in enumerate(([100, 97], [0, 112], [112, 1]))
    ]
    integration_cases.check_compiled_paged_plan(cases, device)


def test_compiled_functional_form(device: torch.device) -> None:
    cases = [make_case(lengths, head_dim=64, device=device) for lengths in ([[100, 30]], [[20], [7]])]
    integration_cases.check_compiled_paged_function(verify.verify, cases, device)


def test_fake_tensors_have_the_shapes_of_results() -> None:
    case = make_case([[100, 30]], head_dim=64, device=torch.device("cpu"))
    integration_cases.check_fake_result(case, case.tensors)


SETUP = """
import torch
from sm70_kernels.ops import verify
cache = torch.zeros(4, 16, 1, 64, dtype=torch.uint8, device="cuda")
q = torch.ones(2, 2, 3, 64, dtype=torch.float16, device="cuda")
out = torch.zeros_like(q)
table = torch.zeros(2, 4, dtype=torch.int32, device="cuda")
lengths = torch.full((2, 2), 64, dtype=torch.int32, device="cuda")
def run(**changes):
    return verify.verify(q, cache, cache, table, lengths, kv_format="e4m3", **changes)
"""

BAD_INDICES = {
    "length too long": "lengths[1, 0] = 65; run()",
    "negative length": "lengths[0, 1] = -1; run()",
    "page too large": "table[0, 1] = 4; run()",
    "page -1": "table[1, 3] = -1; run()",
    "page of 2**31 - 1": "table[1, 0] = 2**31 - 1; run()",
}


@pytest.mark.parametrize("action", BAD_INDICES.values(), ids=BAD_INDICES.keys())
def test_bad_index_stops_the_emulated_kernel(action: str) -> None:
    integration_cases.check_emulated_trap(SETUP, action, "verify_e4m3_d64_r16")


def test_bad_indices_stop_the_kernel(cuda_device: torch.device) -> None:
    integration_cases.check_traps(SETUP, BAD_INDICES)


def test_first_call_of_a_process_inside_a_capture(cuda_device: torch.device) -> None:
    integration_cases.check_first_call_inside_a_capture(f"{SETUP}\ncache.fill_(0x38)", "run(out=out)")


def test_nothing_is_allocated_or_synchronised(cuda_device: torch.device) -> None:
    integration_cases.check_nothing_is_allocated_or_synchronised(make_case([draft(3000, 8)], device=cuda_device))
