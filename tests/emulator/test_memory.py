"""Memory spaces, barriers, atomics; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from sm70_kernels import lab
from sm70_kernels.lab import EmulatorError


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def test_access_widths(compiled, rng):
    data = rng.integers(0, 256, 64).astype(np.uint8)
    shorts = rng.integers(-(2**15), 2**15, 64).astype(np.int16)
    quads = rng.integers(-(2**31), 2**31, (64, 4)).astype(np.int32)
    d, q = np.zeros(512, np.int32), np.zeros((64, 4), np.int32)
    compiled("memory").kernel("widths").launch(1, 64, [data, shorts, quads, d, q], outputs=(3, 4))
    assert np.array_equal(d[:64], data.astype(int) + 256 * data.view(np.int8).astype(int))
    assert np.array_equal(d[64:128], shorts.astype(int) + 7 * shorts.view(np.uint16).astype(int))
    assert np.array_equal(d[128:160].view(np.int16), shorts * np.int16(3))
    assert np.array_equal(d[192:208].view(np.uint8), data + np.uint8(1))
    assert np.array_equal(d[256:384].reshape(64, 2), quads[:, [0, 3]])
    assert np.array_equal(q, quads[:, ::-1])


@pytest.mark.parametrize("seed", range(3))
def test_transpose_through_shared_memory(compiled, rng, seed):
    n = 128
    x = rng.standard_normal((n, n)).astype(np.float32)
    y = np.zeros_like(x)
    compiled("memory").kernel("transpose").launch((4, 4), (32, 8), [x, y, np.int32(n)], outputs=(1,), seed=seed)
    assert np.array_equal(y, x.T)


def test_dynamic_shared_memory(compiled, rng):
    x = rng.standard_normal((3000, 4)).astype(np.float32)
    y = np.zeros_like(x)
    compiled("memory").kernel("dynamic_shared").launch(
        1, 256, [x, y, np.int32(3000)], outputs=(1,), dynamic_shared_bytes=48000
    )
    assert np.array_equal(y, x[::-1])
    with pytest.raises(EmulatorError, match=r"shared address 0xbb70: out of bounds, the block has 47984 bytes"):
        compiled("memory").kernel("dynamic_shared").launch(
            1, 256, [x, y, np.int32(3000)], outputs=(1,), dynamic_shared_bytes=47984
        )


@pytest.mark.parametrize("threads", [32, 48, 256])
def test_barriers_that_vote(compiled, rng, threads):
    a = rng.integers(0, 100, threads).astype(np.int32)
    d = np.zeros((3, threads), np.int32)
    compiled("memory").kernel("barrier_votes").launch(1, threads, [a, d], outputs=(1,))
    assert (d[0] == (a & 1).sum()).all() and d[1].all() and not d[2].any()
    a[threads // 2] = 12345
    a[0] = -1
    compiled("memory").kernel("barrier_votes").launch(1, threads, [a, d], outputs=(1,))
    assert (d[0] == (a & 1).sum()).all() and not d[1].any() and d[2].all()


@pytest.mark.parametrize("seed", range(5))
def test_named_barriers(compiled, rng, seed):
    a = rng.integers(0, 100, 256).astype(np.int32)
    d = np.zeros(256, np.int32)
    compiled("memory").kernel("producer_consumer").launch(1, 128, [a, d], outputs=(1,), seed=seed)
    assert np.array_equal(d.reshape(4, 64), 2 * a.reshape(4, 64)[:, ::-1])


def test_local_memory(compiled, rng):
    a = rng.integers(0, 1000, 64).astype(np.int32)
    d = np.zeros(64, np.int32)
    compiled("memory").kernel("local_array").launch(1, 64, [a, d], outputs=(1,))
    for t in range(64):
        stack = [int(a[(t + i) & 63]) for i in range(40)]
        for i in range(40):
            j = (int(a[t]) + i * 7) & 31
            stack[i], stack[j] = stack[j], stack[i]
        total = 0
        for v in stack:
            total = (total * 31 + v) & 0xFFFFFFFF
        assert int(d[t]) & 0xFFFFFFFF == total


def test_device_variables(compiled):
    program = compiled("memory")
    np.frombuffer(program.code.symbol("table"), np.float32)[:] = np.arange(16)
    counter = np.frombuffer(program.code.symbol("counter"), np.uint32)
    counter[0] = 5
    d = np.zeros(32, np.float32)
    program.kernel("globals").launch(2, 32, [d], outputs=(0,))
    assert np.array_equal(d, 2.5 * (np.arange(32) % 16))
    assert counter[0] == 5 + 2 * 64


@pytest.mark.parametrize("n", [1, 5])
def test_generic_addresses(compiled, n):
    x = np.zeros(64, np.float32)
    compiled("memory").kernel("generic").launch(1, 32, [x, np.int32(n)], outputs=(0,))
    expected = np.arange(32, dtype=np.float32)
    expected[2] += 48
    assert np.array_equal(x[32:], expected[::-1])


@pytest.mark.parametrize("threads", [1, 2])
def test_atomics(compiled, rng, threads):
    n = 512
    a = rng.integers(-1000, 1000, n).astype(np.int32)
    d = np.zeros(64 + n, np.int32)
    d[1], d[4], d[8] = 2**31 - 1, -1, 50
    w, f, g = np.zeros(2, np.uint64), np.zeros(1, np.float32), np.zeros(1)
    compiled("memory").kernel("atomics").launch(4, 128, [a, d, w, f, g], outputs=(1, 2, 3, 4), threads=threads)
    assert d[0] == a.sum() and d[1] == a.min() and d[2] == max(a.max(), 0)
    assert d[3:4].view(np.uint32)[0] == a.view(np.uint32).max()
    assert d[4] == np.bitwise_and.reduce(a) and d[5] == np.bitwise_or.reduce(a) and d[6] == np.bitwise_xor.reduce(a)
    assert d[7] == n and d[8] == (50 - n) % 51 and d[9] == n
    assert np.array_equal(np.sort(d[64:]), np.sort(a))
    assert w[0] == int(a.astype(np.int64).sum()) % 2**64 and w[1] == a.view(np.uint32).max()
    assert f[0] == n and g[0] == n / 2


def test_shared_atomics(compiled, rng):
    a = rng.integers(0, 1000, 256).astype(np.int32)
    d, f = np.zeros(16, np.int32), np.zeros(1, np.float32)
    compiled("memory").kernel("shared_atomics").launch(1, 256, [a, d, f], outputs=(1, 2))
    assert np.array_equal(d, np.bincount(a & 15, minlength=16)) and f[0] == (a & 7).sum()


def test_store_outside_a_buffer(compiled):
    d = np.zeros(64, np.int32)
    with pytest.raises(
        EmulatorError,
        match=r"stray_store\+0x.*: STG.*write of 4 bytes.*'argument 0' has 256 bytes.*offset 256 .*lane 0",
    ):
        compiled("memory").kernel("stray_store").launch(1, 1, [d, np.int32(64)], outputs=(0,))


def test_store_into_a_read_only_buffer(compiled):
    d = np.zeros(64, np.int32)
    with pytest.raises(EmulatorError, match=r"'argument 0' .offset 12. is read-only"):
        compiled("memory").kernel("stray_store").launch(1, 1, [d, np.int32(3)], outputs=())
    assert not d.any()


@pytest.mark.parametrize(("index", "lane"), [(-1, 0), (60, 4), (2**28, 0)])
def test_load_outside_a_buffer(compiled, index, lane):
    a, d = np.zeros(64, np.int32), np.zeros(32, np.int32)
    with pytest.raises(EmulatorError, match=rf"LDG.*read of 4 bytes.*out of bounds.*warp 0, lane {lane}[,\]]"):
        compiled("memory").kernel("stray_load").launch(1, 32, [a, d, np.int32(index)], outputs=(1,))


def test_misaligned_load(compiled):
    with pytest.raises(EmulatorError, match="misaligned 4-byte access to global memory"):
        compiled("memory").kernel("unaligned").launch(
            1, 1, [np.zeros(64, np.int8), np.zeros(1, np.int32)], outputs=(1,)
        )


def test_shared_memory_bounds(compiled):
    with pytest.raises(EmulatorError, match="shared address 0x80: out of bounds, the block has 128 bytes"):
        compiled("memory").kernel("stray_shared").launch(1, 32, [np.zeros(32, np.int32), np.int32(1)], outputs=(0,))


def test_barrier_deadlock_is_reported(compiled):
    with pytest.raises(
        EmulatorError, match=r"deadlock.*warp 0 lanes 0xffffffff wait at .*BAR.SYNC 0x1.*warp 1 .*BAR.SYNC 0x2"
    ):
        compiled("memory").kernel("lonely_barrier").launch(1, 64, [], outputs=())


def test_endless_loop_is_reported(compiled):
    with pytest.raises(EmulatorError, match="without ending"):
        compiled("memory").kernel("endless").launch(
            1, 32, [np.zeros(1, np.int32)], outputs=(0,), instruction_limit=100_000
        )


def test_trap(compiled):
    compiled("memory").kernel("trapped").launch(1, 32, [np.int32(2)], outputs=())
    with pytest.raises(EmulatorError, match=r"BPT.TRAP 0x1: trap \[block \(0,0,0\), warp 0[,\]]"):
        compiled("memory").kernel("trapped").launch(1, 32, [np.int32(3)], outputs=())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 2048}, "2048 threads is too large"),
        ({"grid": 0}, "must not be empty"),
        ({"dynamic_shared_bytes": 98305}, "98305 bytes of shared memory asked, a block can have 98304"),
        ({"blocks": [4]}, "sampled block 4 is not in the grid of 1"),
    ],
)
def test_impossible_launches(compiled, options, message):
    arguments = {"grid": 1, "block": 32} | options
    grid, block = arguments.pop("grid"), arguments.pop("block")
    with pytest.raises(EmulatorError, match=message):
        compiled("memory").code.launch("trapped", grid, block, bytes(4), [], **arguments)


def test_wrong_parameter_size(compiled):
    with pytest.raises(EmulatorError, match="takes 4 bytes of parameters, the launch gives 8"):
        compiled("memory").code.launch("trapped", 1, 32, bytes(8), [])


def test_unknown_kernel_names_the_known(compiled):
    with pytest.raises(EmulatorError, match=r"no kernel nothing in this cubin; it has .*transpose"):
        compiled("memory").code.launch("nothing", 1, 32, b"", [])


def test_sampled_blocks(compiled, rng):
    x = rng.standard_normal((64, 64)).astype(np.float32)
    y = np.zeros_like(x)
    result = (
        compiled("memory")
        .kernel("transpose")
        .launch((2, 2), (32, 8), [x, y, np.int32(64)], outputs=(1,), blocks=[1, 2])
    )
    assert (result.blocks_run, result.blocks_total) == (2, 4)
    assert np.array_equal(y[:32, 32:], x.T[:32, 32:]) and np.array_equal(y[32:, :32], x.T[32:, :32])
    assert not y[:32, :32].any() and not y[32:, 32:].any()


# --- what the decoder refuses


def reload(program: lab.Module, listing: str) -> lab.Module:
    return lab.Module(program.cubin, listing)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("BPT.TRAP 0x1", "TEX.SCR R0, R1", "unknown opcode TEX"),
        ("BPT.TRAP 0x1", "BPT.DRAIN 0x1", "BPT other than .TRAP"),
        ("BPT.TRAP 0x1", "BPT.TRAP.SLOWLY 0x1", "modifier .SLOWLY is not implemented for BPT"),
        ("BPT.TRAP 0x1", "FADD R0, R1, R2.H0_H0", "operand 'R2.H0_H0' carries .H0_H0"),
        ("BPT.TRAP 0x1", "FADD R0, R1, R200", "register of 'R200' is beyond the kernel's"),
        ("BPT.TRAP 0x1", "FADD R0, R1, R2, R3", "operand 'R3' is not implemented for FADD"),
        ("BPT.TRAP 0x1", "FADD R0, R1", "an operand is missing"),
        ("BPT.TRAP 0x1", "LDG.E.256.SYS R0, [R2]", "modifier .256 is not implemented for LDG"),
    ],
)
def test_what_is_not_implemented_is_refused_before_anything_runs(compiled, old, new, message):
    program = compiled("memory")
    assert old in program.listing
    patched = reload(program, program.listing.replace(old, new))
    with pytest.raises(EmulatorError, match=rf"trapped\+0x[0-9a-f]+: .*{message.split('.')[0]}"):
        patched.kernel("trapped").launch(1, 32, [np.int32(0)], outputs=())
    # Only the kernel with the instruction is refused.
    x = np.zeros((32, 32), np.float32)
    patched.kernel("transpose").launch((1, 1), (32, 8), [x, np.zeros_like(x), np.int32(32)], outputs=(1,))


def test_listing_of_another_cubin_is_refused(compiled):
    memory, lanes = compiled("memory"), compiled("lanes")
    with pytest.raises(EmulatorError, match=r"the listing has no kernel"):
        lab.Module(memory.cubin, lanes.listing)


def flipped(cubin: bytes, low: int, high: int, bit: int) -> bytes:
    """The cubin with one bit of the low word of the instruction (low, high) inverted."""
    old = low.to_bytes(8, "little") + high.to_bytes(8, "little")
    assert cubin.count(old) == 1
    return cubin.replace(old, (low ^ 1 << bit).to_bytes(8, "little") + old[8:])


def test_a_flipped_operand_bit_changes_the_result(compiled, rng, tmp_path):
    """The emulator runs the cubin's bits, not somebody's idea of the kernel."""
    program = compiled("arithmetic")
    n = 128
    a, b, c = (rng.standard_normal(n).astype(np.float32) for _ in range(3))
    good, bad = np.zeros((12, n), np.float32), np.zeros((12, n), np.float32)
    program.kernel("float_basic").launch(1, n, [a, b, c, good, np.int32(n)], outputs=(3,))
    adds = [i for i in program.code.instructions("float_basic") if i["opcode"] == "FADD"]
    first = adds[0]
    source_b = 32  # bits 32-39 of the low word hold the second source register
    cubin = flipped(program.cubin, first["low"], first["high"], source_b)
    changed = lab.load(cubin)
    assert changed.code.decode("float_basic", first["offset"])["text"] != first["text"]
    with pytest.raises(EmulatorError, match="differs from the cubin"):
        lab.Module(cubin, program.listing)
    changed.kernel("float_basic").launch(1, n, [a, b, c, bad, np.int32(n)], outputs=(3,))
    assert not np.array_equal(good, bad)
