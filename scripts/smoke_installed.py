"""Run by the dist session with the interpreter of a new environment: an installed wheel works, from any folder.

A gather of E4M3 pages runs the sm_70 machine code on the emulated V100 and must equal the reference, bit by bit.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

import sm70_kernels
from sm70_kernels import reference
from sm70_kernels.lab import emulator
from sm70_kernels.ops import kv_cache


def main() -> None:
    """Compare one gather with the reference; an assertion fails when they differ."""
    package = Path(sm70_kernels.__file__).resolve().parent
    assert package.is_relative_to(Path(sys.prefix).resolve()), f"got the package in {package}, want the installed one"
    generator = torch.Generator().manual_seed(1)
    caches = [torch.randint(0, 0x7F, (4, 16, 1, 256), dtype=torch.uint8, generator=generator) for _ in range(2)]
    table = torch.tensor([[2, 0, 3, 1]], dtype=torch.int32)
    lengths = torch.tensor([50], dtype=torch.int32)
    got = [torch.zeros(1, 50, 1, 256, dtype=torch.float16) for _ in range(2)]
    want = [torch.zeros_like(out) for out in got]
    kinds: dict[str, Any] = {"k_scale": 0.5, "v_scale": 2.0, "kv_format": "e4m3"}
    with emulator.enabled():
        kv_cache.gather_paged_kv(*caches, table, lengths, **kinds, k_out=got[0], v_out=got[1])
    reference.gather_paged_kv(*caches, table, lengths, **kinds, k_out=want[0], v_out=want[1])
    for actual, expected in zip(got, want, strict=True):
        reference.compare_bitwise(actual, expected, "gather")
    print(f"gather of {package.name} {sm70_kernels.__version__} on the emulated V100: equal to the reference")


if __name__ == "__main__":
    main()
