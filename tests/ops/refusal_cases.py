"""Refusals: changes of a call's arguments, the sentences that several operators share, and how they are checked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.lab import emulator

#: What a case puts in the place of arguments, given all of them.
Change = Callable[[dict[str, Any]], dict[str, Any]]
#: A name, the change, and a pattern of the sentence.
Refusal = tuple[str, Change, str]
#: A name, the changed arguments of a plan, and a pattern of the sentence.
PlanRefusal = tuple[str, dict[str, Any], str]

CPU_REFUSED = r"got a tensor on the CPU, want a tensor on a CUDA device\. .*emulator.enabled\(\):' or SM70"


def device_of(arguments: dict[str, Any]) -> torch.device:
    """The device of a call: of Q, or of the cache where there is no Q."""
    device = (arguments["q"] if "q" in arguments else arguments["key_cache"]).device
    assert isinstance(device, torch.device)
    return device


def to(name: str, dtype: torch.dtype) -> Change:
    """The argument in another dtype."""
    return lambda a: {name: a[name].to(dtype)}


def zeros(name: str, *shape: int, dtype: torch.dtype = torch.float16) -> Change:
    """Zeros of any shape and dtype in the argument's place."""
    return lambda a: {name: torch.zeros(shape, dtype=dtype, device=device_of(a))}


def reshape(name: str, *shape: int) -> Change:
    """Zeros of another shape and the argument's own dtype."""
    return lambda a: {name: torch.zeros(shape, dtype=a[name].dtype, device=a[name].device)}


def value(**changes: Any) -> Change:
    """These values, whatever the arguments were."""
    return lambda a: changes


def on_cpu(name: str) -> Change:
    """The argument, or a new scale, on another device than the rest."""
    return lambda a: {name: a[name].cpu() if name in a else torch.ones(1)}


def expanded(name: str) -> Change:
    """The argument's first element along its first dimension, for all of them."""
    return lambda a: {name: a[name][:1].expand(a[name].shape)}


def transposed_last(name: str) -> Change:
    """The argument with its last dimension not innermost."""
    return lambda a: {name: a[name].transpose(-1, -2).contiguous().transpose(-1, -2)}


def spread(name: str, elements: int) -> Change:
    """The argument as a view of every ``elements``-th element of its rows."""
    return lambda a: {name: a[name].repeat_interleave(elements, dim=-1)[..., ::elements]}


def caches(*shape: int, dtype: torch.dtype = torch.uint8) -> Change:
    """Other caches of one shape."""
    wanted = shape or (4, 16, 2, 64)
    return lambda a: {n: torch.zeros(wanted, dtype=dtype, device=a[n].device) for n in ("key_cache", "value_cache")}


#: Of every operator with caches ``[4, 16, 2, 64]`` of bytes that are taken for E4M3.
CACHES: list[Refusal] = [
    ("cache of int32", to("key_cache", torch.int32), r"'key_cache': got torch.int32, want torch.float8_e4m3fn or"),
    ("cache of other float8", to("key_cache", torch.float8_e5m2), r"'key_cache': got torch.float8_e5m2, want"),
    ("mixed caches", to("value_cache", torch.float8_e4m3fn), r"'value_cache': got torch.float8_e4m3fn, want"),
    ("caches of two shapes", reshape("value_cache", 5, 16, 2, 64), r"'value_cache': .* \(pages of key_cache\)"),
    ("caches of two head dims", reshape("value_cache", 4, 16, 2, 32), r"'value_cache': .*head dimension of key_cache"),
    ("page of 0", caches(4, 0, 2, 64), r"'key_cache': got a page of 0 tokens, want a multiple of 16"),
    ("cache with D not innermost", transposed_last("key_cache"), r"'key_cache': got strides .* want stride 1"),
    ("scale of text", value(k_scale="1"), r"'k_scale': got str, want a number or a one-element"),
    ("scale on the CPU", on_cpu("k_scale"), r"'k_scale': got a tensor on cpu"),
    ("scales of two heads", zeros("k_scale", 2, dtype=torch.float32),
     r"'k_scale': got a tensor of 2 elements, want one element"),
    ("scale of float64", zeros("v_scale", 1, dtype=torch.float64), r"'v_scale': got torch.float64, want torch.float32"),
]  # fmt: skip

