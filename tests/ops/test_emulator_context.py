"""sm70_kernels.lab.emulator: when CPU tensors run on the emulated V100, how, and what is reported."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from sm70_kernels.lab import emulator
from sm70_kernels.ops import kv_cache
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops.kv_cases import gather

ROOT = Path(__file__).resolve().parents[2]


def test_off_unless_switched_on() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="got a tensor on the CPU, want a tensor on a CUDA device"):
            gather()
        with emulator.enabled():
            gather()


def test_contexts_nest_and_record_their_own_launches() -> None:
    with emulator.enabled() as outer:
        gather()
        with emulator.enabled(max_blocks=3) as inner:
            gather()
            gather()
        gather()
    assert [launch.blocks_run for launch in outer.launches] == [80, 80]
    assert [(launch.blocks_run, launch.blocks_total) for launch in inner.launches] == [(3, 80), (3, 80)]
    assert all(launch.kernel == "kv_cache_gather_e4m3_x8" for launch in outer.launches + inner.launches)
    assert outer.warp_instructions > 10 * inner.warp_instructions > 0
    with pytest.raises(RuntimeError, match="on the CPU"):
        gather()


def test_a_failed_context_switches_off_again() -> None:
    with pytest.raises(KeyError), emulator.enabled() as run:
        gather()
        raise KeyError
    assert len(run.launches) == 1
    with pytest.raises(RuntimeError, match="on the CPU"):
        gather()


def test_sampled_blocks_write_their_part_only() -> None:
    with emulator.enabled():
        whole, _ = gather()
    with emulator.enabled(max_blocks=20):
        part, _ = gather()
    tiles = part.view(2, 40, 16 * 64)
    written = (tiles != -1).any(2).flatten()
    assert int(written.sum()) == 20  # a block a tile here
    compare_bitwise(tiles.flatten(0, 1)[written], whole.view(80, 16 * 64)[written])


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_schedules_do_not_change_results(seed: int) -> None:
    with emulator.enabled():
        natural = gather()
    for threads in (1, 2):
        with emulator.enabled(seed=seed, threads=threads):
            for got, want in zip(gather(), natural, strict=True):
                compare_bitwise(got, want)


def test_grid_follows_the_number_of_multiprocessors() -> None:
    blocks = {}
    for multiprocessors in (72, 80):
        with emulator.enabled(multiprocessors=multiprocessors, max_blocks=1) as run:
            gather(tokens=16 * 1024, rows=2)
        blocks[multiprocessors] = run.launches[0].blocks_total
    assert blocks == {72: 16 * 72, 80: 16 * 80}


def test_a_thread_has_its_own_switch() -> None:
    refused = []

    def work() -> None:
        try:
            gather()
        except RuntimeError as error:
            refused.append(str(error))

    with emulator.enabled():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        gather()
    assert len(refused) == 1 and "on the CPU" in refused[0]


@pytest.mark.parametrize("value,outcome", [("1", "ran"), ("0", "on the CPU"), ("yes", "want '0' or '1'")])
def test_environment_variable(value: str, outcome: str) -> None:
    code = """
try:
    from tests.ops.kv_cases import gather
    gather(); print("ran")
except RuntimeError as error:
    print(error)
"""
    environment = {**os.environ, "SM70_KERNELS_EMULATE": value}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    assert outcome in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        {"tensor_rounding": "up"},
        {"seed": -1},
        {"max_blocks": 0},
        {"threads": 0},
        {"multiprocessors": 0},
        {"instruction_limit": -5},
        {"seed": 2**64},
        {"seed": "1"},
        {"max_blocks": 2**64},
        {"threads": 2.0},
        {"multiprocessors": None},
        {"multiprocessors": 2**31},
    ],
)
def test_bad_options_are_refused(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(ValueError, match=f"argument '{name}': got .*, want "), emulator.enabled(**arguments):
        pass


def test_a_stopped_kernel_is_reported_with_its_place() -> None:
    cache = torch.zeros(2, 16, 1, 64, dtype=torch.uint8)
    table = torch.full((1, 1), 7, dtype=torch.int32)  # no such page: the kernel stops itself
    lens = torch.tensor([16], dtype=torch.int32)
    place = r"emulated V100: kv_cache_gather_e4m3_x8\+0x[0-9a-f]+: BPT.TRAP.*block \(0,0,0\)"
    with emulator.enabled(), pytest.raises(RuntimeError, match=place):
        kv_cache.gather_paged_kv(cache, cache, table, lens, kv_format="e4m3", max_tokens=16)


def test_launch_counts_name_the_image() -> None:
    def emulated() -> int:
        return kv_cache.library.launch_counts().get("kv_cache_gather_e4m3_x8", {}).get("emulated", 0)

    before = emulated()
    with emulator.enabled():
        gather()
    assert emulated() == before + 1
