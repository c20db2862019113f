"""The kv_cache operators inside torch: graphs, streams, threads, torch.compile, and what a bad index does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sm70_kernels.ops import kv_cache
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops import integration_cases
from tests.ops.kv_cases import SENTINEL, fill_live, make_cache, make_rows

ROOT = Path(__file__).resolve().parents[2]


def test_gather_graph_serves_other_lengths_pages_and_scales(cuda_device: torch.device) -> None:
    page, pages, max_tokens = 48, 60, 700
    caches = make_cache("unbind", (pages, page, 1, 64), "e4m3", cuda_device)
    table = torch.full((4, 15), -1, dtype=torch.int32, device=cuda_device)
    lens = torch.zeros(4, dtype=torch.int32, device=cuda_device)
    scale = torch.ones(1, device=cuda_device)
    k, v = (torch.full((4, max_tokens, 1, 64), SENTINEL, dtype=torch.float16, device=cuda_device) for _ in range(2))

    def call() -> None:
        kv_cache.gather_paged_kv(*caches, table, lens, k_scale=scale, v_scale=scale, kv_format="e4m3", k_out=k, v_out=v)

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # captured with every length 0
        call()
    steps = [([0, 0, 0, 0], 1.0), ([700, 1, 0, 300], 1.0), ([3, 600, 47, 49], 0.5), ([0, 0, 0, 0], 2.0),
             ([100, 100, 100, 100], 0.3), ([700, 1, 0, 300], 1.0)]  # fmt: skip
    for step, (lengths, factor) in enumerate(steps):
        rows = make_rows(lengths, page, pages, cuda_device, max_tokens=720, seed=step)
        for seed, cache in enumerate(caches):
            fill_live(cache, rows, "e4m3", 10 * step + seed)
        table.copy_(rows.block_table)
        lens.copy_(rows.seq_lens)
        scale.fill_(factor)
        results = []
        for run in (graph.replay, call):
            k.fill_(SENTINEL), v.fill_(SENTINEL)
            run()
            results.append((k.clone(), v.clone()))
        for replayed, eager in zip(*results, strict=True):
            compare_bitwise(replayed.cpu(), eager.cpu(), f"step {step}")
        for row, length in enumerate(lengths):
            assert bool((k[row, -(-length // 16) * 16 :] == SENTINEL).all())


def test_six_replays_are_bitwise_equal(device: torch.device) -> None:
    caches = make_cache("contiguous", (40, 16, 2, 128), "e5m2", device)
    rows = make_rows([300, 77, 200], 16, 40, device, max_tokens=320)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e5m2", seed)
    first = kv_cache.gather_paged_kv(
        *caches, rows.block_table, rows.seq_lens, k_scale=0.7, kv_format="e5m2", max_tokens=304
    )
    for _ in range(5):
        again = kv_cache.gather_paged_kv(
            *caches, rows.block_table, rows.seq_lens, k_scale=0.7, kv_format="e5m2", max_tokens=304
        )
        for row, length in enumerate(rows.lengths):
            compare_bitwise(again[0][row, :length].cpu(), first[0][row, :length].cpu())


def test_write_graph(cuda_device: torch.device) -> None:
    caches = make_cache("contiguous", (4, 16, 1, 64), "e4m3", cuda_device)
    k = torch.ones(4, 1, 64, dtype=torch.float16, device=cuda_device)
    slots = torch.full((4,), -1, dtype=torch.int64, device=cuda_device)
    scale = torch.ones(1, device=cuda_device)
    kv_cache.write_paged_kv(k, k, *caches, slots, k_scale=scale, v_scale=scale, kv_format="e4m3")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kv_cache.write_paged_kv(k, k, *caches, slots, k_scale=scale, v_scale=scale, kv_format="e4m3")
    caches[0].zero_(), caches[1].zero_()
    slots.copy_(torch.tensor([3, -1, 63, 17]))
    scale.fill_(0.5)
    graph.replay()
    written = torch.zeros(64, dtype=torch.bool)
    written[[3, 63, 17]] = True
    for cache in caches:
        assert torch.equal((cache.view(64, 64) == 0x40).all(1).cpu(), written)  # 1 / 0.5 = 2
        assert int(cache.count_nonzero()) == 3 * 64


def test_current_stream_is_used(cuda_device: torch.device) -> None:
    cache = torch.zeros(2, 16, 1, 64, dtype=torch.uint8, device=cuda_device)
    k = torch.ones(16, 1, 64, dtype=torch.float16, device=cuda_device)
    slots = torch.arange(16, device=cuda_device)
    kv_cache.write_paged_kv(k, k, cache, cache.clone(), slots, kv_format="e4m3")
    cache.zero_()
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # the write must queue behind this on the side stream
        kv_cache.write_paged_kv(k, k, cache, cache.clone(), slots, kv_format="e4m3")
    assert int(cache.count_nonzero()) == 0, "the write did not wait for its stream"
    side.synchronize()
    assert int(cache.count_nonzero()) == 16 * 64


def test_opcheck(device: torch.device) -> None:
    caches = make_cache("contiguous", (4, 16, 2, 64), "e4m3", device)
    k = torch.randn(3, 2, 64, device=device).half()
    slots = torch.arange(3, device=device)
    out = [torch.zeros(2, 32, 2, 64, dtype=torch.float16, device=device) for _ in range(2)]
    table = torch.zeros(2, 2, dtype=torch.int32, device=device)
    lens = torch.full((2,), 3, dtype=torch.int32, device=device)
    ops = torch.ops.sm70_kernels
    torch.library.opcheck(ops.write_paged_kv.default, (k, k, *caches, slots, "e4m3", 1.0, 1.0))
    torch.library.opcheck(ops.gather_paged_kv.default, (*caches, table, lens, *out, "e4m3", 0.5, 1.0))


def test_compile_fullgraph_without_recompiles(device: torch.device) -> None:
    both = torch.zeros(8, 2, 16, 1, 64, dtype=torch.uint8, device=device)
    key, value = both.unbind(1)

    def step(k: torch.Tensor, slots: torch.Tensor, table: torch.Tensor, lens: torch.Tensor) -> torch.Tensor:
        kv_cache.write_paged_kv(k * 2, k, key, value, slots, kv_format="fp8")
        k_out, v_out = kv_cache.gather_paged_kv(key, value, table, lens, kv_format="fp8", max_tokens=64)
        return k_out + v_out

    torch._dynamo.reset()
    compiled = torch.compile(step, fullgraph=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed, length in enumerate((5, 64, 17)):
            generator = torch.Generator().manual_seed(seed)
            k = torch.randint(-7, 8, (64, 1, 64), generator=generator).half().to(device)
            table = torch.randperm(8, generator=generator)[:4].to(torch.int32).to(device)[None]
            slots = (table[0].long()[:, None] * 16 + torch.arange(16, device=device)).flatten()
            lens = torch.tensor([length], dtype=torch.int32, device=device)
            result = compiled(k, slots, table, lens)
            assert torch.equal(result[0, :length], (3 * k)[:length])


def in_subprocess(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh Python with the package on its path."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        **environment,
    }
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, timeout=300)


SETUP = """
import torch
from sm70_kernels.ops import kv_cache
cache = torch.zeros(4, 16, 1, 64, dtype=torch.uint8, device="cuda")
out = torch.zeros(1, 64, 1, 64, dtype=torch.float16, device="cuda")
table = torch.zeros(1, 4, dtype=torch.int32, device="cuda")
lens = torch.full((1,), 64, dtype=torch.int32, device="cuda")
k = torch.ones(1, 1, 64, dtype=torch.float16, device="cuda")
slots = torch.zeros(1, dtype=torch.int64, device="cuda")
def gather(): kv_cache.gather_paged_kv(cache, cache, table, lens, kv_format="e4m3", k_out=out, v_out=out)
def write(): kv_cache.write_paged_kv(k, k, cache, cache, slots, kv_format="e4m3")
"""


def test_first_call_of_a_process_inside_a_capture(cuda_device: torch.device) -> None:
    done = in_subprocess(
        SETUP
        + """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    write(); gather()
