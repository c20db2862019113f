"""The audit: facts against known machine code, budgets against planted regressions, the shipped kernels' budgets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from sm70_kernels import lab
from sm70_kernels.cli import main
from sm70_kernels.lab.audit import budget as budgets
from sm70_kernels.lab.audit import facts as facts_module
from sm70_kernels.lab.audit import machine, operators
from sm70_kernels.lab.audit.facts import KernelFacts, Launch, kernel_facts
from sm70_kernels.lab.audit.loops import find_loops
from sm70_kernels.lab.audit.occupancy import most_registers, occupancy
from tests.emulator import KERNELS

# --- occupancy: values of NVIDIA's occupancy calculator


@pytest.mark.parametrize(
    "threads,registers,shared,blocks,warps,limiter",
    [
        (256, 32, 0, 8, 64, "registers"),
        (256, 33, 0, 6, 48, "registers"),
        (256, 40, 0, 6, 48, "registers"),
        (256, 48, 0, 5, 40, "registers"),
        (256, 56, 0, 4, 32, "registers"),
        (256, 64, 0, 4, 32, "registers"),
        (256, 16, 0, 8, 64, "warps"),
        (128, 255, 0, 2, 8, "registers"),
        (128, 168, 0, 3, 12, "registers"),  # 12 warps: three of each sub-core's four
        (128, 169, 0, 2, 8, "registers"),
        (1024, 64, 0, 1, 32, "registers"),
        (1024, 65, 0, 0, 0, "registers"),
        (32, 16, 0, 32, 32, "blocks"),
        (96, 16, 0, 21, 63, "warps"),
        (256, 32, 48 * 1024, 2, 16, "shared memory"),
        (256, 32, 32 * 1024 + 1, 2, 16, "shared memory"),
        (256, 32, 32 * 1024, 3, 24, "shared memory"),
        (256, 32, 96 * 1024, 1, 8, "shared memory"),
        (256, 32, 96 * 1024 + 1, 0, 0, "shared memory"),
    ],
)
def test_occupancy(threads: int, registers: int, shared: int, blocks: int, warps: int, limiter: str) -> None:
    for static in (0, shared):
        found = occupancy(threads, registers, static, shared - static)
        assert (found.blocks, found.warps, found.limiter) == (blocks, warps, limiter)
        assert found.share == warps / 64


def test_most_registers_stop_at_the_edge() -> None:
    assert most_registers(256, 33, 0, 0) == 40
    assert most_registers(256, 41, 0, 0) == 48
    assert most_registers(256, 24, 0, 48 * 1024) == 128  # shared memory limits: registers are free
    assert most_registers(128, 200, 0, 0) == machine.MAX_REGISTERS_PER_THREAD


# --- loops


def test_loops_of_a_graph() -> None:
    #  0 -> 1 -> 2 -> 3 -> 2 (inner), 3 -> 4 -> 1 (outer), 4 -> 5; 6 -> 6 is not reached; 7 -> 8 -> 7 is a function
    graph = [[1], [2], [3], [2, 4], [1, 5], [], [6], [8], [7, 5]]
    found = find_loops(graph, entries=(0, 7))
    assert [(loop.header, sorted(loop.body), loop.depth, loop.innermost) for loop in found] == [
        (1, [1, 2, 3, 4], 1, False),
        (2, [2, 3], 2, True),
        (7, [7, 8], 1, True),
    ]
    assert [loop.header for loop in find_loops(graph, least=3)] == [1]
    assert find_loops(graph, least=3)[0].innermost  # the short one inside does not count


def test_two_ways_back_to_one_header_are_one_loop() -> None:
    graph = [[1], [2, 3], [1], [1, 4], []]
    (loop,) = find_loops(graph)
    assert sorted(loop.body) == [1, 2, 3]


def test_a_cycle_with_two_entries_is_no_natural_loop() -> None:
    assert find_loops([[1, 2], [2], [1, 3], []]) == []


# --- facts of known machine code

PLAIN = """
extern "C" __global__ void __launch_bounds__(256) kernel(const float4* in, float4* out, int n) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        const float4 a = in[i * 512 + threadIdx.x], b = in[i * 512 + threadIdx.x + 256];
        sum.x = __fadd_rn(sum.x, a.w);
        sum.y = __fadd_rn(sum.y, a.x);
        sum.z = __fadd_rn(sum.z, a.y);
        sum.w = __fadd_rn(sum.w, a.z);
        sum.x = __fmaf_rn(a.x, b.x, sum.x);
        sum.y = __fmaf_rn(a.y, b.y, sum.y);
        sum.z = __fmaf_rn(a.z, b.z, sum.z);
        sum.w = __fmaf_rn(a.w, b.w, sum.w);
        asm volatile("" : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w));
    }  // of the loop
    out[threadIdx.x] = sum;
}
"""
NARROW = """
__device__ float4 load(const float4* in) {
    const volatile float* p = (const volatile float*)in;
    return make_float4(p[0], p[1], p[2], p[3]);
}
"""
MORE = """
#pragma unroll
        for (int k = 0; k < 80; ++k) sum.x = __fdividef(sum.y, sum.x);
    }  // of the loop
