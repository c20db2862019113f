"""decode inside torch: graphs, streams, threads, torch.compile, and what a bad index does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from sm70_kernels.lab import emulator
from sm70_kernels.ops import decode
from tests.ops.decode_cases import (
    FORMATS,
    VARIANTS,
    Case,
    Result,
    check_accuracy,
    check_same_bits,
    make_case,
    poison_what_is_not_live,
    stored_normals,
)
from tests.ops.fresh_process import start
from tests.ops.kv_cases import make_cache, make_rows

#: Lengths of four rows, K and V scale, step by step. A scale of 0 is no scale: NaN, until it is restored.
STEPS = [
    ([0, 0, 0, 0], 1.0, 1.0), ([700, 1, 0, 300], 1.0, 1.0), ([5000, 4999, 47, 49], 0.5, 3.0), ([0, 0, 0, 0], 2.0, 1.0),
    ([100, 100, 100, 100], 0.3, 0.01), ([20000, 1, 1, 1], 1.0, 1.0), ([700, 1, 0, 300], 0.0, 1.0),
    ([700, 1, 0, 300], 1.0, 0.0), ([700, 1, 0, 300], 1.0, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("kv_format", FORMATS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graph_serves_other_lengths_pages_and_scales(cuda_device: torch.device, variant: str, kv_format: str) -> None:
    """Captured once, with every length 0; replayed: the bits of an eager call, which float64 vouches for."""
    page, pages, max_tokens, heads, dim = 48, 500, 20016, 2, 128
    shape = (pages, page, heads, dim)
    caches = make_cache("unbind", shape, kv_format, cuda_device)
    scales = torch.ones(2, device=cuda_device)
    case = Case(
        torch.zeros(4, 12, dim, dtype=torch.float16, device=cuda_device), *caches,
        torch.full((4, max_tokens // page), -1, dtype=torch.int32, device=cuda_device),
        torch.zeros(4, dtype=torch.int32, device=cuda_device), kv_format, k_scale=scales[0], v_scale=scales[1],
    )  # fmt: skip
    into, workspace = case.new_result(), case.plan(variant).new_workspace()
    case.run(variant, into, workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        case.run(variant, into, workspace)
    results: list[Result] = []
    for step, (lengths, k_scale, v_scale) in enumerate(STEPS):
        # The last step restores what step 1 had.
        seed = 1 if step == len(STEPS) - 1 else step
        rows = make_rows(lengths, page, pages, cuda_device, max_tokens=max_tokens, seed=seed)
        for number, cache in enumerate(caches):
            cache.copy_(stored_normals(shape, kv_format, cuda_device, 2 * seed + number))
            poison_what_is_not_live(cache, rows.block_table, lengths, kv_format)
        case.q.copy_(torch.randn(case.q.shape, generator=torch.Generator().manual_seed(seed)))
        case.block_table.copy_(rows.block_table)
        case.seq_lens.copy_(rows.seq_lens)
        scales.copy_(torch.tensor([k_scale, v_scale]))
        for tensor in into:
            tensor.fill_(float("nan"))
        workspace.fill_(0xFF)
        graph.replay()
        results.append(Result(into.out.clone(), into.lse.clone()))
        eager = case.run(variant)
        check_same_bits(results[-1], eager, f"step {step}:")
        live = case.seq_lens > 0
        if k_scale > 0 and v_scale > 0:
            check_accuracy(eager, case.exact(), what=f"step {step}")
        else:
            assert bool(eager.out[live].isnan().all()) and not eager.out[~live].view(torch.int16).any()
    check_same_bits(results[-1], results[1], "restored:")


def test_six_replays_are_bitwise_equal(cuda_device: torch.device) -> None:
    for variant in VARIANTS:
        case = make_case([30000, 0, 17, 900], page=784, kv_heads=2, device=cuda_device)
        into, workspace = case.new_result(), case.plan(variant).new_workspace()
        case.run(variant, into, workspace)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            case.run(variant, into, workspace)
        first = case.run(variant)
        for replay in range(6):
            workspace.fill_(replay * 51)
            graph.replay()
            check_same_bits(into, first, f"replay {replay}:")


def test_current_stream_is_used(cuda_device: torch.device) -> None:
    case = make_case([300], head_dim=64, device=cuda_device)
    into = case.new_result()
    workspace = case.plan().new_workspace()
    expected = case.run()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # the kernels must queue behind this on the side stream
        case.run("xqa", into, workspace)
    assert bool(into.out.isnan().all()), "the kernels did not wait for their stream"
    side.synchronize()
    check_same_bits(into, expected)


def test_two_streams_with_their_own_workspaces(cuda_device: torch.device) -> None:
    cases = [make_case([60000, 100], page=800, seed=seed, device=cuda_device) for seed in (1, 2)]
    expected = [case.run() for case in cases]
    intos = [case.new_result() for case in cases]
    workspaces = [case.plan().new_workspace().fill_(0xFF) for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(20):
        for case, into, workspace, stream in zip(cases, intos, workspaces, streams, strict=True):
            with torch.cuda.stream(stream):
                case.run("xqa", into, workspace)
    torch.cuda.synchronize()
    for into, want in zip(intos, expected, strict=True):
        check_same_bits(into, want)


def test_threads_at_once(device: torch.device) -> None:
    case = make_case([2000, 5], head_dim=64, device=device)
    expected = case.run()
    results: list[Result] = []

    def work() -> None:
        # A thread has its own emulator switch and current stream.
        if device.type == "cpu":
            with emulator.enabled():
                results.extend(case.run() for _ in range(4))
        else:
            results.extend(case.run() for _ in range(4))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    for result in results:
        check_same_bits(result, expected)


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


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Compiled for this device; on the CPU up to the graph that inductor would get, whose C++ takes long to compile."""
    torch._dynamo.reset()
    backend = "inductor" if device.type == "cuda" else "aot_eager"
    return cast(Callable[..., Any], torch.compile(function, fullgraph=True, backend=backend))


