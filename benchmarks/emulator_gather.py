"""``python -m benchmarks.emulator_gather ROUNDS THREADS...``: a real operator on the emulated V100, and its memory.

In a process of its own, so that the peak is the launch's. Prints one JSON object. The bytes touched are those of the
tensors; memory is what the process holds at its peak beyond what it held before it made them.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from pathlib import Path

import torch

from sm70_kernels.lab import emulator
from sm70_kernels.ops import kv_cache

TOKENS, HEAD_DIM, PAGE = 32768, 256, 64


def _status(field: str) -> int | None:
    """A size of /proc/self/status, in bytes; None where the kernel does not tell it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    return None


def _peak() -> int:
    """Peak resident bytes. ``ru_maxrss`` also holds the peak of the process that started this one."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(rounds: int, thread_counts: list[int]) -> dict[str, object]:
    """Launch ``rounds`` times with each number of worker threads; times are in seconds."""
    with contextlib.suppress(OSError):  # forget the peak of the imports, where that is allowed
        Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS") or _peak()
    generator = torch.Generator().manual_seed(1)
    shape = (TOKENS // PAGE, PAGE, 1, HEAD_DIM)
    caches = [torch.randint(0, 0x7F, shape, dtype=torch.uint8, generator=generator) for _ in range(2)]
    table = torch.randperm(shape[0], generator=generator).to(torch.int32)[None]
    lengths = torch.tensor([TOKENS], dtype=torch.int32)
    k_out, v_out = (torch.empty(1, TOKENS, 1, HEAD_DIM, dtype=torch.float16) for _ in range(2))
    seconds: dict[int, list[float]] = {}
    instructions = 0
    for threads in thread_counts:
        seconds[threads] = []
        for _ in range(rounds + 1):
            start = time.perf_counter()
            with emulator.enabled(threads=threads) as emulation:
                kv_cache.gather_paged_kv(*caches, table, lengths, kv_format="e4m3", k_out=k_out, v_out=v_out)
            seconds[threads].append(time.perf_counter() - start)
            instructions = emulation.warp_instructions
        del seconds[threads][0]  # the first launch decodes the kernel
    peak = _peak() - before
    tensors = (*caches, table, lengths, k_out, v_out)
    expected = (cache[table[0].long()].view(torch.float8_e4m3fn).to(torch.float16) for cache in caches)
    exact = all(torch.equal(out.flatten(), want.flatten()) for out, want in zip((k_out, v_out), expected, strict=True))
    return {
        "seconds": {str(threads): samples for threads, samples in seconds.items()},
        "warp_instructions": instructions,
        "buffer_bytes": sum(tensor.numel() * tensor.element_size() for tensor in tensors),
        "peak_bytes": peak,
        "exact": exact,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])))