"""
STACK = """
    float keep[64];
#pragma unroll 1
    for (int k = 0; k < 64; ++k) keep[k] = in[k].x;
    sum.x += keep[n & 63] + keep[n >> 3 & 63];
    out[threadIdx.x] = sum;
"""
SHARED = """
    __shared__ float4 shared[2048];
    shared[threadIdx.x] = sum;
    __syncthreads();
    out[threadIdx.x] = shared[255 - threadIdx.x];
"""
AGAIN = """
    out[threadIdx.x] = sum;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        float4 b = in[i + threadIdx.x];
        b.x = __fdividef(b.x, b.y);
        b.z = __fdividef(b.z, b.w);
        b.y = __fdividef(b.x, b.z);
        b.w = __fdividef(b.w, b.x);
        out[i + 256 + threadIdx.x] = b;
    }
"""
#: What a careless change may do to the kernel -> its source, and words of the finding.
REGRESSIONS = {
    "narrow loads": (
        NARROW + PLAIN.replace("b = in[i * 512 + threadIdx.x + 256]", "b = load(in + i * 512 + threadIdx.x + 256)"),
        "128-bit accesses to global memory: found 33 %, the budget is at least 100 %",
    ),
    "more work in the loop": (PLAIN.replace("    }  // of the loop\n", MORE), "cycles a turn of the loop at"),
    "a stack array": (
        PLAIN.replace("    out[threadIdx.x] = sum;\n", STACK),
        "local bytes: found 256, the budget is at most 0",
    ),
    "static shared memory": (
        PLAIN.replace("    out[threadIdx.x] = sum;\n", SHARED),
        "static shared bytes: found 32768, the budget is at most 0",
    ),
    "another loop": (
        PLAIN.replace("    out[threadIdx.x] = sum;\n", AGAIN),
        "loops: found 2, the budget is at most 1",
    ),
}


def facts_of(source: str, folder: Path, launches: tuple[Launch, ...] = (Launch(block=256),)) -> KernelFacts:
    module = lab.compile_source(source).code
    return kernel_facts(module, "kernel", launches)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> KernelFacts:
    return facts_of(PLAIN, tmp_path_factory.mktemp("plain"))


def test_facts_of_a_kernel(plain: KernelFacts) -> None:
    assert plain.registers >= plain.max_live_registers > 8
    assert (plain.local_bytes, plain.static_shared_bytes, plain.spill_bytes, plain.hmma) == (0, 0, 0, 0)
    assert plain.global_accesses == {"128": 3} and plain.shared_accesses == {}
    assert (plain.wide_global_percent, plain.wide_shared_percent) == (100, 100)
    assert sum(plain.pipes.values()) == plain.instructions
    (loop,) = plain.loops
    assert (loop.depth, loop.innermost, loop.global_bytes) == (1, True, 1024)
    assert loop.pipes["fma"] >= 4 * 2 and loop.pipes["lsu"] >= 2 * 4
    # 1024 bytes at 1.92 a cycle are more than the few instructions around them.
    assert (loop.limiter, loop.bound_cycles) == ("dram", round(1024 / machine.DRAM_BYTES_PER_CYCLE)) == ("dram", 532)
    assert loop.stall_cycles >= loop.instructions >= facts_module.LEAST_LOOP


def test_a_loop_by_hand(tmp_path: Path) -> None:
    source = (KERNELS / "statistics.cu").read_text()
    program = lab.compile_source(source)
    code = program.code.analyse("trips")
    (loop,) = find_loops([i["successors"] for i in code])
    texts = [code[i]["opcode"] for i in sorted(loop.body)]
    assert texts == ["SHFL", "IADD3", "FADD", "ISETP", "BRA"]
    found = facts_module._loop_facts(loop, code)
    assert found.pipes == {"lsu": 4, "alu": 4, "fma": 2, "cbu": 2}
    assert (found.instructions, found.bound_cycles, found.limiter, found.global_bytes) == (5, 5, "issue", 0)
    assert found.stall_cycles == sum(code[i]["stall"] for i in loop.body)
    assert found.source.endswith("kernel.cu:" + found.source.rsplit(":", 1)[1])


def test_tensor_core_steps_are_counted(tmp_path: Path) -> None:
    source = (KERNELS / "tensor.cu").read_text()
    module = lab.compile_source(source).code
    found = kernel_facts(module, "gemm", [Launch(block=128)])
    assert found.hmma == found.pipes["tensor"] > 0 and found.hmma % 4 == 0
    most = max(loop.pipes.get("tensor", 0) for loop in found.loops)
    assert 0 < most <= 2 * found.hmma and most % 8 == 0  # two cycles a step, four steps an m8n8k4


# --- budgets


def test_a_kernel_is_within_its_own_budget(plain: KernelFacts) -> None:
    assert budgets.check({"kernel": plain}, budgets.renew({"kernel": plain}, None, None)) == []


@pytest.mark.parametrize("name", REGRESSIONS)
def test_a_planted_regression_is_found(plain: KernelFacts, tmp_path: Path, name: str) -> None:
    source, words = REGRESSIONS[name]
    assert source != PLAIN
    budget = budgets.renew({"kernel": plain}, None, None)
    findings = budgets.check({"kernel": facts_of(source, tmp_path)}, budget)
    assert any(words in str(finding) for finding in findings), [str(finding) for finding in findings]


def test_registers_count_where_occupancy_hangs_on_them(plain: KernelFacts) -> None:
    budget = budgets.renew({"kernel": plain}, None, None).kernels["kernel"]
    edge = budget.registers
    assert edge >= plain.registers
    for registers, lost in ((edge, False), (edge + 1, True)):
        shape = occupancy(256, registers, 0, 0)
        found = budgets.check_kernel(
            "kernel", msgspec.structs.replace(plain, registers=registers, occupancy=[shape]), budget
        )
        assert bool(found) == lost
    assert found[0].what == "registers"


def test_spills_are_found(plain: KernelFacts) -> None:
    budget = budgets.renew({"kernel": plain}, None, None)
    (finding,) = budgets.check({"kernel": msgspec.structs.replace(plain, spill_bytes=8)}, budget)
    assert str(finding) == "kernel: spill bytes: found 8, the budget is at most 0"


def test_occupancy_lost_to_dynamic_shared_memory_is_found(plain: KernelFacts) -> None:
    launches = (Launch(block=256), Launch(block=128, dynamic_shared_bytes=16 * 1024))
    shapes = [occupancy(launch.block, plain.registers, 0, launch.dynamic_shared_bytes) for launch in launches]
    two = msgspec.structs.replace(plain, occupancy=shapes)
    budget = budgets.renew({"kernel": two}, None, None)
    assert budget.kernels["kernel"].resident_warps == [shapes[0].warps, 24]
    fewer = occupancy(128, plain.registers, 256, 16 * 1024)
    worse = msgspec.structs.replace(two, static_shared_bytes=256, occupancy=[shapes[0], fewer])
    words = [str(finding) for finding in budgets.check({"kernel": worse}, budget)]
    assert any("found 20 (shared memory), the budget is at least 24" in line for line in words)


def test_kernels_come_and_go(plain: KernelFacts) -> None:
    budget = budgets.renew({"kernel": plain}, None, None)
    new, gone = budgets.check({"other": plain}, budget)
    assert (new.kernel, new.found) == ("other", "a new kernel")
    assert (gone.kernel, gone.found) == ("kernel", "none of this name")
    assert list(budgets.renew({"other": plain}, budget, None).kernels) == ["other"]  # no limit got worse


def test_fewer_but_longer_loops_are_compared_by_the_longest(plain: KernelFacts) -> None:
    (loop,) = plain.loops
    two = msgspec.structs.replace(plain, loops=[loop, loop])
    budget = budgets.renew({"kernel": two}, None, None)
    assert budgets.check({"kernel": plain}, budget) == []
    longer = msgspec.structs.replace(loop, bound_cycles=2 * loop.bound_cycles)
    (finding,) = budgets.check({"kernel": msgspec.structs.replace(plain, loops=[longer])}, budget)
    assert finding.what == "cycles a turn of the longest loop"


def test_a_loop_has_two_percent_of_slack(plain: KernelFacts) -> None:
    (loop,) = plain.loops
    budget = budgets.renew({"kernel": plain}, None, None)
    for cycles, findings in ((loop.bound_cycles * 102 // 100, 0), (loop.bound_cycles * 102 // 100 + 2, 1)):
        changed = msgspec.structs.replace(loop, bound_cycles=cycles)
        assert len(budgets.check({"kernel": msgspec.structs.replace(plain, loops=[changed])}, budget)) == findings


def test_slack_is_not_given_twice(plain: KernelFacts) -> None:
    (loop,) = plain.loops
    budget = budgets.renew({"kernel": plain}, None, None)
    slower = {"kernel": msgspec.structs.replace(plain, loops=[msgspec.structs.replace(loop, bound_cycles=540)])}
    assert loop.bound_cycles == 532 and budgets.check(slower, budget) == []
    assert budgets.renew(slower, budget, None).kernels["kernel"].loop_cycles == budget.kernels["kernel"].loop_cycles
    faster = {"kernel": msgspec.structs.replace(plain, loops=[msgspec.structs.replace(loop, bound_cycles=300)])}
    assert budgets.renew(faster, budget, None).kernels["kernel"].loop_cycles == [306]


def test_raising_a_limit_needs_a_reason_and_keeps_it(plain: KernelFacts, tmp_path: Path) -> None:
    path = tmp_path / "budget.json"
    budgets.write(path, budgets.renew({"kernel": plain}, None, None))
    old = budgets.read(path)
    worse = {"kernel": msgspec.structs.replace(plain, spill_bytes=8)}
    with pytest.raises(budgets.BudgetError, match=r"needs a reason \(--because 'REASON'\):\n  kernel: spill bytes"):
        budgets.renew(worse, old, None)
    raised = budgets.renew(worse, old, "an accumulator more")
    assert budgets.check(worse, raised) == []
    assert [(entry.kernel, entry.because) for entry in raised.raised] == [("kernel", "an accumulator more")]
    assert raised.raised[0].what == "spill bytes: 8, was at most 0"
    again = budgets.renew({"kernel": plain}, raised, None)  # better: no reason, and the history stays
    assert again.raised == raised.raised and again.kernels["kernel"].spill_bytes == 0
    path.write_text('{"kernels": 3}')
    with pytest.raises(budgets.BudgetError, match="is no budget"):
        budgets.read(path)


# --- what is shipped


@pytest.mark.parametrize("operator", operators.operators())
def test_an_operator_keeps_its_budget(operator: str) -> None:
    operators.known()  # built, and as the sources are
    found = operators.audit(operator)
    assert not found.findings, "\n".join([*map(str, found.findings), str(found.remedy)])
    assert all(kernel.occupancy[0].blocks > 0 for kernel in found.kernels.values())


def test_declared_launches_are_those_of_the_operator() -> None:
    torch = pytest.importorskip("torch")
    from sm70_kernels.lab import inspect
    from sm70_kernels.ops import kv_cache

    k = torch.ones(40, 1, 64, dtype=torch.float16)
    lengths = torch.tensor([40], dtype=torch.int32)
    with inspect.statistics() as watched:
        for name, dtype in (("e4m3", torch.uint8), ("fp16", torch.float16)):
            caches = torch.zeros(3, 2, 16, 1, 64, dtype=dtype).unbind(1)
            kv_cache.write_paged_kv(k, k, *caches, torch.arange(40), kv_format=name)
            table = torch.arange(3, dtype=torch.int32)[None]
            kv_cache.gather_paged_kv(*caches, table, lengths, kv_format=name, max_tokens=48)
    budget = budgets.read(operators.budget_path("kv_cache"))
    assert budget is not None and len(watched.kernels) == 4
    for name, kernel in watched.kernels.items():
        declared = [(launch.block, launch.dynamic_shared_bytes) for launch in budget.kernels[name].launches]
        assert {(threads, shared) for threads, shared, _ in kernel.shapes} <= set(declared)


# --- the command


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["audit", *arguments])


@pytest.fixture
def own_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """kv_cache's budget, in a copy that the command takes for the checkout's."""
    path = tmp_path / "kv_cache" / "budget.json"
    path.parent.mkdir()
    path.write_bytes(operators.budget_path("kv_cache").read_bytes())
    monkeypatch.setattr(operators, "budget_path", lambda operator, root=None: path)
    monkeypatch.setattr("sm70_kernels.build.settings.ROOT", tmp_path)
    return path


def edit(path: Path, **limits: Any) -> None:
    document = json.loads(path.read_text())
    document["kernels"]["kv_cache_write_e4m3_x8"].update(limits)
    path.write_text(json.dumps(document))


def test_the_command_prints_facts_and_findings(own_budget: Path) -> None:
    fine = invoke("kv_cache")
    assert fine.exit_code == 0, fine.output
    assert "kernels are within their budgets" in fine.output
    assert "64/64 registers" in fine.output and "csrc/ops/kv_cache/" in fine.output
    edit(own_budget, resident_warps=[65], loop_cycles=[1, 1000, 1000, 1000])
    off = invoke("kv_cache")
    assert off.exit_code == 1
    assert "resident warps of 256 threads with 0 bytes of shared memory: found 64" in off.output
    assert "sm70-kernels audit kv_cache --write --because 'REASON'" in off.output
    document = json.loads(invoke("kv_cache", "--json").output)
    assert document["operators"][0]["findings"][0]["kernel"] == "kv_cache_write_e4m3_x8"


def test_the_command_writes_a_budget(own_budget: Path) -> None:
    edit(own_budget, registers=24)
    refused = invoke("kv_cache", "--write")
    assert refused.exit_code == 1 and "registers: found 32, the budget is at most 24" in refused.output
    written = invoke("kv_cache", "--write", "--because", "a test")
    assert written.exit_code == 0, written.output
    budget = budgets.read(own_budget)
    assert budget is not None and budget.raised[0].because == "a test"
    assert budget.kernels["kv_cache_write_e4m3_x8"].registers == 32
    watched = own_budget.with_name("watched.json")
    watched.write_text('{"kernels": {"kv_cache_write_e4m3_x8": {"shapes": [[128, 4096, 3]], "warps": 1}}}')
    assert invoke("kv_cache", "--write", "--launches", str(watched)).exit_code == 0
    budget = budgets.read(own_budget)
    assert budget is not None
    assert budget.kernels["kv_cache_write_e4m3_x8"].launches == [Launch(block=128, dynamic_shared_bytes=4096)]
    assert budget.kernels["kv_cache_write_e4m3_x1"].launches == [Launch(block=256)]
    assert invoke("kv_cache").exit_code == 0
    watched.write_text("[]")
    assert "is not what 'sm70-kernels statistics --json' prints" in (
        invoke("kv_cache", "--write", "--launches", str(watched)).output
    )


def test_an_operator_without_a_budget(own_budget: Path) -> None:
    own_budget.unlink()
    missing = invoke("kv_cache")
    assert missing.exit_code == 1
    assert "budget: found none" in missing.output and "Write it: sm70-kernels audit kv_cache --write" in missing.output
    assert invoke("kv_cache", "--write").exit_code == 0
    assert invoke("kv_cache").exit_code == 0


def test_what_the_command_refuses(tmp_path: Path) -> None:
    for arguments, words in (
        (("--write",), "needs the operators"),
        (("fuse",), "got 'fuse', want one of"),
        (("kv_cache", "--because", "x"), "are about --write"),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2 and words in result.output
    with pytest.raises(operators.EvidenceError, match="needs a checkout"):
        operators.known(tmp_path)
