"""Accel-Sim traces: read back, they are what the emulator executed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm70_kernels import lab
from sm70_kernels.lab import inspect
from sm70_kernels.lab.inspect.watching import read_report
from sm70_kernels.lab.instruments import InstrumentError, Instruments

from . import trace_reader

LANES = np.arange(32)
ALL = 0xFFFFFFFF


def traced(program, folder: Path, kernel: str, *arguments: Any, grid=1, block=32, settings=(), **options: Any):
    """The trace of one launch."""
    with Instruments(trace={"folder": folder, **dict(settings)}) as instruments:
        program.kernel(kernel).launch(grid, block, arguments, instruments=instruments, **options)
        (name,) = instruments.report("trace")
    assert trace_reader.kernel_list(folder) == [name]
    return trace_reader.read(folder / name)


def expanded(ranges: list[tuple[int, int]]) -> list[int]:
    return [first + i for first, count in ranges for i in range(count)]


def run_softmax(program, instruments: Instruments) -> None:
    random = np.random.default_rng(1)
    x, lengths = random.standard_normal((24, 128)).astype(np.float32), random.integers(0, 129, 24).astype(np.int32)
    arguments = x, lengths, np.zeros_like(x), np.int32(128)
    program.kernel("softmax").launch(6, 128, arguments, outputs=(2,), instruments=instruments, threads=2)


def test_every_instruction_of_every_warp_is_there(compiled, tmp_path):
    program = compiled("programs")
    with Instruments("statistics", trace={"folder": tmp_path / "t"}) as instruments:
        run_softmax(program, instruments)
        statistics = read_report(instruments.report("statistics"))["softmax"]
    kernel = trace_reader.read(tmp_path / "t" / "kernel-1.traceg")
    code = program.code.analyse("softmax")
    warps, lanes = Counter(), Counter()
    for executed in kernel.executed():
        instruction = code[executed.pc // 16]
        warps[executed.pc // 16] += 1
        lanes[executed.pc // 16] += executed.mask.bit_count()
        assert executed.opcode == ".".join([instruction["opcode"], *instruction["modifiers"]])
        assert executed.written == expanded(instruction["written"])
        assert executed.read == expanded(instruction["read"])
        counted = statistics.instructions[executed.pc // 16]
        assert executed.width == (counted.width if counted.space else 0)
    assert [warps[i] for i in range(len(code))] == [i.warps for i in statistics.instructions]
    assert [lanes[i] for i in range(len(code))] == [i.threads for i in statistics.instructions]
    assert [block.place for block in kernel.blocks] == [(i, 0, 0) for i in range(6)]
    assert all(list(block.warps) == [0, 1, 2, 3] for block in kernel.blocks)
    assert all(warp[-1].opcode == "EXIT" for block in kernel.blocks for warp in block.warps.values())


def test_header(compiled, tmp_path):
    index = np.zeros(32, np.int32)
    kernel = traced(compiled("statistics"), tmp_path, "stack", index, index.copy(), grid=(2, 1, 3), outputs=(1,))
    assert kernel.header["kernel name"] == "stack"
    assert (kernel.extent("grid dim"), kernel.extent("block dim")) == ((2, 1, 3), (32, 1, 1))
    assert {name: kernel.header[name] for name in ("kernel id", "shmem", "binary version", "enable lineinfo")} == {
        "kernel id": "1",
        "shmem": "0",
        "binary version": "70",
        "enable lineinfo": "0",
    }
    assert kernel.header["accelsim tracer version"] == "5"
    assert int(kernel.header["nregs"]) == compiled("statistics").code.kernels()["stack"]["registers"]
    assert [block.place for block in kernel.blocks] == [(x, 0, z) for z in range(3) for x in range(2)]


@pytest.mark.parametrize("addresses", ["compressed", "list"])
@pytest.mark.parametrize(
    "index,mode",
    [
        (LANES, 1),
        (LANES * 7, 1),
        (LANES * 0, 1),
        (LANES[::-1].copy(), 1),  # a negative stride
        (LANES * LANES, 2),
        (np.where(LANES < 20, LANES, -1), 1),
        (np.where(LANES % 2 == 0, LANES, -1), 2),  # gaps
        (np.where(LANES == 9, 3, -1), 0),  # one lane
        (np.where((LANES == 9) | (LANES == 31), LANES, -1), 2),
    ],
)
def test_addresses_and_masks(compiled, tmp_path, index, mode, addresses):
    index = index.astype(np.int32)
    source, out = np.zeros((1024, 4), np.float32), np.zeros((32, 4), np.float32)
    kernel = traced(
        compiled("statistics"), tmp_path, "global_read_16", source, index, out, outputs=(2,),
        settings={"addresses": addresses},
    )  # fmt: skip
    mask = sum(1 << int(lane) for lane in LANES if index[lane] >= 0)
    (load,) = (one for one in kernel.executed() if one.opcode.startswith("LDG") and one.width == 16)
    (store,) = (one for one in kernel.executed() if one.opcode.startswith("STG"))
    assert load.mask == store.mask == mask
    assert load.addresses == {
        int(lane): source.ctypes.data + 16 * int(index[lane]) for lane in LANES if index[lane] >= 0
    }
    assert store.addresses == {int(lane): out.ctypes.data + 16 * int(lane) for lane in LANES if index[lane] >= 0}
    line = next(line for line in (tmp_path / "kernel-1.traceg").read_text().splitlines() if " LDG.E.128" in line)
    written = line.split(" 16 ", 1)[1].split()[0]
    assert written == (str(mode) if addresses == "compressed" else "0")


def test_wide_operands_list_all_registers_or_the_first(compiled, tmp_path):
    source, index, out = np.zeros((32, 4), np.float32), LANES.astype(np.int32), np.zeros((32, 4), np.float32)
    arguments = "global_read_16", source, index, out
    whole = traced(compiled("statistics"), tmp_path / "all", *arguments, outputs=(2,))
    first = traced(
        compiled("statistics"), tmp_path / "first", *arguments, outputs=(2,), settings={"registers": "first"}
    )

    def of(kernel: trace_reader.Kernel, opcode: str) -> trace_reader.Executed:
        return [one for one in kernel.executed() if one.opcode.startswith(opcode)][-1]

    load, store = of(whole, "LDG.E.128"), of(whole, "STG.E.128")
    assert load.written == [load.written[0] + i for i in range(4)] and load.written[0] % 4 == 0
    assert load.read == [load.read[0], load.read[0] + 1]  # a 64-bit address
    assert store.written == [] and store.read == [store.read[0], store.read[0] + 1, *load.written]
    assert (of(first, "LDG.E.128").written, of(first, "LDG.E.128").read) == (load.written[:1], load.read[:1])
    assert of(first, "STG.E.128").read == [store.read[0], load.written[0]]
    for one in first.executed():  # what trace_parser.h has room for
        assert len(one.written) <= 1 and len(one.read) <= 4
    assert [(one.pc, one.mask) for one in first.executed()] == [(one.pc, one.mask) for one in whole.executed()]


def test_tensor_core_operands_are_pairs(compiled, tmp_path):
    program = compiled("tensor")
    a, d = np.zeros((32, 4), np.float16), np.zeros((32, 8), np.float32)
    kernel = traced(program, tmp_path, "single_row_col", a, a, d, outputs=(2,))
    steps = [one for one in kernel.executed() if one.opcode.startswith("HMMA")]
    assert len(steps) >= 4
    for step in steps:
        assert step.mask == ALL and step.width == 0
        assert len(step.written) == 2 and step.written[1] == step.written[0] + 1
        assert len(step.read) in (4, 6)  # A, B, and C where it is not RZ
        assert all(high == low + 1 for low, high in zip(step.read[::2], step.read[1::2], strict=True))


def test_masks_follow_divergence(compiled, tmp_path):
    trips = (1 + LANES % 4).astype(np.int32)
    out = np.zeros(32, np.float32)
    kernel = traced(compiled("statistics"), tmp_path, "trips", trips, out, outputs=(1,))
    body = [one.mask for one in kernel.executed() if one.opcode == "FADD"]
    assert body == [sum(1 << int(lane) for lane in LANES if trips[lane] > turn) for turn in range(4)]
    branches = [one.mask for one in kernel.executed() if one.opcode == "BRA"]
    assert branches == [*body[1:], 0]  # the lanes that take it; predicated off it is there, for no lane


def test_shared_stack_and_generic_addresses(compiled, tmp_path):
    index = (LANES * 3).astype(np.int32)
    program = compiled("statistics")
    options = {"outputs": (1,), "dynamic_shared_bytes": 4 * 96}
    shared = traced(program, tmp_path / "s", "shared_read_4", index, np.zeros(32, np.float32), **options)
    (load,) = (one for one in shared.executed() if one.opcode.startswith("LDS"))
    assert load.addresses == {int(lane): 12 * int(lane) for lane in LANES}
    values = np.zeros(32, np.float32)
    for from_shared in (0, 1):
        folder = tmp_path / f"g{from_shared}"
        generic = traced(program, folder, "generic_read", values, values.copy(), np.int32(from_shared), outputs=(1,))
        (load,) = (one for one in generic.executed() if one.opcode.startswith("LD."))
        window = int(generic.header["shmem base_addr"], 16)
        local = int(generic.header["local mem base_addr"], 16)
        # How Accel-Sim tells them apart.
        assert all((window <= at < local) == bool(from_shared) for at in load.addresses.values())
        base = window if from_shared else values.ctypes.data
        assert load.addresses == {int(lane): base + 4 * int(lane) for lane in LANES}
    stack = traced(program, tmp_path / "l", "stack", np.full(32, 5, np.int32), np.zeros(32, np.int32), outputs=(1,))
    (load,) = (one for one in stack.executed() if one.opcode.startswith("LDL"))
    assert len(set(load.addresses.values())) == 1


def test_immediates_and_source_lines(compiled, tmp_path):
    x = np.zeros(32, np.float32)
    arguments = "saxpy", np.float32(2), x, x.copy()
    kernel = traced(compiled("statistics"), tmp_path, *arguments, outputs=(2,), settings={"lineinfo": 1})
    code = compiled("statistics").code.analyse("saxpy")
    executed = kernel.executed()
    assert [one.line for one in executed] == [code[one.pc // 16]["source"][0][1] for one in executed]
    assert [one.immediate for one in executed if one.opcode == "MOV"] == [0, 4]


def test_some_blocks_make_a_smaller_grid(compiled, tmp_path):
    x = np.zeros(32, np.float32)
    arguments = "saxpy", np.float32(2), x, x.copy()
    program = compiled("statistics")
    few = traced(program, tmp_path / "few", *arguments, grid=8, outputs=(2,), settings={"blocks": 3})
    assert (few.extent("grid dim"), few.extent("blocks of the grid")) == ((3, 1, 1), (8, 1, 1))
    assert [block.place[0] for block in few.blocks] == [0, 1, 2]
    sampled = traced(program, tmp_path / "sampled", *arguments, grid=8, outputs=(2,), blocks=[6, 1], seed=5)
    assert sampled.extent("grid dim") == (2, 1, 1)
    assert [block.place[0] for block in sampled.blocks] == [1, 6]


def test_launches_are_numbered_and_listed(compiled, tmp_path):
    x = np.zeros(32, np.float32)
    with Instruments(trace={"folder": tmp_path / "made" / "here"}) as instruments:
        for _ in range(2):
            compiled("statistics").kernel("saxpy").launch(
                1, 32, [np.float32(2), x, x.copy()], outputs=(2,), instruments=instruments
            )
        names = instruments.report("trace")
    assert names == trace_reader.kernel_list(tmp_path / "made" / "here") == ["kernel-1.traceg", "kernel-2.traceg"]
    assert trace_reader.read(tmp_path / "made" / "here" / "kernel-2.traceg").header["kernel id"] == "2"


def test_a_launch_that_fails_leaves_no_trace(compiled, tmp_path):
    x = np.zeros(32, np.float32)
    with Instruments(trace={"folder": tmp_path}) as instruments:
        with pytest.raises(lab.EmulatorError, match="out of bounds"):
            compiled("statistics").kernel("saxpy").launch(
                4, 32, [np.float32(2), x[:8], x.copy()], outputs=(2,), instruments=instruments
            )
        assert instruments.report("trace") == []
    assert list(tmp_path.iterdir()) == []


def test_what_the_trace_refuses(tmp_path):
    (tmp_path / "kernelslist.g").touch()
    for options, message in (
        ({}, "option 'folder' is missing"),
        ({"folder": tmp_path}, "holds traces already. Name a new folder"),
        ({"folder": "/dev/null/here"}, "is no folder"),
        ({"folder": tmp_path / "a", "blocks": "-1"}, "got '-1', want a whole number"),
        ({"folder": tmp_path / "a", "registers": "some"}, "got 'some', want one of all, first"),
        ({"folder": tmp_path / "a", "warps": 3}, "unknown option 'warps', want one of folder, blocks"),
    ):
        with pytest.raises(InstrumentError, match=message):
            Instruments(trace=options)


def test_an_operator_s_trace(tmp_path):
    torch = pytest.importorskip("torch")
    from sm70_kernels.ops import kv_cache

    k = torch.ones(32, 1, 64, dtype=torch.float16)
    caches = torch.zeros(2, 2, 16, 1, 64, dtype=torch.uint8).unbind(1)
    with inspect.trace(tmp_path, blocks=1, registers="first") as watched:
        kv_cache.write_paged_kv(k, k, *caches, torch.arange(32), kv_format="e4m3")
    (name,) = watched.files
    kernel = trace_reader.read(tmp_path / name)
    assert kernel.header["kernel name"] == watched.emulation.launches[0].kernel
    stored = {at for one in kernel.executed() if one.opcode.startswith("STG") for at in one.addresses.values()}
    held = range(caches[0].data_ptr(), caches[0].data_ptr() + 2 * 2 * 16 * 64)
    assert stored and all(at in held for at in stored)
