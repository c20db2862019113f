"""Attention operators inside torch: what is checked of each of them, on the builders of their calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import pytest
import torch
from torch import Tensor

from sm70_kernels.lab import emulator
from sm70_kernels.ops._planning import AttentionPlan
from tests.ops.attention_cases import Result, check_same_bits
from tests.ops.fresh_process import start


class Case(Protocol):
    """A call of an attention operator."""

    @property
    def q(self) -> Tensor: ...

    def plan(self) -> AttentionPlan: ...

    def new_result(self) -> Result: ...

    def run(self, *, into: Result | None = None, workspace: Tensor | None = None) -> Result: ...


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """A graph of the call, which has run once before."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def replayed(graph: torch.cuda.CUDAGraph, into: Result, workspace: Tensor) -> Result:
    """What a replay writes, with nothing left of the one before."""
    into.forget()
    workspace.fill_(0xFF)
    graph.replay()
    return into.copy()


def check_six_replays(case: Case, **named: Any) -> None:
    """Bit for bit, whatever the workspace holds. ``named`` goes to the plan and to the run."""
    into, workspace = case.new_result(), case.plan(**named).new_workspace()
    graph = captured(lambda: case.run(into=into, workspace=workspace, **named))
    first = case.run(**named)
    for replay in range(6):
        workspace.fill_(replay * 51)
        graph.replay()
        check_same_bits(into, first, f"replay {replay}:")


def check_current_stream(case: Case) -> None:
    into, workspace, expected = case.new_result(), case.plan().new_workspace(), case.run()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # the kernels must queue behind this on the side stream
        case.run(into=into, workspace=workspace)
    assert bool(into.out.isnan().all()), "the kernels did not wait for their stream"
    side.synchronize()
    check_same_bits(into, expected)


def check_streams_at_once(cases: Sequence[Case], repeats: int) -> None:
    """A stream and a workspace for each: the bits of one alone."""
    expected = [case.run() for case in cases]
    intos = [case.new_result() for case in cases]
    workspaces = [case.plan().new_workspace().fill_(0xFF) for case in cases]
    streams = [torch.cuda.Stream() for _ in cases]
    torch.cuda.synchronize()
    for _ in range(repeats):
        for case, into, workspace, stream in zip(cases, intos, workspaces, streams, strict=True):
            with torch.cuda.stream(stream):
                case.run(into=into, workspace=workspace)
    torch.cuda.synchronize()
    for into, want in zip(intos, expected, strict=True):
        check_same_bits(into, want)


def check_threads_at_once(case: Case, repeats: int) -> None:
    """Four threads, each with an emulator switch and a current stream of its own."""
    expected = case.run()
    results: list[Result] = []

    def work() -> None:
        if case.q.device.type == "cpu":
            with emulator.enabled():
                results.extend(case.run() for _ in range(repeats))
        else:
            results.extend(case.run() for _ in range(repeats))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 * repeats
    for result in results:
        check_same_bits(result, expected)


def check_devices(make: Callable[[torch.device], Case]) -> None:
    """The bits of one GPU on another, in one process."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here: nothing to tell apart")
    first = make(torch.device("cuda", 0)).run()
    for index in (1, 0):
        result = make(torch.device("cuda", index)).run()
        check_same_bits(result.cpu(), first.cpu())


def check_nothing_is_allocated_or_synchronised(case: Case) -> None:
    """With outputs and workspace at hand, a run leaves the allocator alone and does not wait."""
    into, workspace = case.new_result(), case.plan().new_workspace()
    case.run(into=into, workspace=workspace)
    torch.cuda.synchronize()
    allocations = torch.cuda.memory_stats()["allocation.all.allocated"]
    torch.cuda.set_sync_debug_mode("error")
    try:
        case.run(into=into, workspace=workspace)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == allocations


def compiled(function: Callable[..., Any], device: torch.device, on_cpu: str = "aot_eager") -> Callable[..., Any]:
    """Compiled by inductor on a GPU. Its C++ for the CPU takes long to compile, so that there the graph is enough."""
    torch._dynamo.reset()
    backend = "inductor" if device.type == "cuda" else on_cpu
    return cast(Callable[..., Any], torch.compile(function, fullgraph=True, backend=backend))


def check_compiled_paged_plan(cases: Sequence[Any], device: torch.device) -> None:
    """One plan over a paged cache, compiled once for calls of one shape."""
    planned = cases[0].plan()
    workspace = planned.new_workspace()

    def step(q: Tensor, key: Tensor, value: Tensor, table: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
        out = planned.run(q * 2, key, value, table, lengths, lse=lse, workspace=workspace, k_scale=0.5)
        return out + 1, lse

    compiled_step = compiled(step, device)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for case in cases:
            wanted = case.but(q=case.q * 2, k_scale=0.5).run()
            out, lse = compiled_step(case.q, *case.caches, case.block_table[:, :8], case.seq_lens)
            check_same_bits(Result(out, lse), Result(wanted.out + 1, wanted.lse))


def check_compiled_paged_function(function: Callable[..., Tensor], cases: Sequence[Any], device: torch.device) -> None:
    """``decode()`` or ``verify()``, compiled anew for each shape, since the workspace's size is a function of it."""

    def step(q: Tensor, key: Tensor, value: Tensor, table: Tensor, lengths: Tensor) -> Tensor:
        return function(q, key, value, table, lengths, kv_format="fp8") * 2

    compiled_step = compiled(step, device)
    for case in cases:
        assert torch.equal(compiled_step(*case.tensors), case.run().out * 2)


