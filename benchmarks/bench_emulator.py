"""The emulator itself: warp instructions and HMMA steps a second, plain and under all checkers, and the memory of a
real launch. Needs no GPU.

These are wall times of the host's processor and say nothing about V100. Targets are recorded and not asserted, as a
shared machine may be slow; the bound on memory is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sm70_kernels.bench import median, replay, replay_timer
from sm70_kernels.evidence.sessions.benchmarks import EMULATOR_LABEL
from sm70_kernels.lab.checkers import Checks

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "benchmarks" / "kernels" / "emulator_speed.cu"
CORES = len(os.sched_getaffinity(0))
WORKERS = {"one-thread": 1, "all-cores": CORES}
ROUNDS = 5
BLOCKS, BLOCK = 64, 128
WARPS = BLOCKS * BLOCK // 32
#: Words that a load kernel goes through, and what its buffer has beyond them.
WORDS, MARGIN = 1 << 18, 2048
#: Of `tensor_core`, each turn of its loop.
STEPS_A_TURN = 32
#: Millions a second and core.
TARGET_INSTRUCTIONS, TARGET_STEPS, TARGET_CHECKED = 15.0, 2.5, 3.0
#: Peak memory that a launch may take: this many times the buffers it touches, and a constant.
MEMORY_FACTOR, MEMORY_CONSTANT = 1.5, 200_000_000
GATHER_SECONDS = 240


@dataclass(frozen=True)
class Kernel:
    """A kernel of emulator_speed.cu: a tenth of a second's worth of turns, and its input's dtype."""

    name: str
    turns: int
    dtype: type[np.generic] = np.uint32
    words: int = 0
    """32-bit words of an element that is loaded; 0 where only one is."""

    def arguments(self) -> list[Any]:
        """Input, output and scalars, as the kernel takes them."""
        generator = np.random.default_rng(1)
        count = self.words * (WORDS + MARGIN) if self.words else BLOCKS * BLOCK * 4
        if self.dtype is np.uint32:
            data = generator.integers(0, 1 << 32, count, dtype=np.uint32)
        else:
            data = generator.standard_normal(count * 4 // np.dtype(self.dtype).itemsize).astype(self.dtype)
        scalars = [np.uint32(WORDS)] if self.words else []
        return [data, np.zeros(BLOCKS * BLOCK, np.uint32), *scalars, np.int32(self.turns)]


KERNELS = (
    Kernel("integer", 600),
    Kernel("single_precision", 600, np.float32),
    Kernel("load_global_32", 250, words=1),
    Kernel("load_global_128", 150, words=4),
    Kernel("load_shared", 1000),
    Kernel("tensor_core", 75, np.float16),
)
#: What is measured under the checkers: also what costs them most.
CHECKED_KERNELS = (*KERNELS, Kernel("tile_shared_128", 100))


def facts(
    row: str,
    threads: int,
    samples: Sequence[float],
    warp_instructions: int,
    *,
    hmma_steps: int = 0,
    target: float = TARGET_INSTRUCTIONS,
) -> dict[str, Any]:
    """The record of a row from its samples in seconds; rates in millions a second, ``target`` is that of one thread.

    ``rate`` is that of the median. ``best_rate`` is what the fastest sample says, for machines that others use too.
    """
    seconds, work = median(samples), hmma_steps or warp_instructions
    rate = work / seconds / 1e6
    target = threads * (TARGET_STEPS if hmma_steps else target)
    return {
        "row": f"emulator {row}",
        "label": EMULATOR_LABEL,
        "threads": threads,
        "warp_instructions": warp_instructions,
        "minstr_per_s": warp_instructions / seconds / 1e6,
        "rate": rate,
        "best_rate": work / min(samples) / 1e6,
        "unit": "M HMMA steps/s" if hmma_steps else "M warp instructions/s",
        "target": target,
        "met": rate >= target,
    }


def render(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table of plain text."""
    cells = [("row", "threads", "rate", "best", "unit", "target", "result", "peak memory")]
    for row in rows:
        target = row["target"]
        memory = (
            f"{row['peak_bytes'] / 1e6:.0f} of {row['peak_limit_bytes'] / 1e6:.0f} MB" if "peak_bytes" in row else ""
        )
        result = "no target" if target is None else "met" if row["met"] else "missed"
        wanted = "" if target is None else f"{target:.1f}"
        rates = (f"{row[name]:.1f}" for name in ("rate", "best_rate"))
        cells.append((row["row"], str(row["threads"]), *rates, row["unit"], wanted, result, memory))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = (1, 2, 3, 5)
    lines = (
        "  ".join(
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    )
    return "\n".join((*lines, "Targets are for all threads of a row together; wall time of this machine's processor."))


class Table:
    """A pytest plugin that ends the session with the rows."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the rows."""
        if self.rows:
            terminalreporter.section(EMULATOR_LABEL)
            terminalreporter.write_line(render(self.rows))


@pytest.fixture(scope="session")
def record(pytestconfig: pytest.Config) -> Callable[[Any, dict[str, Any]], None]:
    """Put a row into the record and into the table."""
    table = Table()
    pytestconfig.pluginmanager.register(table)

    def add(benchmark: Any, row: dict[str, Any]) -> None:
        benchmark.extra_info.update(row)
        table.rows.append(row)

    return add


@pytest.fixture(scope="session")
def program() -> Any:
    """The kernels, compiled for sm_70 and loaded into the emulator."""
    pytest.importorskip(
        "sm70_kernels._emulator",
        reason="the emulator's module is built for another Python than this one",
        exc_type=ImportError,
    )
    from sm70_kernels import lab

    return lab.compile(SOURCE)


@pytest.fixture(scope="session")
def gathered() -> dict[str, Any]:
    """The operator's times and memory, measured in a process of its own."""
    counts = map(str, sorted(set(WORKERS.values())))
    command = [sys.executable, "-m", "benchmarks.emulator_gather", str(ROUNDS), *counts]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=GATHER_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    measured: dict[str, Any] = json.loads(done.stdout)
    return measured


@pytest.mark.benchmark(group="emulator")
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_kernel(kernel: Kernel, workers: str, program: Any, record: Any, benchmark: Any) -> None:
    """One kind of instruction."""
    threads, arguments = WORKERS[workers], kernel.arguments()

    def launch() -> int:
        launched = program.kernel(kernel.name).launch(
            BLOCKS, BLOCK, arguments, outputs=(1,), threads=threads, keep_inputs=False
        )
        return int(launched.warp_instructions)

    instructions = benchmark.pedantic(launch, rounds=ROUNDS, iterations=1, warmup_rounds=1)
    if benchmark.stats is None:  # --benchmark-disable
        return
    steps = WARPS * kernel.turns * STEPS_A_TURN if kernel.name == "tensor_core" else 0
    samples = benchmark.stats.stats.data
    record(benchmark, facts(kernel.name.replace("_", " "), threads, samples, instructions, hmma_steps=steps))


@pytest.mark.benchmark(group="emulator")
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("kernel", CHECKED_KERNELS, ids=lambda kernel: kernel.name)
def test_checked_kernel(kernel: Kernel, workers: str, program: Any, record: Any, benchmark: Any) -> None:
    """The same under all checkers, which find nothing."""
    threads, arguments = WORKERS[workers], kernel.arguments()

    with Checks() as checks:

        def launch() -> int:
            launched = program.kernel(kernel.name).launch(
                BLOCKS,
                BLOCK,
                arguments,
                outputs=(1,),
                threads=threads,
                keep_inputs=False,
                instruments=checks.instruments,
            )
            return int(launched.warp_instructions)

        instructions = benchmark.pedantic(launch, rounds=ROUNDS, iterations=1, warmup_rounds=1)
    if benchmark.stats is None:  # --benchmark-disable
        return
    name = f"{kernel.name.replace('_', ' ')}, all checkers"
    record(benchmark, facts(name, threads, benchmark.stats.stats.data, instructions, target=TARGET_CHECKED))


@pytest.mark.benchmark(group="emulator", timer=replay_timer)
@pytest.mark.parametrize("workers", WORKERS)
def test_gather(workers: str, gathered: dict[str, Any], record: Any, benchmark: Any) -> None:
    """A launch of kv_cache with its host code: gather, E4M3, 32K tokens, head dimension 256."""
    threads = WORKERS[workers]
    seconds = gathered["seconds"][str(threads)]
    replay(benchmark, [1000 * second for second in seconds])
    limit = MEMORY_FACTOR * gathered["buffer_bytes"] + MEMORY_CONSTANT
    row = facts("kv_cache gather e4m3 32K D256", threads, seconds, gathered["warp_instructions"])
    row |= {
        "operator": "kv_cache",
        "target": None,
        "met": None,
        "exact": gathered["exact"],
        "buffer_bytes": gathered["buffer_bytes"],
        "peak_bytes": gathered["peak_bytes"],
        "peak_limit_bytes": limit,
    }
    record(benchmark, row)
    assert gathered["exact"], "the gathered values are wrong"
    assert gathered["peak_bytes"] <= limit
