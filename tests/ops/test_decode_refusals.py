"""Every refusal of decode: a sentence that names the argument, and nothing launched or written. And its workspace."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels.lab import emulator
from sm70_kernels.ops import decode
from tests.ops.decode_cases import VARIANTS, make_case
from tests.ops.test_kv_cache_refusals import Change, expanded, on_cpu, reshape, to, transposed_last, value

MIB = 1 << 20


def wide(name: str, elements: int) -> Change:
    """The argument as a view of every ``elements``-th element of its rows."""
    return lambda a: {name: a[name].repeat_interleave(elements, dim=-1)[..., ::elements]}


def caches(**arguments: Any) -> Change:
    """Other caches of one shape."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        shape = arguments.get("shape", (4, 16, 2, 64))
        dtype = arguments.get("dtype", torch.uint8)
        return {n: torch.zeros(shape, dtype=dtype, device=a[n].device) for n in ("key_cache", "value_cache")}

    return change


#: Refusals that the plan's run and the functional form share.
RUN: list[tuple[str, Change, str]] = [
    ("q that is None", value(q=None), r"'q': got NoneType, want a torch.Tensor"),
    ("cache that is a list", value(key_cache=[0]), r"'key_cache': got list, want a torch.Tensor"),
    ("table that is a list", value(block_table=[[0]]), r"'block_table': got list, want a torch.Tensor"),
    ("q of float32", to("q", torch.float32), r"'q': got torch.float32, want torch.float16"),
    ("q of bfloat16", to("q", torch.bfloat16), r"'q': got torch.bfloat16, want torch.float16"),
    ("q with D not innermost", transposed_last("q"), r"'q': got strides"),
    ("cache of int32", to("key_cache", torch.int32), r"'key_cache': got torch.int32, want torch.float8_e4m3fn or"),
    ("cache of other float8", to("key_cache", torch.float8_e5m2), r"'key_cache': got torch.float8_e5m2, want"),
    ("mixed caches", to("value_cache", torch.float8_e4m3fn), r"'value_cache': got torch.float8_e4m3fn, want"),
    ("value cache of 3 dimensions", reshape("value_cache", 4, 16, 64), r"'value_cache': got shape \[4, 16, 64\], want"),
    ("caches of two shapes", reshape("value_cache", 5, 16, 2, 64), r"'value_cache': .* \(pages of key_cache\)"),
    ("caches of two pages", reshape("value_cache", 4, 32, 2, 64), r"'value_cache': .* \(page size of key_cache\)"),
    ("caches of two head dims", reshape("value_cache", 4, 16, 2, 32), r"'value_cache': .*head dimension of key_cache"),
    ("other D than q", caches(shape=(4, 16, 2, 128)), r"'q': .*64.*128.*head dimension of key_cache"),
    ("page of 8", caches(shape=(4, 8, 2, 64)), r"'key_cache': got a page of 8 tokens, want a multiple of 16"),
    ("page of 0", caches(shape=(4, 0, 2, 64)), r"'key_cache': got a page of 0 tokens, want a multiple of 16"),
    ("cache with D not innermost", transposed_last("key_cache"), r"'key_cache': got strides"),
    ("table of int64", to("block_table", torch.int64), r"'block_table': got torch.int64, want torch.int32"),
    ("table of other rows", reshape("block_table", 3, 2), r"'block_table': .*rows of q, without row_requests"),
    ("table with entries apart", wide("block_table", 2), r"'block_table': got strides"),
    ("lengths of int64", to("seq_lens", torch.int64), r"'seq_lens': got torch.int64, want torch.int32"),
    ("lengths of 2 dimensions", reshape("seq_lens", 2, 1), r"'seq_lens': got shape \[2, 1\], want \[rows\]"),
    ("lengths of other rows", reshape("seq_lens", 3), r"'seq_lens': .*\(rows of q\)"),
    ("lengths on the CPU", on_cpu("seq_lens"), r"'seq_lens': got a tensor on cpu"),
    ("requests of int64", lambda a: {"row_requests": torch.zeros(2, dtype=torch.int64, device=a["q"].device)},
     r"'row_requests': got torch.int64, want torch.int32"),
    ("requests of other rows", lambda a: {"row_requests": torch.zeros(3, dtype=torch.int32, device=a["q"].device)},
     r"'row_requests': .*\(rows of q\)"),
    ("requests of 2 dimensions", lambda a: {"row_requests": torch.zeros(2, 1, dtype=torch.int32,
                                                                        device=a["q"].device)},
     r"'row_requests': got shape \[2, 1\], want \[rows\]"),
    ("out of float32", to("out", torch.float32), r"'out': got torch.float32, want torch.float16"),
    ("out of 2 dimensions", reshape("out", 8, 64), r"'out': got shape \[8, 64\], want \[rows, Hq, D\]"),
    ("out of other rows", reshape("out", 3, 4, 64), r"'out': .*\(shape of q\)"),
    ("out of other heads", reshape("out", 2, 6, 64), r"'out': .*\(shape of q\)"),
    ("out of other D", reshape("out", 2, 4, 128), r"'out': .*\(shape of q\)"),
    ("expanded out", expanded("out"), r"'out': got strides .* memory of their own"),
    ("out with D not innermost", transposed_last("out"), r"'out': got strides"),
    ("out on the CPU", on_cpu("out"), r"'out': got a tensor on cpu"),
    ("lse of float16", to("lse", torch.float16), r"'lse': got torch.float16, want torch.float32"),
    ("lse of float64", to("lse", torch.float64), r"'lse': got torch.float64, want torch.float32"),
    ("lse of 1 dimension", reshape("lse", 8), r"'lse': got shape \[8\], want \[rows, Hq\]"),
    ("lse of other rows", reshape("lse", 3, 4), r"'lse': .*\(rows of q\)"),
    ("lse of other heads", reshape("lse", 2, 2), r"'lse': .*\(query heads of q\)"),
    ("expanded lse", expanded("lse"), r"'lse': got strides .* memory of their own"),
    ("zero k_scale", value(k_scale=0.0), r"'k_scale': got 0"),
    ("negative v_scale", value(v_scale=-1.0), r"'v_scale': got -1"),
    ("infinite k_scale", value(k_scale=math.inf), r"'k_scale': got inf"),
    ("scale that is NaN", value(v_scale=math.nan), r"'v_scale': got -?nan"),
    ("scale beyond FP32", value(k_scale=1e39), r"'k_scale': got"),
    ("scale of text", value(k_scale="1"), r"'k_scale': got str, want a number or a one-element"),
    ("scales of two heads", lambda a: {"k_scale": torch.ones(2, device=a["q"].device)},
     r"'k_scale': got a tensor of 2 elements, want one element"),
    ("scale of float64", lambda a: {"v_scale": torch.ones(1, dtype=torch.float64, device=a["q"].device)},
     r"'v_scale': got torch.float64, want torch.float32"),
    ("scale on the CPU", on_cpu("k_scale"), r"'k_scale': got a tensor on cpu"),
    ("zero softmax_scale", value(softmax_scale=0.0), r"'softmax_scale': got 0"),
    ("negative softmax_scale", value(softmax_scale=-0.5), r"'softmax_scale': got -0.5"),
    ("softmax_scale that is NaN", value(softmax_scale=math.nan), r"'softmax_scale': got -?nan"),
    ("infinite softmax_scale", value(softmax_scale=math.inf), r"'softmax_scale': got inf"),
]  # fmt: skip