#: Of every attention operator, whatever the shapes of its arguments.
ATTENTION: list[Refusal] = [
    ("q that is None", value(q=None), r"'q': got NoneType, want a torch.Tensor"),
    ("q of float32", to("q", torch.float32), r"'q': got torch.float32, want torch.float16"),
    ("q of bfloat16", to("q", torch.bfloat16), r"'q': got torch.bfloat16, want torch.float16"),
    ("q with D not innermost", transposed_last("q"), r"'q': got strides"),
    ("out of float32", to("out", torch.float32), r"'out': got torch.float32, want torch.float16"),
    ("expanded out", expanded("out"), r"'out': got strides .* memory of their own"),
    ("out with D not innermost", transposed_last("out"), r"'out': got strides"),
    ("out on the CPU", on_cpu("out"), r"'out': got a tensor on cpu"),
    ("lse of float16", to("lse", torch.float16), r"'lse': got torch.float16, want torch.float32"),
    ("lse of float64", to("lse", torch.float64), r"'lse': got torch.float64, want torch.float32"),
    ("expanded lse", expanded("lse"), r"'lse': got strides .* memory of their own"),
    ("zero softmax_scale", value(softmax_scale=0.0), r"'softmax_scale': got 0"),
    ("negative softmax_scale", value(softmax_scale=-0.5), r"'softmax_scale': got -0.5"),
    ("softmax_scale that is NaN", value(softmax_scale=math.nan), r"'softmax_scale': got -?nan"),
    ("infinite softmax_scale", value(softmax_scale=math.inf), r"'softmax_scale': got inf"),
]

#: Of decode and verify: a paged cache, Q of 4 heads over 2 KV heads of 64, a table of 2 requests with 2 pages each.
PAGED: list[Refusal] = [
    *ATTENTION,
    *CACHES,
    ("cache that is a list", value(key_cache=[0]), r"'key_cache': got list, want a torch.Tensor"),
    ("table that is a list", value(block_table=[[0]]), r"'block_table': got list, want a torch.Tensor"),
    ("value cache of 3 dimensions", reshape("value_cache", 4, 16, 64), r"'value_cache': got shape \[4, 16, 64\], want"),
    ("caches of two pages", reshape("value_cache", 4, 32, 2, 64), r"'value_cache': .* \(page size of key_cache\)"),
    ("other D than q", caches(4, 16, 2, 128), r"'q': .*64.*128.*head dimension of key_cache"),
    ("page of 8", caches(4, 8, 2, 64), r"'key_cache': got a page of 8 tokens, want a multiple of 16"),
    ("table of int64", to("block_table", torch.int64), r"'block_table': got torch.int64, want torch.int32"),
    ("table with entries apart", spread("block_table", 2), r"'block_table': got strides"),
    ("lengths of int64", to("seq_lens", torch.int64), r"'seq_lens': got torch.int64, want torch.int32"),
    ("lengths on the CPU", on_cpu("seq_lens"), r"'seq_lens': got a tensor on cpu"),
    ("zero k_scale", value(k_scale=0.0), r"'k_scale': got 0"),
    ("negative v_scale", value(v_scale=-1.0), r"'v_scale': got -1"),
    ("infinite k_scale", value(k_scale=math.inf), r"'k_scale': got inf"),
    ("infinite v_scale", value(v_scale=math.inf), r"'v_scale': got inf"),
    ("scale that is NaN", value(v_scale=math.nan), r"'v_scale': got -?nan"),
    ("scale beyond FP32", value(k_scale=1e39), r"'k_scale': got"),
]

#: Of a plan's run, which may be given a workspace.
WORKSPACE: list[Refusal] = [
    ("workspace that is small", zeros("workspace", 63, dtype=torch.uint8),
     r"'workspace': got 63 bytes, want \d+ bytes at least\. Ask the plan: workspace_bytes"),
    ("workspace of float32", zeros("workspace", 1 << 20, dtype=torch.float32),
     r"'workspace': got torch.float32, want torch.uint8"),
    ("workspace of 2 dimensions", zeros("workspace", 1 << 10, 1 << 10, dtype=torch.uint8),
     r"'workspace': got shape \[1024, 1024\], want \[bytes\]"),
    ("workspace off its alignment",
     lambda a: {"workspace": torch.zeros(1 << 20, dtype=torch.uint8, device=device_of(a))[8:]},
     r"'workspace': got an address that is not a multiple of 16, want 16-byte alignment"),
]  # fmt: skip

#: Of the runs of decode's and verify's plans, which have shapes of their own.
PAGED_PLANNED: list[Refusal] = [
    *WORKSPACE,
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': .*want \[pages, page, 2, 64\], as plan"),
    ("other KV heads", caches(4, 16, 1, 64), r"'key_cache': .*want \[pages, page, 2, 64\], as planned"),
    ("a longer table", reshape("block_table", 2, 3), r"'block_table': .*for at most 32 tokens, as planned"),
    ("larger pages", caches(4, 32, 2, 64), r"'block_table': .*for at most 32 tokens, as planned"),
    ("table of 1 dimension", reshape("block_table", 2), r"'block_table': got shape \[2\].*as planned"),
    ("workspace with gaps", lambda a: {"workspace": torch.zeros(1 << 20, dtype=torch.uint8, device=device_of(a))[::2]},
     r"'workspace': got strides"),
    ("workspace on the CPU", value(workspace=torch.zeros(1 << 20, dtype=torch.uint8)),
     r"'workspace': got a tensor on cpu"),
]  # fmt: skip

