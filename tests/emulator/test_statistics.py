"""The statistics instrument: kernels whose counts are known beforehand, and live registers against nvdisasm."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm70_kernels import lab
from sm70_kernels.lab import inspect
from sm70_kernels.lab.inspect import InstructionStatistics, KernelStatistics
from sm70_kernels.lab.inspect.watching import read_report
from sm70_kernels.lab.instruments import InstrumentError, Instruments
from sm70_kernels.lab.toolchain import tool

LANES = np.arange(32)


def watch(program, kernel: str, *arguments: Any, grid=1, block=32, **options: Any) -> KernelStatistics:
    """Statistics of one launch."""
    with Instruments("statistics") as instruments:
        program.kernel(kernel).launch(grid, block, arguments, instruments=instruments, **options)
        return read_report(instruments.report("statistics"))[kernel]


def only(kernel: KernelStatistics, opcode: str, **fields: Any) -> InstructionStatistics:
    """The one executed instruction of this opcode with these fields."""
    (found,) = (
        i
        for i in kernel.instructions
        if i.opcode == opcode and i.warps and all(getattr(i, name) == value for name, value in fields.items())
    )
    return found


def on_a_line(count: int, dtype: Any) -> np.ndarray:
    """Ones at an address that is a multiple of 128 bytes."""
    storage = np.zeros(count * np.dtype(dtype).itemsize + 128, np.uint8)
    start = -storage.ctypes.data % 128
    array = storage[start : start + count * np.dtype(dtype).itemsize].view(dtype)
    array[:] = 1
    return array


# --- shared memory


def shared(compiled, kernel: str, index) -> InstructionStatistics:
    index = np.array(index, np.int32)
    width = int(kernel.rsplit("_", 1)[1])
    out = np.zeros((32, 16), np.uint8)
    found = watch(
        compiled("statistics"), kernel, index, out, outputs=(1,), dynamic_shared_bytes=width * (int(index.max()) + 1)
    )
    return only(found, "LDS")


@pytest.mark.parametrize(
    "kernel,index,wavefronts,least",
    [
        # 32 banks of 4 bytes: a stride of k words is a k-way conflict for powers of two, and none if it is odd.
        ("shared_read_4", LANES, 1, 1),
        ("shared_read_4", LANES * 2, 2, 1),
        ("shared_read_4", LANES * 8, 8, 1),
        ("shared_read_4", LANES * 32, 32, 1),
        ("shared_read_4", LANES * 33, 1, 1),
        ("shared_read_4", LANES * 0, 1, 1),  # a broadcast
        ("shared_read_4", LANES // 2 * 32, 16, 1),  # pairs share a word, sixteen words share a bank
        ("shared_read_4", np.where(LANES < 5, LANES * 32, -1), 5, 1),  # five lanes take part
        ("shared_read_1", LANES, 1, 1),  # four lanes a word
        ("shared_read_1", LANES * 128, 32, 1),
        # 64 bits: half-warps.
        ("shared_read_8", LANES, 2, 2),
        ("shared_read_8", LANES * 2, 4, 2),
        ("shared_read_8", np.where(LANES < 16, LANES, -1), 1, 1),
        ("shared_read_8", LANES % 8, 2, 2),  # shared by lanes eight apart, which helps nothing
        ("shared_read_8", LANES // 2, 1, 1),  # lane ^ 1 pairs
        ("shared_read_8", LANES * 16, 32, 2),
        # 128 bits: quarter-warps, four wavefronts whatever lanes share, unless they pair up.
        ("shared_read_16", LANES, 4, 4),
        ("shared_read_16", LANES % 8, 4, 4),
        ("shared_read_16", LANES % 4, 4, 4),
        ("shared_read_16", LANES // 8, 2, 2),  # a word a quarter: pairs both ways
        ("shared_read_16", LANES * 0, 2, 2),
        ("shared_read_16", LANES // 2, 2, 2),  # lane ^ 1
        ("shared_read_16", LANES // 4 * 2 + LANES % 2, 2, 2),  # lane ^ 2
        ("shared_read_16", LANES & ~2, 4, 2),  # the same, and a two-way conflict
        ("shared_read_16", LANES & ~4, 4, 4),  # lane ^ 4 is no pair
        ("shared_read_16", LANES * 2, 8, 4),  # eight lanes over half the banks: two-way
        ("shared_read_16", LANES * 8, 32, 4),
        ("shared_read_16", np.where(LANES % 8 == 0, LANES // 8, -1), 2, 2),  # alone, lanes pair with absent ones
    ],
)
def test_wavefronts_of_shared_loads(compiled, kernel, index, wavefronts, least):
    found = shared(compiled, kernel, index)
    assert (found.wavefronts, found.ideal_wavefronts) == (wavefronts, least)
    assert found.bank_conflicts == wavefronts - least
    assert found.requests == 1
    assert found.bytes == int(kernel.rsplit("_", 1)[1]) * int((np.array(index) >= 0).sum())


def test_wavefronts_of_shared_stores_and_atomics(compiled):
    program = compiled("statistics")
    store = watch(program, "shared_write_16", LANES.astype(np.int32), dynamic_shared_bytes=512)
    assert only(store, "STS").wavefronts == 4
    for index, wavefronts in ((LANES, 1), (LANES * 2, 2), (LANES % 8, 4), (LANES * 0, 32)):
        atomics = watch(program, "shared_count", index.astype(np.int32), dynamic_shared_bytes=256)
        assert only(atomics, "ATOMS").wavefronts == wavefronts  # lanes that want one word wait for each other


# --- global memory


def read_global(compiled, width: int, index, *, base: int = 0) -> InstructionStatistics:
    index = np.array(index, np.int32)
    source = on_a_line(width * (int(index.max()) + 1) + base, np.uint8)[base:]
    out = np.zeros((32, 16), np.uint8)
    found = watch(compiled("statistics"), f"global_read_{width}", source, index, out, outputs=(2,))
    return [i for i in found.instructions if i.opcode == "LDG"][-1]  # the first one reads the index


@pytest.mark.parametrize(
    "width,index,base,sectors,ideal",
    [
        (4, LANES, 0, 4, 4),
        (4, LANES, 4, 5, 4),  # one word off: a sector more
        (4, LANES * 2, 0, 8, 4),
        (4, LANES * 8, 0, 32, 4),
        (4, LANES * 100, 0, 32, 4),
        (4, LANES * 0, 0, 1, 1),
        (4, LANES[::-1].copy(), 0, 4, 4),  # order is of no matter
        (4, LANES % 8, 0, 1, 1),
        (4, np.where(LANES < 9, LANES, -1), 0, 2, 2),
        (1, LANES, 0, 1, 1),
        (1, LANES * 32, 0, 32, 1),
        (2, LANES, 0, 2, 2),
        (2, LANES, 30, 3, 2),
        (8, LANES, 0, 8, 8),
        (8, LANES * 4, 0, 32, 8),
        (16, LANES, 0, 16, 16),
        (16, LANES, 16, 17, 16),
        (16, LANES * 2, 0, 32, 16),
        (16, LANES // 2, 0, 8, 8),
    ],
)
def test_sectors_of_global_loads(compiled, width, index, base, sectors, ideal):
    found = read_global(compiled, width, index, base=base)
    assert (found.requests, found.sectors, found.ideal_sectors) == (1, sectors, ideal)
    assert found.bytes == width * int((np.array(index) >= 0).sum())


def test_random_addresses_against_a_plain_count(compiled):
    random = np.random.default_rng(1)
    for width in (1, 2, 4, 8, 16):
        for span in (4, 40, 400):
            index = random.integers(0, span, 32)
            found = read_global(compiled, width, index)
            assert found.sectors == len({int(i) * width // 32 for i in index})
            assert found.ideal_sectors == -(-len(set(index.tolist())) * width // 32)
            if width == 2:
                continue
            found = shared(compiled, f"shared_read_{width}", index)
            words = [{int(i) * width // 4 + word for word in range(max(1, width // 4))} for i in index]
            group = {1: 32, 4: 32, 8: 16, 16: 8}[width]
            if width > 4 and any(all(index[lane] == index[lane ^ step] for lane in LANES) for step in (1, 2)):
                group *= 2
            expected = 0
            for first in range(0, 32, group):
                wanted = set().union(*words[first : first + group])
                expected += max(sum(word % 32 == bank for word in wanted) for bank in range(32))
            assert found.wavefronts == expected


def test_atomics_on_global_memory(compiled):
    counts = np.zeros(32, np.int32)
    found = watch(compiled("statistics"), "global_count", counts, (LANES % 4).astype(np.int32), outputs=(0,))
    (((space, access, width), totals),) = ((k, v) for k, v in found.memory().items() if k[1] == "atomic")
    assert (space, access, width) == ("global", "atomic", 4)
    assert (totals.requests, totals.bytes, totals.ideal_sectors) == (1, 128, 1)
    assert counts[:4].tolist() == [8] * 4


@pytest.mark.parametrize("from_shared", [0, 1])
def test_a_generic_load_counts_where_it_points(compiled, from_shared):
    values = np.arange(32, dtype=np.float32)
    out = np.zeros(32, np.float32)
    found = watch(compiled("statistics"), "generic_read", values, out, np.int32(from_shared), outputs=(1,))
    load = only(found, "LD")
    assert load.space == "generic"
    assert (load.wavefronts, load.sectors > 0) == ((1, False) if from_shared else (0, True))
    assert found.barriers == 1


def test_stack_words_lie_lane_by_lane(compiled):
    out = np.zeros(32, np.int32)
    same = watch(compiled("statistics"), "stack", np.zeros(32, np.int32), out, outputs=(1,))
    store, load = only(same, "STL"), only(same, "LDL")
    assert (store.requests, store.sectors, store.ideal_sectors) == (64, 64 * 4, 64 * 4)
    assert (load.space, load.requests, load.sectors) == ("local", 1, 4)
    apart = watch(compiled("statistics"), "stack", LANES.astype(np.int32), out, outputs=(1,))
    assert only(apart, "LDL").sectors == 32
    assert out.tolist() == LANES.tolist()


# --- lanes


def test_divergence_and_lane_utilisation(compiled):
    out = np.zeros(64, np.float32)
    trips = np.concatenate([1 + LANES % 4, np.full(32, 3)]).astype(np.int32)
    found = watch(compiled("statistics"), "trips", trips, out, block=64, outputs=(1,))
    # The first warp goes round four times, and after three of them some lanes leave; the second stays together.
    body = only(found, "FADD")
    assert (body.warps, body.threads) == (4 + 3, int(trips.sum()))
    branch = only(found, "BRA")
    assert (branch.warps, branch.divergent) == (7, 3)
    assert (found.branches, found.divergent_branches) == (7, 3)
    assert branch.active == int(trips.sum())
    assert branch.threads == int((trips - 1).sum())  # those that go round again
    assert found.executing_lanes < found.active_lanes < 32
    assert found.thread_instructions == sum(i.threads for i in found.instructions)
    assert (found.blocks, found.warps, found.launches) == (1, 2, 1)


def test_without_divergence_all_lanes_are_active(compiled):
    out = np.zeros(32, np.float32)
    found = watch(compiled("statistics"), "trips", np.full(32, 5, np.int32), out, outputs=(1,))
    assert found.divergent_branches == 0
    assert found.active_lanes == 32


# --- totals


def test_counts_by_opcode_and_pipe(compiled):
    x, y = on_a_line(32, np.float32), on_a_line(32, np.float32)
    program = compiled("statistics")
    with Instruments("statistics") as instruments:
        for _ in range(3):
            done = program.kernel("saxpy").launch(2, 32, [np.float32(2), x, y], outputs=(2,), instruments=instruments)
        found = read_report(instruments.report("statistics"))["saxpy"]
    assert (found.launches, found.blocks, found.warps, found.shapes) == (3, 6, 6, [(32, 0, 3)])
    assert found.issued == 3 * done.warp_instructions == 6 * 11
    by_opcode = {opcode: tally.warps // 6 for opcode, tally in found.by_opcode().items()}
    # MOV R1; SHFL; S2R; MOV; IMAD.WIDE twice; LDG twice; FFMA; STG; EXIT
    assert by_opcode == {"IMAD": 2, "MOV": 2, "LDG": 2, "SHFL": 1, "S2R": 1, "FFMA": 1, "STG": 1, "EXIT": 1}
    by_pipe = {pipe: (tally.warps // 6, tally.busy_cycles // 6) for pipe, tally in found.by_pipe().items()}
    assert by_pipe == {
        "lsu": (5, 5 * 4),
        "fma": (3, 2 * 4 + 2),  # IMAD.WIDE takes four cycles, FFMA two
        "alu": (2, 2 * 2),
        "cbu": (1, 2),
    }
    assert found.instructions[1].threads == 0  # @!PT
    lines = found.by_line()
    assert sum(i.warps for group in lines.values() for i in group) == found.issued
    assert all(place.endswith("statistics.cu:" + place.rsplit(":", 1)[1]) for place in lines)
    loads = found.memory()["global", "load", 4]
    assert (loads.requests, loads.bytes, loads.sectors_per_request, loads.coalescing) == (12, 12 * 128, 4.0, 1.0)


def test_bank_conflicts_keep_the_port_busy(compiled):
    straight, conflicting = (
        watch(
            compiled("statistics"), "shared_read_4", (LANES * step).astype(np.int32), np.zeros(128, np.float32),
            outputs=(1,), dynamic_shared_bytes=4096,
        )
        for step in (1, 16)
    )  # fmt: skip
    assert only(straight, "LDS").busy_cycles == 4
    assert only(conflicting, "LDS").busy_cycles == 4 * 16
    assert conflicting.by_pipe()["lsu"].busy_cycles == straight.by_pipe()["lsu"].busy_cycles + 60


def test_counts_do_not_depend_on_threads_or_schedule(compiled):
    out = np.zeros(32 * 8, np.float32)
    trips = np.tile(1 + LANES % 4, 8).astype(np.int32)
    program = compiled("statistics")
    found = [
        watch(program, "trips", trips, out, grid=16, block=256, outputs=(1,), threads=threads, seed=seed)
        for threads, seed in ((1, 0), (4, 0), (2, 7))
    ]
    assert found[0] == found[1]
    assert found[2].thread_instructions == found[0].thread_instructions  # another schedule, the same work


def test_two_cubins_with_one_name_are_refused(compiled, tmp_path):
    other = 'extern "C" __global__ void saxpy(float* y) { y[threadIdx.x] = 1; }'
    y = np.ones(32, np.float32)
    with Instruments("statistics") as instruments:
        arguments = np.float32(2), y, y.copy()
        compiled("statistics").kernel("saxpy").launch(1, 32, arguments, outputs=(2,), instruments=instruments)
        program = lab.compile_source(other)
        with pytest.raises(lab.EmulatorError, match="two cubins have a kernel saxpy"):
            program.kernel("saxpy").launch(1, 32, [y], outputs=(0,), instruments=instruments)
    with pytest.raises(InstrumentError, match="takes no options"):
        Instruments(statistics={"depth": 1})


# --- live registers


def test_live_registers_by_hand(compiled):
    expected = [
        ("MOV R1, c[0x0][0x28]", 1),  # written, and never read
        ("@!PT SHFL.IDX PT, RZ, RZ, RZ, RZ", 0),
        ("S2R R4, SR_TID.X", 1),
        ("MOV R5, 0x4", 2),
        ("IMAD.WIDE.U32 R2, R4, R5, c[0x0][0x168]", 4),  # R2 R3 R4 R5
        ("IMAD.WIDE.U32 R4, R4, R5, c[0x0][0x170]", 4),
        ("LDG.E.SYS R2, [R2]", 4),
        ("LDG.E.SYS R7, [R4]", 4),  # R2 R4 R5 R7
        ("FFMA R7, R2, c[0x0][0x160], R7", 4),
        ("STG.E.SYS [R4], R7", 3),
        ("EXIT", 0),
    ]
    code = compiled("statistics").code.analyse("saxpy")
    assert [(i["text"], i["live_registers"]) for i in code[: len(expected)]] == expected
    assert code[4]["written"] == [(2, 2)] and code[4]["read"] == [(4, 1), (5, 1)]
    assert code[9]["written"] == [] and code[9]["read"] == [(4, 2), (7, 1)]
    assert code[10]["successors"] == [] and code[9]["successors"] == [10]


def printed_live_registers(cubin: bytes, folder) -> dict[str, list[int]]:
    """Kernel -> the count that nvdisasm prints beside each instruction."""
    path = folder / "image.cubin"
    path.write_bytes(cubin)
    command = [tool("nvdisasm"), "-c", "-lrm", "count", path]
    kernels: dict[str, list[int]] = {}
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([^,]+),", line):
            counts = kernels.setdefault(section.group(1), [])
        elif count := re.match(r"\s*/\*[0-9a-f]{4,}\*/.*//\s*\|\s*(\d*)", line):
            counts.append(int(count.group(1) or 0))
    return kernels


@pytest.mark.parametrize("source", ["memory", "tensor", "statistics"])
def test_live_registers_are_those_that_nvdisasm_counts(compiled, tmp_path, source):
    program = compiled(source)
    printed = printed_live_registers(program.cubin, tmp_path)
    compared = 0
    for kernel in program.code.kernels():
        code = program.code.analyse(kernel)
        # nvdisasm keeps R1, the stack pointer, alive to the end; and it takes a register that is first written under a
        # guard for live from the start.
        guarded = any(i["guard"] >= 0 and i["written"] for i in code)
        if guarded or any(i["opcode"] == "CALL" for i in code):
            continue
        if any((1, 1) in i["read"] for i in code):
            continue
        without_r1 = [count - 1 for count in printed[kernel]]
        found = [i["live_registers"] for i in code]
        assert len(without_r1) > 5
        assert found[1 : len(without_r1)] == without_r1[1:], kernel  # the first instruction writes R1
        assert not any(found[len(without_r1) :])  # padding behind the kernel's end, of which nothing is printed
        compared += 1
    assert compared >= 5


def test_live_registers_around_a_call(compiled):
    code = compiled("programs").code.analyse("softmax")
    calls = [i for i, instruction in enumerate(code) if instruction["opcode"] == "CALL"]
    assert calls
    for at in calls:
        callee = code[at]["callee"]
        assert 0 < callee < len(code)
        assert code[at]["successors"] == [at + 1]
    peak = max(i["live_registers"] for i in code)
    assert peak <= compiled("programs").code.kernels()["softmax"]["registers"]


# --- pipes


def test_every_opcode_of_the_emulator_has_a_pipe():
    emulator = Path(__file__).resolve().parents[2] / "csrc" / "emulator"
    texts = [path.read_text() for path in (*emulator.glob("*.cpp"), *emulator.glob("families/*.inl"))]
    opcodes = {name for text in texts for name in re.findall(r'\{"([A-Z0-9]+)", bind_', text)}
    table = (emulator.parent / "instruments" / "pipes.cpp").read_text()
    assert len(opcodes) > 80
    assert opcodes - set(re.findall(r'\{"([A-Z0-9]+)", \{Pipe::', table)) == set()


# --- operators


def test_an_operator_s_statistics():
    torch = pytest.importorskip("torch")
    from sm70_kernels.ops import kv_cache

    tokens = 64
    k = torch.ones(tokens, 1, 128, dtype=torch.float16)
    caches = torch.zeros(4, 2, 16, 1, 128, dtype=torch.uint8).unbind(1)
    with inspect.statistics() as watched:
        kv_cache.write_paged_kv(k, k, *caches, torch.arange(tokens), kv_format="e4m3")
    ((name, kernel),) = watched.kernels.items()
    assert name == watched.emulation.launches[0].kernel
    assert kernel.issued == watched.emulation.warp_instructions
    # K and V are read as halves and written as bytes, once each.
    memory = kernel.memory()
    assert memory["global", "load", 16].bytes == 2 * tokens * 128 * 2
    assert sum(totals.bytes for key, totals in memory.items() if key[1] == "store") == 2 * tokens * 128
    assert any(place.startswith("csrc/ops/kv_cache/write.cuh:") for place in kernel.by_line())
