"""Every refusal of the kv_cache operators: a sentence that names the argument, and nothing launched or written."""

from __future__ import annotations

from typing import Any

import torch

from sm70_kernels.ops import kv_cache
from tests.ops import refusal_cases
from tests.ops.refusal_cases import (
    CPU_REFUSED,
    Change,
    Refusal,
    caches,
    check_refused,
    each,
    expanded,
    on_cpu,
    reshape,
    to,
    transposed_last,
    value,
)

CACHES, OUTPUTS = ("key_cache", "value_cache"), ("k_out", "v_out")

COMMON: list[Refusal] = [
    *refusal_cases.CACHES,
    ("page of 17", caches(4, 17, 2, 64), r"'key_cache': got a page of 17 tokens, want a multiple of 16"),
    ("cache without heads", caches(4, 16, 0, 64), r"'key_cache': got a cache without"),
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': got shape \[4, 16, 64\], want \[pages"),
    ("value cache on the CPU", on_cpu("value_cache"), r"'value_cache': got a tensor on cpu, want a tensor on cuda:\d"),
    ("unknown format", value(kv_format="fp4"), r"'kv_format': got 'fp4', want one of"),
    ("uint8 without a format", value(kv_format=None), r"'kv_format': got None for a torch.uint8 cache"),
    ("fp16 for bytes", value(kv_format="fp16"), r"'key_cache': got torch.uint8, want torch.float16"),
    ("negative scale", value(k_scale=-1.0), r"'k_scale': got -1, want a positive finite FP32 number"),
    ("scale 0", value(v_scale=0.0), r"'v_scale': got 0, want a positive"),
    ("infinite scale", value(k_scale=float("inf")), r"'k_scale': got inf"),
    ("NaN scale", value(v_scale=float("nan")), r"'v_scale': got -?nan"),
    ("scale beyond FP32", value(k_scale=1e60), r"'k_scale': got 1e\+60"),
    ("scale below FP32", value(k_scale=1e-60), r"'k_scale': got 1e-60"),
]  # fmt: skip

WRITE = [
    *COMMON,
    ("k that is None", value(k=None), r"'k': got NoneType, want a torch.Tensor"),
    ("k of numpy", lambda a: {"k": a["k"].cpu().numpy()}, r"'k': got ndarray, want a torch.Tensor"),
    ("expanded cache", expanded("key_cache"), r"'key_cache': got strides .* memory of their own"),
    ("k of float32", to("k", torch.float32), r"'k': got torch.float32, want torch.float16"),
    ("v of bfloat16", to("v", torch.bfloat16), r"'v': got torch.bfloat16, want torch.float16"),
    ("k of 2 dimensions", reshape("k", 3, 128), r"'k': got shape \[3, 128\], want \[tokens, Hkv, D\]"),
    ("other tokens", reshape("v", 4, 2, 64), r"'v': .*size 3 in dimension 0 \(tokens of slot_mapping\)"),
    ("other heads", reshape("k", 3, 1, 64), r"'k': .*\(KV heads of key_cache\)"),
    ("other D", reshape("k", 3, 2, 32), r"'k': .*\(head dimension of key_cache\)"),
    ("slots of int32", to("slot_mapping", torch.int32), r"'slot_mapping': got torch.int32, want torch.int64"),
    ("slots of 2 dimensions", reshape("slot_mapping", 3, 1), r"'slot_mapping': got shape \[3, 1\], want \[tokens\]"),
    ("slots on the CPU", on_cpu("slot_mapping"), r"'slot_mapping': got a tensor on cpu"),
    ("k with D not innermost", transposed_last("k"), r"'k': got strides"),
]