#: Of ``decode()`` and ``verify()``, which make a plan of what they are given.
PAGED_FUNCTIONAL: list[Refusal] = [
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': got shape \[4, 16, 64\], want \[pages"),
    ("uint8 without a format", value(kv_format=None), r"'kv_format': got None.*want one of \['e4m3', 'e5m2', 'fp16'"),
    ("unknown format", value(kv_format="int8"), r"'kv_format': got 'int8', want one of"),
]

#: Of every plan of 4 query heads over 2 KV heads of 64.
PLANS: list[PlanRefusal] = [
    ("a head dimension", {"head_dim": 80}, r"'head_dim': got 80, want one of \[64, 128, 256\]"),
    ("a head dimension of text", {"head_dim": "64"}, r"'head_dim': got '64', want one of \[64, 128, 256\]"),
    ("a group of 17", {"query_heads": 34}, r"'query_heads': got 34, want 1 to 16 times kv_heads=2"),
    ("half a group", {"query_heads": 3}, r"'query_heads': got 3, want 1 to 16 times kv_heads=2"),
    ("fewer query heads", {"query_heads": 1}, r"'query_heads': got 1, want 1 to 16 times kv_heads=2"),
    ("no query heads", {"query_heads": 0}, r"'query_heads': got 0, want a whole number from 1"),
    ("no KV heads", {"kv_heads": 0}, r"'kv_heads': got 0, want a whole number from 1"),
    ("a device", {"device": "meta"}, r"'device': got 'meta', want a CUDA device, or cpu"),
]

#: Of the plans over a paged cache.
PAGED_PLANS: list[PlanRefusal] = [
    *PLANS,
    ("a format", {"kv_format": "int4"}, r"'kv_format': got 'int4', want one of \['e4m3', 'e5m2', 'fp16', 'fp8', 'fp8_"),
    ("vLLM's auto", {"kv_format": "auto"}, r"'kv_format': got 'auto', want one of"),
    ("no tokens", {"max_tokens": 0}, r"'max_tokens': got 0, want a whole number from 1"),
    ("tokens beyond 31 bits", {"max_tokens": 2**31}, r"'max_tokens': got 2147483648, want a whole number"),
]


def each(refusals: Sequence[Refusal]) -> pytest.MarkDecorator:
    """A test per refusal."""
    return pytest.mark.parametrize("change,message", [r[1:] for r in refusals], ids=[r[0] for r in refusals])


def each_plan(refusals: Sequence[PlanRefusal]) -> pytest.MarkDecorator:
    """A test per refusal of a plan."""
    return pytest.mark.parametrize("changes,message", [r[1:] for r in refusals], ids=[r[0] for r in refusals])


def require_sentence(text: str, message: str) -> None:
    """The sentence says what it should, and ends with a remedy."""
    assert re.search(message, text), text
    assert re.search(r"want .+\. [A-Z].+", text), f"no remedy in: {text}"


def check_refused(
    call: Callable[..., object], arguments: dict[str, Any], change: Change, message: str,
    written: Sequence[str] = ("out", "lse", "workspace"),
) -> None:  # fmt: skip
    """The sentence, its remedy, no launch of any operator, and nothing written."""
    if "a tensor on cpu" in message and device_of(arguments).type == "cpu":
        pytest.skip("needs a CUDA device: two devices, and the emulated V100 is the CPU")
    arguments = arguments | change(arguments)
    outputs = [arguments[name] for name in written if isinstance(arguments.get(name), Tensor)]
    before = [tensor.clone() for tensor in outputs]
    counts = {name: library.launch_counts() for name, library in _native.loaded().items()}
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        call(**arguments)
    require_sentence(str(caught.value), message)
    assert {name: library.launch_counts() for name, library in _native.loaded().items()} == counts
    for tensor, copy in zip(outputs, before, strict=True):
        # Bytes where they can be had: a cache may hold NaN.
        same = (t.contiguous().view(torch.uint8) if t.dim() else t for t in (tensor, copy))
        assert torch.equal(*same)


def check_plan_refused(plan: Callable[..., object], changes: dict[str, Any], message: str) -> None:
    """The sentence and its remedy."""
    with pytest.raises(ValueError, match=message) as caught:
        plan(**changes)
    require_sentence(str(caught.value), message)


def check_mixed_meta_refused(call: Callable[..., object], arguments: dict[str, Any], name: str) -> None:
    """A meta tensor among real ones: torch takes the fake implementation, and the output would stay unwritten."""
    arguments = arguments | {name: arguments[name].to("meta")}
    with emulator.enabled(), pytest.raises(RuntimeError, match="some on the device meta and some on cpu"):
        call(**arguments)


def check_workspace_size(run: Callable[..., object], size: int, device: torch.device) -> None:
    """``run(workspace=...)`` writes no byte outside ``size`` bytes, and is refused with one byte less."""
    memory = torch.zeros(size + 64, dtype=torch.uint8, device=device)
    run(workspace=memory[16 : 16 + size])
    assert not memory[:16].any() and not memory[16 + size :].any()
    with pytest.raises(RuntimeError, match=f"'workspace': got {size - 1} bytes, want {size} bytes at least"):
        run(workspace=memory[: size - 1])
