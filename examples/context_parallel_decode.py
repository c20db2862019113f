"""Context-parallel decode: each rank holds part of every sequence's keys, and all of them the result over the whole.

    torchrun --nproc-per-node 2 examples/context_parallel_decode.py

A rank decodes over its own keys and gets an output with its lse. Both are gathered, 2 * D + 4 bytes for each query
head, and merged: no key or value travels. Without GPUs the ranks run on the emulated V100, over gloo.
"""

from __future__ import annotations

import contextlib

import torch
import torch.distributed as dist

from sm70_kernels.attention.states import merge_states
from sm70_kernels.lab import emulator
from sm70_kernels.ops import decode

QUERY_HEADS, KV_HEADS, HEAD_DIM, PAGE = 6, 1, 256, 16
#: Tokens of each sequence. One is empty; one ends inside the first rank's part, so that the others have none of it.
LENGTHS = (2000, 300, 0, 1025)


def tokens_of_rank(rank: int, ranks: int) -> tuple[int, int]:
    """First token of a rank's part and the one behind it, whole pages: the same for all sequences."""
    pages = -(-max(LENGTHS) // PAGE)
    return pages * rank // ranks * PAGE, pages * (rank + 1) // ranks * PAGE


def decode_part(first: int, last: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse over tokens ``first .. last - 1`` of every sequence, which alone are in this rank's cache."""
    generator = torch.Generator().manual_seed(0)  # a served model has its own; here ranks must agree on the data
    q = torch.randn(len(LENGTHS), QUERY_HEADS, HEAD_DIM, generator=generator).half().to(device)
    pages = -(-max(LENGTHS) // PAGE)
    shape = (2, len(LENGTHS), pages, PAGE, KV_HEADS, HEAD_DIM)
    everything = torch.randn(shape, generator=generator).to(torch.float8_e4m3fn).view(torch.uint8)
    mine = everything[:, :, first // PAGE : last // PAGE].to(device)
    key_cache, value_cache = mine.flatten(1, 2).unbind(0)
    blocks = mine.shape[2]
    block_table = torch.arange(len(LENGTHS) * blocks, dtype=torch.int32, device=device).view(-1, blocks)
    lengths = (torch.tensor(LENGTHS) - first).clamp(0, last - first).to(torch.int32).to(device)
    lse = torch.empty(len(LENGTHS), QUERY_HEADS, device=device)
    out = decode.decode(q, key_cache, value_cache, block_table, lengths, kv_format="e4m3", lse=lse)
    return out, lse


def main() -> None:
    """One rank."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    with contextlib.nullcontext() if on_gpu else emulator.enabled():
        out, lse = decode_part(*tokens_of_rank(rank, ranks), device)
        outs = [torch.empty_like(out) for _ in range(ranks)]
        lses = [torch.empty_like(lse) for _ in range(ranks)]
        dist.all_gather(outs, out)
        dist.all_gather(lses, lse)
        merged, merged_lse = merge_states(outs, lses)
        if rank == 0:
            whole, whole_lse = decode_part(0, -(-max(LENGTHS) // PAGE) * PAGE, device)
            live = whole_lse.isfinite()
            error = torch.linalg.vector_norm((merged - whole).double()) / torch.linalg.vector_norm(whole.double())
            print(f"{ranks} ranks against one: relative L2 {float(error):.1e} (rounding to FP16 gives 2e-4 each time)")
            print(f"lse: {float((merged_lse - whole_lse)[live].abs().max()):.1e} apart")
            assert float(error) < 1e-3 and torch.equal(merged_lse.isfinite(), live)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