#: Where the two forms speak differently: the plan has shapes of its own.
PLANNED: list[tuple[str, Change, str]] = [
    ("q of other rows", reshape("q", 3, 4, 64), r"'q': got shape \[3, 4, 64\], want \[2, 4, 64\], as planned"),
    ("q of other heads", reshape("q", 2, 2, 64), r"'q': got shape \[2, 2, 64\], want \[2, 4, 64\], as planned"),
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': .*want \[pages, page, 2, 64\], as plan"),
    ("other KV heads", caches(shape=(4, 16, 1, 64)), r"'key_cache': .*want \[pages, page, 2, 64\], as planned"),
    ("a longer table", reshape("block_table", 2, 3), r"'block_table': .*for at most 32 tokens, as planned"),
    ("larger pages", caches(shape=(4, 32, 2, 64)), r"'block_table': .*for at most 32 tokens, as planned"),
    ("table of 1 dimension", reshape("block_table", 2), r"'block_table': got shape \[2\].*as planned"),
    ("workspace that is small", lambda a: {"workspace": torch.zeros(63, dtype=torch.uint8, device=a["q"].device)},
     r"'workspace': got 63 bytes, want \d+ bytes at least\. Ask the plan: workspace_bytes"),
    ("workspace of float32", lambda a: {"workspace": torch.zeros(1 << 20, device=a["q"].device)},
     r"'workspace': got torch.float32, want torch.uint8"),
    ("workspace of 2 dimensions", lambda a: {"workspace": torch.zeros(1 << 10, 1 << 10, dtype=torch.uint8,
                                                                      device=a["q"].device)},
     r"'workspace': got shape \[1024, 1024\], want \[bytes\]"),
    ("workspace off its alignment", lambda a: {"workspace": torch.zeros(1 << 20, dtype=torch.uint8,
                                                                        device=a["q"].device)[8:]},
     r"'workspace': got an address that is not a multiple of 16, want 16-byte alignment"),
    ("workspace with gaps", lambda a: {"workspace": torch.zeros(1 << 20, dtype=torch.uint8,
                                                                device=a["q"].device)[::2]},
     r"'workspace': got strides"),
    ("workspace on the CPU", lambda a: on_cpu("workspace")({**a, "workspace": torch.zeros(1 << 20, dtype=torch.uint8,
                                                                                        device=a["q"].device)}),
     r"'workspace': got a tensor on cpu"),
]  # fmt: skip