assert int(out.count_nonzero()) == 0
graph.replay(); torch.cuda.synchronize()
assert int(out.count_nonzero()) == 4 * 64, int(out.count_nonzero())
"""
    )
    assert done.returncode == 0, done.stderr


BAD_INDICES = {
    "slot at the end": "slots.fill_(64); write()",
    "slot -2": "slots.fill_(-2); write()",
    "slot of 2**40": "slots.fill_(2**40); write()",
    "page too large": "table[0, 1] = 4; gather()",
    "page -1": "table[0, 3] = -1; gather()",
    "length too long": "lens.fill_(65); gather()",
    "negative length": "lens.fill_(-1); gather()",
}


@pytest.mark.parametrize("action", BAD_INDICES.values(), ids=BAD_INDICES.keys())
def test_bad_index_stops_the_kernel(cuda_device: torch.device, action: str) -> None:
    done = in_subprocess(f"{SETUP}\n{action}\ntorch.cuda.synchronize()")
    assert done.returncode != 0
    assert "CUDA error" in done.stderr or "cudaError" in done.stderr, done.stderr


@pytest.mark.parametrize("action", BAD_INDICES.values(), ids=BAD_INDICES.keys())
def test_bad_index_stops_the_emulated_kernel(action: str) -> None:
    integration_cases.check_emulated_trap(SETUP, action, r"kv_cache_\w+_e4m3_x8")


def test_first_use_by_many_threads(cuda_device: torch.device) -> None:
    done = in_subprocess(
        SETUP
        + """
