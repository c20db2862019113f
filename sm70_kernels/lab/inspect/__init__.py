"""Looking into what the emulated V100 executed: counts, hot spots, traces.

    from sm70_kernels import inspect

    with inspect.statistics() as watched:
        kv_cache.gather_paged_kv(...)  # CPU tensors
    for name, kernel in watched.kernels.items():
        print(name, kernel.issued, kernel.by_pipe())

These are counts of what the machine code did, exact for the inputs at hand. None of them is a time. How to read them:
``docs/statistics.md``.
"""

from sm70_kernels.lab.inspect.records import InstructionStatistics, KernelStatistics, MemoryTotals, Tally
from sm70_kernels.lab.inspect.watching import Watched, statistics, trace

__all__ = [
    "InstructionStatistics",
    "KernelStatistics",
    "MemoryTotals",
    "Tally",
    "Watched",
    "statistics",
    "trace",
]