GATHER = [
    *COMMON,
    ("table that is a list", value(block_table=[[0]]), r"'block_table': got list, want a torch.Tensor"),
    ("output that is None", value(k_out="x"), r"'k_out': got str, want a torch.Tensor"),
    ("negative max_tokens", value(k_out=None, v_out=None, max_tokens=-1), r"'max_tokens': got -1, want a whole"),
    ("max_tokens of float", value(k_out=None, v_out=None, max_tokens=1.5), r"'max_tokens': got 1.5, want a whole"),
    ("lengths of 0 dimensions", lambda a: {"seq_lens": a["seq_lens"][0], "k_out": None, "v_out": None,
                                           "max_tokens": 16}, r"'seq_lens': got shape \[\], want \[B\]"),
    ("allocation from 2 dimensions", lambda a: {"key_cache": a["key_cache"][0, 0], "k_out": None, "v_out": None,
                                                "max_tokens": 16}, r"'key_cache': got shape \[2, 64\], want \[pages"),
    ("table of int64", to("block_table", torch.int64), r"'block_table': got torch.int64, want torch.int32"),
    ("lengths of int64", to("seq_lens", torch.int64), r"'seq_lens': got torch.int64, want torch.int32"),
    ("table of other rows", reshape("block_table", 3, 2), r"'block_table': .*\(rows of seq_lens\)"),
    ("table with entries apart", transposed_last("block_table"), r"'block_table': got strides"),
    ("lengths of 2 dimensions", reshape("seq_lens", 2, 1), r"'seq_lens': got shape \[2, 1\], want \[B\]"),
    ("output of float32", to("k_out", torch.float32), r"'k_out': got torch.float32, want torch.float16"),
    ("output of 3 dimensions", reshape("v_out", 2, 32, 64), r"'v_out': .*want \[B, tokens, Hkv, D\]"),
    ("outputs of two lengths", reshape("v_out", 2, 16, 2, 64), r"'v_out': .*\(size of k_out\)"),
    ("output of other rows", reshape("k_out", 3, 32, 2, 64), r"'k_out': .*\(rows of seq_lens\)"),
    ("expanded output", expanded("k_out"), r"'k_out': got strides .* memory of their own"),
    ("output on the CPU", on_cpu("v_out"), r"'v_out': got a tensor on cpu"),
    ("one output", value(v_out=None), r"'k_out' and 'v_out': got one of them"),
    ("no output", value(k_out=None, v_out=None), r"'k_out': got None"),
    ("outputs and max_tokens", value(max_tokens=32), r"'max_tokens': got it beside outputs"),
    ("out page of 17", lambda a: {
        "k_out": torch.zeros(4, 17, 2, 64, dtype=torch.float16, device=a["k_out"].device),
        "v_out": torch.zeros(4, 17, 2, 64, dtype=torch.float16, device=a["k_out"].device),
        "out_block_table": torch.zeros(2, 2, dtype=torch.int32, device=a["k_out"].device),
    }, r"'k_out': got a page of 17 tokens, want a multiple of 16"),
    ("out table of other rows", lambda a: {
        "out_block_table": torch.zeros(5, 2, dtype=torch.int32, device=a["k_out"].device)},
     r"'out_block_table': .*\(rows of seq_lens\)"),
]  # fmt: skip


def write_arguments(device: torch.device) -> dict[str, Any]:
    return {
        "k": torch.ones(3, 2, 64, dtype=torch.float16, device=device),
        "v": torch.ones(3, 2, 64, dtype=torch.float16, device=device),
        "key_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "value_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "slot_mapping": torch.arange(3, device=device),
        "kv_format": "e4m3",
    }


def gather_arguments(device: torch.device) -> dict[str, Any]:
    return {
        "key_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "value_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "block_table": torch.zeros(2, 2, dtype=torch.int32, device=device),
        "seq_lens": torch.full((2,), 20, dtype=torch.int32, device=device),
        "k_out": torch.ones(2, 32, 2, 64, dtype=torch.float16, device=device),
        "v_out": torch.ones(2, 32, 2, 64, dtype=torch.float16, device=device),
        "kv_format": "e4m3",
    }


@each(WRITE)
def test_write_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(kv_cache.write_paged_kv, write_arguments(device), change, message, CACHES)


@each(GATHER)
def test_gather_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(kv_cache.gather_paged_kv, gather_arguments(device), change, message, OUTPUTS)


def test_cpu_tensors_are_refused_with_a_remedy() -> None:
    cpu = torch.device("cpu")
    want = f"'key_cache': {CPU_REFUSED}"
    check_refused(kv_cache.write_paged_kv, write_arguments(cpu), value(), want, CACHES)
    check_refused(kv_cache.gather_paged_kv, gather_arguments(cpu), value(), want, OUTPUTS)