FUNCTIONAL: list[tuple[str, Change, str]] = [
    ("q of 2 dimensions", reshape("q", 2, 64), r"'q': got shape \[2, 64\], want \[rows, Hq, D\]"),
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': got shape \[4, 16, 64\], want \[pages"),
    ("table of 1 dimension", reshape("block_table", 2), r"'block_table': got shape \[2\], want \[requests, max_bl"),
    ("uint8 without a format", value(kv_format=None), r"'kv_format': got None.*want one of \['e4m3', 'e5m2', 'fp16'"),
    ("unknown format", value(kv_format="int8"), r"'kv_format': got 'int8', want one of"),
    ("FP16 as E4M3", caches(dtype=torch.float16), r"'key_cache': got torch.float16, want torch.float8_e4m3fn or"),
    ("unknown variant", value(variant="fast"), r"'variant': got 'fast', want one of \['xqa', 'scalar'\]"),
    ("heads that no group divides", reshape("q", 2, 5, 64), r"'query_heads': got 5, want 1 to 16 times kv_heads=2"),
    ("a group of 17", reshape("q", 2, 34, 64), r"'query_heads': got 34, want 1 to 16 times kv_heads=2"),
    ("a head dimension of 96", lambda a: {**reshape("q", 2, 4, 96)(a), **caches(shape=(4, 16, 2, 96))(a)},
     r"'head_dim': got 96, want one of \[64, 128, 256\]\. No kernel is built for others"),
]  # fmt: skip


def arguments(device: torch.device) -> dict[str, Any]:
    return {
        "q": torch.ones(2, 4, 64, dtype=torch.float16, device=device),
        "key_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "value_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "block_table": torch.zeros(2, 2, dtype=torch.int32, device=device),
        "seq_lens": torch.full((2,), 20, dtype=torch.int32, device=device),
        "out": torch.ones(2, 4, 64, dtype=torch.float16, device=device),
        "lse": torch.ones(2, 4, device=device),
    }