import threading
barrier = threading.Barrier(16); failures = []
def work():
    try:
        barrier.wait(); [(write(), gather()) for _ in range(20)]
    except Exception as error: failures.append(error)
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]; torch.cuda.synchronize()
assert not failures, failures
counts = kv_cache.library.launch_counts()
assert sum(sum(images.values()) for images in counts.values()) == 640, counts
"""
    )
    assert done.returncode == 0, done.stderr


def test_other_gpu_without_opt_in_is_refused(cuda_device: torch.device) -> None:
    if torch.cuda.get_device_capability(cuda_device) == (7, 0):
        pytest.skip("this GPU is a V100: nothing to opt in to")
    done = in_subprocess(SETUP + "\nwrite()", SM70_KERNELS_ALLOW_JIT="0")
    assert done.returncode != 0
    assert "want sm_70 (V100). Use a V100, or set SM70_KERNELS_ALLOW_JIT=1" in done.stderr, done.stderr
    done = in_subprocess(SETUP + "\nwrite()", SM70_KERNELS_ALLOW_JIT="yes")
    assert "SM70_KERNELS_ALLOW_JIT: got 'yes', want '0' or '1'" in done.stderr, done.stderr


def test_several_devices_in_one_process(cuda_device: torch.device) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU here: nothing to tell apart")
    for index in (0, 1, 0):
        there = torch.device("cuda", index)
        cache = torch.zeros(1, 16, 1, 64, dtype=torch.uint8, device=there)
        k = torch.ones(16, 1, 64, dtype=torch.float16, device=there)
        kv_cache.write_paged_kv(k, k, cache, cache.clone(), torch.arange(16, device=there), kv_format="e4m3")
        assert bool((cache == 0x38).all())


def test_launch_counts_are_thread_safe(cuda_device: torch.device) -> None:
    cache = torch.zeros(1, 16, 1, 64, dtype=torch.uint8, device=cuda_device)
    k = torch.ones(1, 1, 64, dtype=torch.float16, device=cuda_device)
    slots = torch.zeros(1, dtype=torch.int64, device=cuda_device)
    before = sum(kv_cache.library.launch_counts().get("kv_cache_write_e4m3_x8", {}).values())
    threads = [
        threading.Thread(
            target=lambda: [kv_cache.write_paged_kv(k, k, cache, cache, slots, kv_format="e4m3") for _ in range(50)]
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(kv_cache.library.launch_counts()["kv_cache_write_e4m3_x8"].values()) == before + 400