def check_fake_result(case: Case, tensors: Sequence[Tensor]) -> None:
    """A run on fake tensors gives one of the shape and dtype of the result."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    planned = cast(Any, case.plan())
    with FakeTensorMode() as mode:
        out = planned.run(*(mode.from_tensor(tensor) for tensor in tensors))
    assert out.shape == case.q.shape and out.dtype == torch.float16


def check_emulated_trap(setup: str, action: str, kernel: str) -> None:
    """The emulated kernel stops itself, and the error says where. ``setup`` makes tensors on "cuda"."""
    names: dict[str, object] = {}
    exec(setup.replace('"cuda"', '"cpu"'), names)
    with emulator.enabled(), pytest.raises(RuntimeError, match=rf"{kernel}\+0x[0-9a-f]+: BPT.TRAP"):
        exec(action, names)


def check_traps(setup: str, actions: dict[str, str], good: str = "run()") -> None:
    """Each in a process of its own, since a trap ends a context; all at once, since a start takes seconds."""
    everything = {**actions, "none": good}
    processes = {name: start(f"{setup}\n{action}\ntorch.cuda.synchronize()") for name, action in everything.items()}
    for name, process in processes.items():
        _, errors = process.communicate(timeout=300)
        if name == "none":
            assert process.returncode == 0, errors
        else:
            assert process.returncode != 0 and ("CUDA error" in errors or "cudaError" in errors), f"{name}: {errors}"


def check_passes(code: str) -> None:
    """The code runs in a process of its own."""
    process = start(code)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors


def check_first_call_inside_a_capture(setup: str, run: str) -> None:
    """The first call of a process is captured; ``run`` writes ones to ``out`` when it is replayed."""
    check_passes(f"""{setup}
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    {run}
assert int(out.count_nonzero()) == 0
graph.replay(); torch.cuda.synchronize()
assert bool((out == 1).all()), out
""")


def check_paged_graph(
    case: Any, steps: Sequence[tuple[Any, float, float]], fill: Callable[[int, Any], None], check: Any, **named: Any
) -> None:
    """Captured once, with every length 0; replayed: the bits of an eager call, which float64 vouches for.

    ``steps`` are lengths, K and V scale; a scale of 0 is none, and gives NaN. ``fill(seed, lengths)`` writes pages,
    table and lengths. The last step restores what step 1 had.
    """
    into, workspace = case.new_result(), case.plan(**named).new_workspace()
    graph = captured(lambda: case.run(into=into, workspace=workspace, **named))
    results: list[Result] = []
    for step, (lengths, k_scale, v_scale) in enumerate(steps):
        seed = 1 if step == len(steps) - 1 else step
        fill(seed, lengths)
        case.q.copy_(torch.randn(case.q.shape, generator=torch.Generator().manual_seed(seed)))
        case.k_scale.fill_(k_scale), case.v_scale.fill_(v_scale)
        results.append(replayed(graph, into, workspace))
        eager = case.run(**named)
        check_same_bits(results[-1], eager, f"step {step}:")
        live = case.seq_lens > 0
        if k_scale > 0 and v_scale > 0:
            check(eager, case.exact(), what=f"step {step}")
        else:
            assert bool(eager.out[live].isnan().all()) and not eager.out[~live].view(torch.int16).any()
    check_same_bits(results[-1], results[1], "restored:")
