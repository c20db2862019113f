"""The timing model: what it must say of single units, and that it says the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from sm70_kernels.lab.cycle_model import estimate, machine_table, report
from sm70_kernels.lab.cycle_model.model import from_report
from sm70_kernels.lab.inspect.watching import read_report
from sm70_kernels.lab.instruments import InstrumentError, Instruments

from .timing_cases import aligned, cycles, timed

#: Value of every parameter: a change of the table changes it, and must change the revision.
REVISION, DIGEST = 3, "844f167431ec10b3"
#: Cycles a link on a V100 at 1530 MHz (1Cat-vLLM, docs/design), of timing_chains.cu's kernels; and chains a link.
CHAINS = {
    "one_tensor_chain": (8.66, 1),
    "four_tensor_chains": (8.38, 4),
    "shared_chain": (26.4, 1),
    "global_chain": (210.7, 1),
}


def test_the_table_has_a_revision():
    with Instruments("timing") as instruments:
        machine = instruments.report("timing")["machine"]
    assert (machine["revision"], machine["digest"]) == (REVISION, DIGEST), (
        "the machine table changed: raise kRevision in machine.h, estimate the validation of docs/cycle-model.md "
        "again, and put the new digest here"
    )
    assert all(row["source"] for row in machine_table())


@pytest.mark.parametrize("kernel", CHAINS)
def test_measured_chains(compiled, kernel):
    measured, chains = CHAINS[kernel]
    program = compiled("timing_chains")
    out = aligned(64, np.uint64)
    memory = aligned(64, np.uint64)
    memory[:] = memory.ctypes.data  # every word points to the first
    arguments = (out, memory) if kernel == "global_chain" else (out,)

    def run(links: int) -> float:
        return cycles(timed(program, kernel, 1, 32, *arguments, np.int32(links), outputs=(0,), clocks=1530))

    a_link = (run(6400) - run(3200)) / 3200 / chains
    assert a_link == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ("kernel", "argument", "wavefronts"),
    [("shared_stride", stride, stride) for stride in (1, 2, 4, 32)]
    + [("shared_stride", 0, 1)]  # all lanes at one address
    + [("shared_wide", 1, 4), ("shared_wide", 2, 2), ("shared_wide", 4, 2), ("shared_wide", 32, 2)],
)
def test_shared_memory_takes_wavefronts(compiled, kernel, argument, wavefronts):
    program, out = compiled("timing_units"), aligned(32, np.uint32)

    def port(count: int) -> float:
        result = timed(program, kernel, 1, 32, out, np.int32(argument), np.int32(count), outputs=(0,))
        return result.kernels[0].utilisation["lsu"] * cycles(result)

    assert (port(300) - port(100)) / 200 == pytest.approx(wavefronts, rel=0.01)


LANES = np.arange(32)
#: 16-byte loads by some lanes only: whose partner is absent pairs with it, so a quarter-warp's place serves two.
PARTIAL = {
    "even lanes": (LANES % 2 == 0, LANES // 2, 2),
    "even lanes, eight words apart": (LANES % 2 == 0, LANES * 4, 16),
    "lanes without bit 1": (LANES & 2 == 0, LANES // 4 * 2 + LANES % 2, 2),
    "pairs and lone lanes": ((LANES < 8) | (LANES % 2 == 0), LANES // 2, 2),
    "lanes of half a warp": (LANES < 16, LANES, 2),
    "three of four": (LANES % 4 < 3, LANES, 4),
    "three of four, one word a quarter-warp": (LANES % 4 < 3, LANES // 8, 2),
    "one lane": (LANES == 13, LANES, 1),
}


@pytest.mark.parametrize("case", PARTIAL)
def test_statistics_and_model_agree_on_wavefronts_of_partial_warps(compiled, case):
    """A load's wavefronts by the statistics, and what it takes of the model's port, of one launch."""
    active, index, expected = PARTIAL[case]
    program = compiled("statistics")

    def run(index: np.ndarray) -> tuple[int, float]:
        index = np.where(active, index, -1).astype(np.int32)
        with Instruments(statistics={}, timing={"launch_us": 0}) as instruments:
            arguments = (index, np.zeros((32, 16), np.uint8))
            program.kernel("shared_read_16").launch(
                1, 32, arguments, outputs=(1,), dynamic_shared_bytes=16 * 128, instruments=instruments
            )
            counted = read_report(instruments.report("statistics"))["shared_read_16"]
            (load,) = (i for i in counted.instructions if i.opcode == "LDS" and i.warps)
            (kernel,) = from_report(instruments.report("timing")).kernels
        return load.wavefronts, kernel.utilisation["lsu"] * kernel.details["estimates"][0]["cycles"]

    (wavefronts, port), (in_one_place, base) = run(index), run(index * 0)
    assert wavefronts == expected
    assert port - base == pytest.approx(wavefronts - in_one_place, abs=1e-3)


def copy(compiled, **options):
    megabytes = aligned(32 << 20, np.uint8)
    out = np.zeros_like(megabytes)
    return timed(
        compiled("timing_units"), "copy16", (32 << 20) // 16 // 256, 256, megabytes, out, outputs=(1,), **options
    )


def tensor_bound(compiled, **options):
    out = aligned(1024, np.float32)
    return timed(compiled("timing_chains"), "four_tensor_chains", 80, 512, out, np.int32(1600), outputs=(0,), **options)


def test_a_copy_runs_at_the_measured_rate(compiled):
    result = copy(compiled)
    assert 795 <= result.dram_gbps <= 822  # measured: GPUInspector.jl
    assert result.bound == "dram"
    assert result.kernels[0].dram_read_bytes == pytest.approx(32 << 20, rel=1e-3)
    assert result.kernels[0].dram_write_bytes == pytest.approx(32 << 20, rel=1e-3)


def test_a_tensor_loop_runs_at_its_peak(compiled):
    result = tensor_bound(compiled)
    assert result.bound == "tensor"
    assert 0.95 < result.tflops / (80 * 1024 * 1.38e-3) <= 1.0


def test_a_slower_tensor_core_slows_what_it_bounds(compiled):
    assert cycles(tensor_bound(compiled, tensor_issue=4)) == pytest.approx(2 * cycles(tensor_bound(compiled)), rel=0.05)
    assert cycles(copy(compiled, tensor_issue=4)) == cycles(copy(compiled))


def test_half_the_bandwidth_slows_what_it_bounds(compiled):
    assert cycles(copy(compiled, dram_gbps=425)) == pytest.approx(2 * cycles(copy(compiled)), rel=0.05)
    assert cycles(tensor_bound(compiled, dram_gbps=425)) == pytest.approx(cycles(tensor_bound(compiled)), rel=0.01)


def test_a_memory_bound_kernel_has_one_time_at_every_clock(compiled):
    slow, fast = copy(compiled, clocks="1270,1530").at
    assert slow.ms == pytest.approx(fast.ms, rel=0.02)
    slow, fast = tensor_bound(compiled, clocks="1270,1530").at
    assert slow.ms / fast.ms == pytest.approx(1530 / 1270, rel=0.01)


def test_l2_serves_what_blocks_share(compiled):
    count, blocks = 64, 160
    words = aligned(count * 256 * 4, np.uint32)
    out = aligned(blocks * 256, np.uint32)
    result = timed(
        compiled("timing_units"), "read_shared_by_all", blocks, 256, words, out, np.int32(count), outputs=(1,)
    )
    assert result.kernels[0].dram_read_bytes < 1.1 * words.nbytes
    assert result.kernels[0].details["l2_load_hit_rate"] > 0.98


def test_the_next_launch_finds_little_results_in_l2(compiled):
    program = compiled("timing_units")

    def second(size: int) -> float:
        buffers = [aligned(size, np.uint8) for _ in range(3)]
        with Instruments(timing={"launch_us": 0}) as instruments:
            for source, target in ((0, 1), (1, 2)):
                arguments = (buffers[source], buffers[target])
                program.kernel("copy16").launch(size // 4096, 256, arguments, outputs=(1,), instruments=instruments)
            return float(instruments.report("timing")["launches"][1]["dram_read_bytes"])

    assert second(2 << 20) == 0
    assert second(8 << 20) == pytest.approx(8 << 20, rel=1e-3)


def test_blocks_of_different_length_are_balanced(compiled):
    program, out = compiled("timing_units"), aligned(640 * 1024, np.float32)

    def run(whole_blocks: int):
        return timed(program, "triangle", 320, 1024, out, np.int32(8), outputs=(0,), whole_blocks=whole_blocks)

    # Two blocks to an SM, first come first served. No SM idles before the last wave, of the longest blocks.
    every = run(320)
    kernel = every.kernels[0]
    without_tail = kernel.warp_instructions / (80 * 4 * kernel.utilisation["issue"])
    assert without_tail < cycles(every) < 1.5 * without_tail
    # Sampled blocks stand for their neighbours, and SMs are taken to keep step: docs/cycle-model.md, composition.
    assert cycles(run(16)) == pytest.approx(cycles(every), rel=0.15)


def test_long_blocks_that_are_alike_are_enough(compiled):
    """`emulated` bounds what runs: in rounds of two blocks, until lengths agree, or thrice as much has run."""
    program, out = compiled("timing_units"), aligned(640 * 1024, np.float32)
    source, sums = aligned(80 << 16, np.uint8), np.zeros(80 * 256, np.uint32)

    def alike(**options):
        arguments = (source, sums, np.int32((1 << 16) // 16 // 256))
        return timed(program, "read_own", 80, 256, *arguments, outputs=(1,), **options)

    def growing(**options):
        return timed(program, "triangle", 320, 1024, out, np.int32(8), outputs=(0,), **options)

    def traced(result):
        return result.kernels[0].details["traced_blocks"]

    eight, two = alike(), alike(emulated=1)
    assert (traced(eight), traced(two)) == ([5, 15, 25, 35, 45, 55, 65, 75], [5, 75])
    assert cycles(two) == cycles(eight)
    # The beginnings of all blocks are there, those too that might have run to their end.
    assert [result.kernels[0].details["heads"] for result in (eight, two)] == [80, 80]
    assert two.kernels[0].dram_read_bytes == eight.kernels[0].dram_read_bytes

    eight, two = growing(), growing(emulated=1)
    assert (traced(eight), traced(two)) == ([20, 60, 100, 140, 180, 220, 260, 300], [20, 300])
    pair = 2 * eight.kernels[0].warp_instructions // 320  # what a pair from the ends executes
    assert traced(growing(emulated=pair // 2)) == [20, 60, 260, 300]
    assert traced(growing(emulated=2 * pair)) == traced(eight)
    assert two.kernels[0].details["sampling_error"] > 0.5 > eight.kernels[0].details["sampling_error"] > 0.1
    # What is asked for runs.
    assert len(traced(growing(emulated=1, whole_blocks=8))) == 2
    assert len(traced(growing(whole_blocks=9))) == 9


def test_an_sm_with_more_work_gets_more_of_the_memory(compiled):
    """One wave of blocks, every second SM with two blocks: the rest of the bandwidth is theirs when the others end."""
    source = aligned(120 << 16, np.uint8)
    out = np.zeros(120 * 256, np.uint32)
    program = compiled("timing_units")

    def run(blocks: int, **options):
        count = np.int32((1 << 16) // 16 // 256)
        arguments = (source, out, count)
        return timed(program, "read_own", blocks, 256, *arguments, outputs=(1,), whole_blocks=blocks, **options)

    uneven, even = run(120), run(80)
    assert uneven.kernels[0].details["sharing"] == pytest.approx(60)
    assert uneven.dram_gbps == pytest.approx(even.dram_gbps, rel=0.15)


def test_warps_wait_at_barriers(compiled):
    program, out = compiled("timing_units"), aligned(1024, np.float32)
    result = timed(program, "barriers", 1, 1024, out, np.int32(100), outputs=(0,))
    shares = result.kernels[0].warp_cycles
    assert shares["barrier"] > 0.7 * sum(shares.values())
    # 64 dependent multiply-adds of four cycles a turn, and the barrier
    assert 256 < cycles(result) / 100 < 400


def test_occupancy_and_waves(compiled):
    program, out = compiled("timing_units"), aligned(640 * 1024, np.float32)

    def run(blocks: int, shared: int = 0, board: str = "v100-sxm2"):
        launch = {"dynamic_shared_bytes": shared}
        options = {"launch": launch, "board": board}
        return timed(program, "triangle", blocks, 1024, out, np.int32(1), outputs=(0,), **options).kernels[0]

    assert (run(160).blocks_per_sm, run(160).occupancy_limit, run(160).waves) == (2, "warps", 1)
    assert (run(161).waves, run(161, 49152).waves) == (2, 2)
    assert (run(160, 49153).blocks_per_sm, run(160, 49153).occupancy_limit) == (1, "shared memory")
    assert (run(144, board="v100-72").waves, run(145, board="v100-72").waves) == (1, 2)


def test_a_cut_trace_says_the_same(compiled):
    whole = tensor_bound(compiled)
    cut = tensor_bound(compiled, recorded=30_000)
    assert cut.kernels[0].details["simulated_share"] < 0.5
    assert cycles(cut) == pytest.approx(cycles(whole), rel=0.02)
    assert cut.kernels[0].error < 0.02


def test_the_same_launch_has_the_same_cycles(compiled):
    def run(threads: int):
        source, out = aligned(4 << 20, np.uint8), aligned(4 << 20, np.uint8)  # at other addresses each time
        options = {"launch": {"threads": threads}, "clocks": "1380,1530"}
        program = compiled("timing_units")
        result = timed(program, "copy16", (4 << 20) // 16 // 256, 256, source, out, outputs=(1,), **options)
        details = dict(result.kernels[0].details)
        del details["model_seconds"]
        return details

    first = run(1)
    assert run(1) == first
    assert run(4) == first


def test_an_operator_is_estimated_from_empty_tensors():
    torch = pytest.importorskip("torch")
    from sm70_kernels.ops import kv_cache

    tokens = 1 << 20
    key_cache, value_cache = torch.empty(tokens // 16, 2, 16, 1, 256, dtype=torch.uint8).unbind(1)
    table = torch.arange(tokens // 16, dtype=torch.int32)[None]
    lengths = torch.tensor([tokens], dtype=torch.int32)
    k_out, v_out = (torch.empty(1, tokens, 1, 256, dtype=torch.float16) for _ in range(2))

    def call():
        kv_cache.gather_paged_kv(key_cache, value_cache, table, lengths, kv_format="e4m3", k_out=k_out, v_out=v_out)

    result = estimate(call)
    moved = 2 * 256 * tokens * 3
    assert 700 < moved / result.ms / 1e6 < 850
    text = report(result)
    assert text.startswith("estimated (emulated V100)")
    assert "kv_cache_gather_e4m3_x8" in text and "long_scoreboard" in text and "1530 MHz" in text
    assert "dram_gbps=425" in report(estimate(call, dram_gbps=425))
    with pytest.raises(ValueError, match="launched no kernel"):
        estimate(lambda: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"board": "v100-sxm9"}, "got board 'v100-sxm9', want one of v100-sxm2"),
        ({"dram_gbs": 1}, "got parameter 'dram_gbs', which is not in the table"),
        ({"dram_gbps": 0}, "'dram_gbps' must be positive"),
        ({"clocks": "fast"}, "got 'fast', want a number"),
        ({"whole_blocks": 0}, "want a whole number from 1"),
    ],
)
def test_what_the_instrument_refuses(options, message):
    with pytest.raises(InstrumentError, match=message):
        Instruments(timing=options)