def check_refused(call: Any, named: dict[str, Any], change: Change, message: str) -> None:
    """The sentence, its remedy, no launch and nothing written."""
    named |= change(named)
    written = [named[name] for name in ("out", "lse", "workspace") if isinstance(named.get(name), Tensor)]
    before = [tensor.clone() for tensor in written]
    counts = decode.library.launch_counts()
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        call(**named)
    text = str(caught.value)
    assert re.search(message, text), text
    assert re.search(r"want .+\. [A-Z].+", text), f"no remedy in: {text}"
    assert decode.library.launch_counts() == counts
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(written, before, strict=True))


def plan_of(named: dict[str, Any], **changes: Any) -> decode.DecodePlan:
    shape = {"rows": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "max_tokens": 32, "kv_format": "e4m3"}
    return decode.plan(**{**shape, "device": named["q"].device, **changes})


RUN_AND_PLANNED = [*RUN, *PLANNED]
RUN_AND_FUNCTIONAL = [*RUN, *FUNCTIONAL]


@pytest.mark.parametrize("change,message", [c[1:] for c in RUN_AND_PLANNED], ids=[c[0] for c in RUN_AND_PLANNED])
def test_run_refuses(device: torch.device, change: Change, message: str) -> None:
    named = arguments(device)
    check_refused(plan_of(named).run, named, change, message)


@pytest.mark.parametrize("change,message", [c[1:] for c in RUN_AND_FUNCTIONAL], ids=[c[0] for c in RUN_AND_FUNCTIONAL])
def test_decode_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(decode.decode, {**arguments(device), "kv_format": "e4m3"}, change, message)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cpu_tensors_are_refused_with_a_remedy(variant: str) -> None:
    named = {**arguments(torch.device("cpu")), "kv_format": "e4m3", "variant": variant}
    want = r"'q': got a tensor on the CPU, want a tensor on a CUDA device\. .*emulator.enabled\(\):' or SM70"
    check_refused(decode.decode, named, value(), want)


PLANS: list[tuple[str, dict[str, Any], str]] = [
    ("a variant", {"variant": "fast"}, r"'variant': got 'fast', want one of \['xqa', 'scalar'\]"),
    ("a format", {"kv_format": "int4"}, r"'kv_format': got 'int4', want one of \['e4m3', 'e5m2', 'fp16', 'fp8'"),
    ("a head dimension", {"head_dim": 80}, r"'head_dim': got 80, want one of \[64, 128, 256\]"),
    ("a head dimension of text", {"head_dim": "64"}, r"'head_dim': got '64', want one of \[64, 128, 256\]"),
    ("a group of 17", {"query_heads": 34}, r"'query_heads': got 34, want 1 to 16 times kv_heads=2"),
    ("half a group", {"query_heads": 3}, r"'query_heads': got 3, want 1 to 16 times kv_heads=2"),
    ("fewer query heads", {"query_heads": 1}, r"'query_heads': got 1, want 1 to 16 times kv_heads=2"),
    ("no query heads", {"query_heads": 0}, r"'query_heads': got 0, want a whole number from 1"),
    ("no KV heads", {"kv_heads": 0}, r"'kv_heads': got 0, want a whole number from 1"),
    ("negative rows", {"rows": -1}, r"'rows': got -1, want a whole number from 0 to 1048576"),
    ("too many rows", {"rows": 2**20 + 1}, r"'rows': got 1048577, want a whole number from 0 to 1048576"),
    ("rows of float", {"rows": 2.0}, r"'rows': got 2.0, want a whole number"),
    ("no tokens", {"max_tokens": 0}, r"'max_tokens': got 0, want a whole number from 1"),
    ("tokens beyond 31 bits", {"max_tokens": 2**31}, r"'max_tokens': got 2147483648, want a whole number"),
    ("a device", {"device": "meta"}, r"'device': got 'meta', want a CUDA device, or cpu"),
]