def test_compiled_plan_without_recompiles(device: torch.device) -> None:
    cases = [make_case(lengths, head_dim=64, device=device, spare_pages=40 - sum(-(-n // 16) for n in lengths), seed=n)
             for n, lengths in enumerate(([100, 97], [0, 112], [112, 1]))]  # fmt: skip
    planned = cases[0].plan()
    workspace = planned.new_workspace()

    def step(q: Tensor, key: Tensor, value: Tensor, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        lse = q.new_empty(q.shape[:2], dtype=torch.float32)
        out = planned.run(q * 2, key, value, table, lengths, lse=lse, workspace=workspace, k_scale=0.5)
        return out + 1, lse

    compiled_step = compiled(step, device)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for case in cases:
            arguments = (case.q, *case.caches, case.block_table[:, :8], case.seq_lens)
            wanted = case.but(q=case.q * 2, k_scale=0.5).run()
            out, lse = compiled_step(*arguments)
            check_same_bits(Result(out, lse), Result(wanted.out + 1, wanted.lse))


def test_compiled_functional_form(device: torch.device) -> None:
    """Once a shape: the workspace's size is a function of it."""

    def step(q: Tensor, key: Tensor, value: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        return decode.decode(q, key, value, table, lengths, kv_format="fp8") * 2

    compiled_step = compiled(step, device)
    for lengths in ([100, 30], [20], [5, 6, 7]):
        case = make_case(lengths, head_dim=64, device=device)
        out = compiled_step(case.q, *case.caches, case.block_table, case.seq_lens)
        assert torch.equal(out, case.run().out * 2)


def test_fake_tensors_have_the_shapes_of_results() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    case = make_case([100, 30], head_dim=64, device=torch.device("cpu"))
    planned = case.plan()
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(tensor) for tensor in (case.q, *case.caches, case.block_table, case.seq_lens)]
        out = planned.run(*fakes)
    assert out.shape == case.q.shape and out.dtype == torch.float16


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
    names: dict[str, object] = {}
    exec(SETUP.replace('"cuda"', '"cpu"'), names)
    with emulator.enabled(), pytest.raises(RuntimeError, match=r"decode_\w+_e4m3_d64\w*\+0x[0-9a-f]+: BPT.TRAP"):
        exec(action, names)


def test_bad_indices_stop_the_kernel(cuda_device: torch.device) -> None:
    """Each in a process of its own, since a trap ends a context; all at once, since a start takes seconds."""
    processes = {name: start(f"{SETUP}\n{action}\ntorch.cuda.synchronize()") for name, action in BAD_INDICES.items()}
    processes["none"] = start(f"{SETUP}\nrun()\ntorch.cuda.synchronize()")
    for name, process in processes.items():
        _, errors = process.communicate(timeout=300)
        if name == "none":
            assert process.returncode == 0, errors
        else:
            assert process.returncode != 0 and ("CUDA error" in errors or "cudaError" in errors), f"{name}: {errors}"


def test_first_call_of_a_process_inside_a_capture(cuda_device: torch.device) -> None:
    process = start(
        SETUP
        + """
workspace = decode.plan(rows=2, query_heads=3, kv_heads=1, head_dim=64, max_tokens=64, kv_format="e4m3").new_workspace()
cache.fill_(0x38)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    run(out=out)
assert int(out.count_nonzero()) == 0
graph.replay(); torch.cuda.synchronize()
assert bool((out == 1).all()), out
"""
    )
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def test_several_devices_in_one_process(cuda_device: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here: nothing to tell apart")
    first = make_case([3000, 1], device=torch.device("cuda", 0)).run()
    for index in (1, 0):
        result = make_case([3000, 1], device=torch.device("cuda", index)).run()
        check_same_bits(Result(result.out.cpu(), result.lse.cpu()), Result(first.out.cpu(), first.lse.cpu()))


def test_nothing_is_allocated_or_synchronised(cuda_device: torch.device) -> None:
    """With outputs and workspace at hand, a run leaves the allocator alone and does not wait."""
    case = make_case([3000, 1], device=cuda_device)
    into, workspace = case.new_result(), case.plan().new_workspace()
    case.run("xqa", into, workspace)
    torch.cuda.synchronize()
    allocations = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.run("xqa", into, workspace)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocations
