"""prefill inside torch: graphs, streams, threads, torch.compile, and what bad offsets do."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sm70_kernels.ops import prefill
from tests.ops import integration_cases
from tests.ops.prefill_cases import Case, Result, check_accuracy, check_same_bits, make_case, normals


def test_a_graph_serves_other_inputs(cuda_device: torch.device) -> None:
    """Captured once; replayed with other Q, K and V: the bits of an eager call, which float64 vouches for."""
    case = make_case((300, 3000), group=6, head_dim=256, device=cuda_device)
    into, workspace = case.new_result(), case.plan().new_workspace()
    graph = integration_cases.captured(lambda: case.run(into, workspace))
    for seed in (1, 2, 1):
        for number, tensor in enumerate((case.q, case.k, case.v)):
            tensor.copy_(normals(tuple(tensor.shape), cuda_device, 10 * seed + number))
        result = integration_cases.replayed(graph, into, workspace)
        eager = case.run()
        check_same_bits(result, eager, f"seed {seed}:")
        check_accuracy(eager, case.exact())


STEPS = [
    [(0, 0), (0, 0), (0, 0)], [(5, 100), (60, 1000), (1, 1)], [(0, 0), (100, 100), (7, 3000)], [(30, 40)] * 3,
    [(0, 0), (0, 0), (0, 0)], [(5, 100), (60, 1000), (1, 1)],
]  # fmt: skip


def test_a_graph_of_a_ragged_batch_serves_other_lengths(cuda_device: torch.device) -> None:
    """Lengths are read on the device: captured with empty sequences, replayed with others."""
    source = make_case((100 * 3, 3000 * 3), group=3, kv_heads=2, head_dim=128, device=cuda_device)
    planned = prefill.plan(max_seqlen_q=100, max_seqlen_k=3000, query_heads=6, kv_heads=2, head_dim=128, sequences=3)
    offsets = [torch.zeros(4, dtype=torch.int32, device=cuda_device) for _ in range(2)]
    into, workspace = source.new_result(), planned.new_workspace()

    def call() -> None:
        planned.run(
            source.q,
            source.k,
            source.v,
            cu_seqlens_q=offsets[0],
            cu_seqlens_k=offsets[1],
            out=into.out,
            lse=into.lse,
            workspace=workspace,
        )

    graph = integration_cases.captured(call)
    for lengths in STEPS:
        queries, keys = (sum(pair[i] for pair in lengths) for i in (0, 1))
        case = Case(source.q[:queries], source.k[:keys], source.v[:keys], lengths)
        for target, wanted in zip(offsets, case.ragged.values(), strict=True):
            target.copy_(wanted)
        results = []
        for run in (graph.replay, call):
            into.forget()
            workspace.fill_(0xFF)
            run()
            results.append(into.copy())
        check_same_bits(results[0], results[1], f"lengths {lengths}:")
        assert bool(into.out[queries:].isnan().all())
        if queries:
            check_accuracy(Result(into.out[:queries], into.lse[:queries]), case.exact(), what=f"lengths {lengths}")


def test_six_replays_are_bitwise_equal(cuda_device: torch.device) -> None:
    integration_cases.check_six_replays(make_case((2000, 20000), device=cuda_device))


def test_current_stream_is_used(cuda_device: torch.device) -> None:
    integration_cases.check_current_stream(make_case((30, 300), head_dim=64, device=cuda_device))


def test_two_streams_at_once(cuda_device: torch.device) -> None:
    cases = [make_case((1000, 9000), seed=seed, device=cuda_device) for seed in (1, 2)]
    integration_cases.check_streams_at_once(cases, repeats=10)


def test_threads_at_once(device: torch.device) -> None:
    integration_cases.check_threads_at_once(make_case((20, 600), head_dim=64, device=device), repeats=2)


def test_opcheck(device: torch.device) -> None:
    case = make_case((20, 600), head_dim=64, kv_heads=2, device=device)
    into, workspace = case.new_result(), case.plan().new_workspace().zero_()
    into.out.zero_(), into.lse.zero_()
    arguments = (case.q, case.k, case.v, into.out, workspace, 0.125)
    operator = torch.ops.sm70_kernels.prefill.default
    torch.library.opcheck(operator, arguments)
    offsets = case.but(lengths=[(20, 600)]).ragged
    torch.library.opcheck(operator, (*arguments, True, *offsets.values(), 20, 600, into.lse))


def test_compiled_plan_without_recompiles(device: torch.device) -> None:
    """One plan of a ragged batch: other lengths are other data."""
    batches = [[(5, 40), (15, 60)], [(20, 20), (0, 80)], [(1, 99), (19, 1)]]
    planned = prefill.plan(
        max_seqlen_q=20, max_seqlen_k=100, query_heads=6, kv_heads=1, head_dim=64, sequences=2, device=device
    )
    workspace = planned.new_workspace()

    def step(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor) -> tuple[Tensor, Tensor]:
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
        out = planned.run(
            q * 2,
            k,
            v,
            cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k,
            causal=False,
            lse=lse,
            workspace=workspace,
        )
        return out + 1, lse

    compiled = integration_cases.compiled(step, device, on_cpu="inductor")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, lengths in enumerate(batches):
            case = make_case((20, 100), head_dim=64, device=device, seed=seed, causal=False)
            offsets = case.but(lengths=lengths).ragged.values()
            into = case.new_result()
            planned.run(
                case.q * 2,
                case.k,
                case.v,
                **case.but(lengths=lengths).ragged,
                causal=False,
                out=into.out,
                lse=into.lse,
            )
            out, lse = compiled(case.q, case.k, case.v, *offsets)
            check_same_bits(Result(out, lse), Result(into.out + 1, into.lse))


def test_compiled_functional_form(device: torch.device) -> None:
    """Once a shape: the workspace's size is a function of it. With the batch dimension of the contract."""

    def step(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return prefill.prefill(q, k, v) * 2

    compiled = integration_cases.compiled(step, device, on_cpu="inductor")
    for lengths in ((20, 100), (7, 300), (7, 7)):
        case = make_case(lengths, head_dim=64, device=device)
        out = compiled(case.q[None], case.k[None], case.v[None])
        assert torch.equal(out[0], case.run().out * 2)


def test_compiled_prefill_over_pages(device: torch.device) -> None:
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(2, 8, 16, 1, 64, generator=generator).half().to(device)
    q = normals((1, 5, 6, 64), device, 1)
    table = torch.randperm(8, generator=generator).to(torch.int32).to(device)[None]
    gathered = torch.zeros(prefill.gathered_shape(1, 128, 1, 64), dtype=torch.float16, device=device)

    def step(q: Tensor, lengths: Tensor) -> Tensor:
        return prefill.prefill_paged(q, *cache.unbind(0), table, lengths, gathered=gathered) + 1

    compiled = integration_cases.compiled(step, device, on_cpu="inductor")
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (5, 128, 77):
            lengths = torch.tensor([length], dtype=torch.int32, device=device)
            assert torch.equal(compiled(q, lengths), step(q, lengths))


def test_fake_tensors_have_the_shapes_of_results() -> None:
    case = make_case((20, 100), head_dim=64, device=torch.device("cpu"))
    integration_cases.check_fake_result(case, (case.q, case.k, case.v))


SETUP = """
import torch
from sm70_kernels.ops import prefill
q = torch.ones(6, 3, 64, dtype=torch.float16, device="cuda")
k = torch.ones(40, 1, 64, dtype=torch.float16, device="cuda")
queries = torch.tensor([0, 2, 6], dtype=torch.int32, device="cuda")
keys = torch.tensor([0, 20, 40], dtype=torch.int32, device="cuda")
def run(causal=True, max_seqlen_q=4, max_seqlen_k=20):
    return prefill.prefill(
        q, k, k, cu_seqlens_q=queries, cu_seqlens_k=keys, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
        causal=causal,
    )
"""

BAD_OFFSETS = {
    "queries past the tensor": "queries[2] = 7; run(max_seqlen_q=9)",
    "keys past the tensor": "keys[2] = 41; run(max_seqlen_k=30)",
    "negative queries": "queries[0] = -1; run()",
    "negative keys": "keys[0] = -1; run(max_seqlen_k=30)",
    "queries that fall": "queries[1] = 6; queries[2] = 5; run(max_seqlen_q=9)",
    "keys that fall": "keys[1] = 40; keys[2] = 39; run(False, max_seqlen_k=40)",
    "more queries than planned": "run(max_seqlen_q=3)",
    "more keys than planned": "run(max_seqlen_k=19)",
    "more queries than keys": "keys[1] = 38; run(max_seqlen_k=38)",
    "a last offset of 2**31 - 1": "keys[2] = 2**31 - 1; run()",
}


@pytest.mark.parametrize("action", BAD_OFFSETS.values(), ids=BAD_OFFSETS.keys())
def test_bad_offsets_stop_the_emulated_kernel(action: str) -> None:
    integration_cases.check_emulated_trap(SETUP, action, r"prefill_d64_a16\w*")


def test_bad_offsets_stop_the_kernel(cuda_device: torch.device) -> None:
    integration_cases.check_traps(SETUP, BAD_OFFSETS)


def test_first_call_of_a_process_inside_a_capture(cuda_device: torch.device) -> None:
    outputs = """
out = torch.zeros(6, 3, 64, dtype=torch.float16, device="cuda")
workspace = torch.empty(prefill.MAX_WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
"""
    run = "prefill.prefill(q, k, k, out=out, workspace=workspace)"
    integration_cases.check_first_call_inside_a_capture(SETUP + outputs, run)


def test_several_devices_in_one_process(cuda_device: torch.device) -> None:
    integration_cases.check_devices(lambda where: make_case((100, 3000), device=where))


def test_nothing_is_allocated_or_synchronised(cuda_device: torch.device) -> None:
    integration_cases.check_nothing_is_allocated_or_synchronised(make_case((100, 3000), device=cuda_device))