@pytest.mark.parametrize("changes,message", [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_plan_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        plan_of(arguments(torch.device("cpu")), **changes)
    assert re.search(r"want .+\. [A-Z].+", str(caught.value)), f"no remedy in: {caught.value}"


def test_a_plan_of_another_device_is_refused(cuda_device: torch.device) -> None:
    named = arguments(cuda_device)
    check_refused(plan_of(named, device="cpu").run, named, value(), r"'q': got a tensor on cuda.*want one on cpu")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_workspace_is_large_enough_to_the_byte(device: torch.device, variant: str) -> None:
    case = make_case([3000, 100], head_dim=64, kv_heads=2, device=device)
    size = case.plan(variant).workspace_bytes
    memory = torch.zeros(size + 64, dtype=torch.uint8, device=device)
    case.run(variant, workspace=memory[16 : 16 + size])
    assert not memory[:16].any() and not memory[16 + size :].any()
    with pytest.raises(RuntimeError, match=f"'workspace': got {size - 1} bytes, want {size} bytes at least"):
        case.run(variant, workspace=memory[: size - 1])


def workspace_bytes(rows: int, group: int, head_dim: int, tokens: int, variant: str = "xqa") -> int:
    return decode.plan(
        rows=rows, query_heads=group, kv_heads=1, head_dim=head_dim, max_tokens=tokens, kv_format="e4m3",
        variant=variant, device="cpu",
    ).workspace_bytes  # fmt: skip


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32])
def test_the_workspace_of_32_rows_is_at_most_32_mib(rows: int, variant: str) -> None:
    for tokens in (1, 8 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 16 << 20, 64 << 20, 2**31 - 1):
        assert workspace_bytes(rows, 6, 256, tokens, variant) <= 32 * MIB


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("group", [6, 16])
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_any_width_of_the_table_can_be_launched(device: torch.device, head_dim: int, group: int, variant: str) -> None:
    """A block's shared memory grows with the units that the workspace's size asks for, and ends at a V100's 96 KB."""
    for rows, tokens in ((32, 256 << 10), (4, 4 << 20), (1, 64 << 20)):
        case = make_case([1] * rows, page=48, group=group, head_dim=head_dim, device=device)
        table = torch.full((rows, tokens // 48), -1, dtype=torch.int32, device=device)
        table[:, 0] = case.block_table[:, 0]
        wide = case.but(block_table=table).run(variant)
        assert torch.equal(wide.out, case.run(variant).out), f"{rows} rows, {tokens} tokens"


def test_the_workspace_follows_from_shapes_and_multiprocessors_alone() -> None:
    """Not from lengths, formats or the cache: a graph is captured with the same one that it is replayed with."""
    sizes = {}
    for multiprocessors in (72, 80):
        with emulator.enabled(multiprocessors=multiprocessors):
            sizes[multiprocessors] = workspace_bytes(1, 6, 256, 256 << 10)
            for kv_format in ("e4m3", "e5m2", "fp16"):
                planned = decode.plan(
                    rows=1, query_heads=6, kv_heads=1, head_dim=256, max_tokens=256 << 10, kv_format=kv_format,
                    device="cpu",
                )  # fmt: skip
                assert planned.workspace_bytes == sizes[multiprocessors]
    assert 0 < sizes[72] <= sizes[80]


@pytest.mark.parametrize("name", ["key_cache", "block_table", "seq_lens", "out"])
def test_a_meta_tensor_among_real_ones_is_refused(name: str) -> None:
    """torch takes the fake implementation then, and the output would stay unwritten."""
    case = make_case([5], page=16, head_dim=64, device=torch.device("cpu"))
    planned = decode.plan(
        rows=1, query_heads=case.q.shape[1], kv_heads=case.key_cache.shape[2], head_dim=64, kv_format=case.kv_format,
        max_tokens=case.block_table.shape[1] * 16, device="cpu",
    )  # fmt: skip
    tensors = {
        "q": case.q, "key_cache": case.key_cache, "value_cache": case.value_cache, "block_table": case.block_table,
        "seq_lens": case.seq_lens, "out": torch.empty_like(case.q),
    }  # fmt: skip
    tensors[name] = tensors[name].to("meta")
    with emulator.enabled(), pytest.raises(RuntimeError, match="some on the device meta and some on cpu"):
        planned.run(**tensors)
