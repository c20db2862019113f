"""Every refusal of verify: a sentence that names the argument, and nothing launched or written. And its workspace."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.lab import emulator
from sm70_kernels.ops import verify
from tests.ops.test_kv_cache_refusals import Change, expanded, on_cpu, reshape, to, transposed_last, value
from tests.ops.verify_cases import draft, make_case

MIB = 1 << 20


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
    ("table that is a list", value(block_table=[[0]]), r"'block_table': got list, want a torch.Tensor"),
    ("q of float32", to("q", torch.float32), r"'q': got torch.float32, want torch.float16"),
    ("q with D not innermost", transposed_last("q"), r"'q': got strides"),
    ("cache of int32", to("key_cache", torch.int32), r"'key_cache': got torch.int32, want torch.float8_e4m3fn or"),
    ("mixed caches", to("value_cache", torch.float8_e4m3fn), r"'value_cache': got torch.float8_e4m3fn, want"),
    ("caches of two shapes", reshape("value_cache", 5, 16, 2, 64), r"'value_cache': .* \(pages of key_cache\)"),
    ("other D than q", caches(shape=(4, 16, 2, 128)), r"'q': .*64.*128.*head dimension of key_cache"),
    ("page of 8", caches(shape=(4, 8, 2, 64)), r"'key_cache': got a page of 8 tokens, want a multiple of 16"),
    ("cache with D not innermost", transposed_last("key_cache"), r"'key_cache': got strides"),
    ("table of int64", to("block_table", torch.int64), r"'block_table': got torch.int64, want torch.int32"),
    ("table of other requests", reshape("block_table", 3, 2), r"'block_table': .*\(requests of q\)"),
    ("lengths of int64", to("seq_lens", torch.int64), r"'seq_lens': got torch.int64, want torch.int32"),
    ("lengths of 1 dimension", reshape("seq_lens", 6), r"'seq_lens': got shape \[6\], want \[B, q_rows\]"),
    ("lengths of other requests", reshape("seq_lens", 1, 3), r"'seq_lens': .*\(requests of q\)"),
    ("lengths of other rows", reshape("seq_lens", 2, 4), r"'seq_lens': .*\(query rows of q\)"),
    ("lengths on the CPU", on_cpu("seq_lens"), r"'seq_lens': got a tensor on cpu"),
    ("out of float32", to("out", torch.float32), r"'out': got torch.float32, want torch.float16"),
    ("out of 3 dimensions", reshape("out", 6, 4, 64), r"'out': got shape \[6, 4, 64\], want \[B, q_rows, Hq, D\]"),
    ("out of other rows", reshape("out", 2, 2, 4, 64), r"'out': .*\(shape of q\)"),
    ("expanded out", expanded("out"), r"'out': got strides .* memory of their own"),
    ("out with D not innermost", transposed_last("out"), r"'out': got strides"),
    ("out on the CPU", on_cpu("out"), r"'out': got a tensor on cpu"),
    ("lse of float16", to("lse", torch.float16), r"'lse': got torch.float16, want torch.float32"),
    ("lse of 2 dimensions", reshape("lse", 6, 4), r"'lse': got shape \[6, 4\], want \[B, q_rows, Hq\]"),
    ("lse of other heads", reshape("lse", 2, 3, 2), r"'lse': .*\(query heads of q\)"),
    ("expanded lse", expanded("lse"), r"'lse': got strides .* memory of their own"),
    ("zero k_scale", value(k_scale=0.0), r"'k_scale': got 0"),
    ("infinite v_scale", value(v_scale=math.inf), r"'v_scale': got inf"),
    ("scale beyond FP32", value(k_scale=1e39), r"'k_scale': got"),
    ("scale of text", value(k_scale="1"), r"'k_scale': got str, want a number or a one-element"),
    ("scales of two heads", lambda a: {"k_scale": torch.ones(2, device=a["q"].device)},
     r"'k_scale': got a tensor of 2 elements, want one element"),
    ("scale of float64", lambda a: {"v_scale": torch.ones(1, dtype=torch.float64, device=a["q"].device)},
     r"'v_scale': got torch.float64, want torch.float32"),
    ("negative softmax_scale", value(softmax_scale=-0.5), r"'softmax_scale': got -0.5"),
]  # fmt: skip

#: Where the two forms speak differently: the plan has shapes of its own.
PLANNED: list[tuple[str, Change, str]] = [
    ("q of other requests", reshape("q", 3, 3, 4, 64), r"'q': got shape \[3, 3, 4, 64\], want \[2, 3, 4, 64\]"),
    ("q of other rows", reshape("q", 2, 2, 4, 64), r"'q': got shape \[2, 2, 4, 64\], want \[2, 3, 4, 64\], as planned"),
    ("other KV heads", caches(shape=(4, 16, 1, 64)), r"'key_cache': .*want \[pages, page, 2, 64\], as planned"),
    ("a longer table", reshape("block_table", 2, 3), r"'block_table': .*for at most 32 tokens, as planned"),
    ("workspace that is small", lambda a: {"workspace": torch.zeros(63, dtype=torch.uint8, device=a["q"].device)},
     r"'workspace': got 63 bytes, want \d+ bytes at least\. Ask the plan: workspace_bytes"),
    ("workspace off its alignment", lambda a: {"workspace": torch.zeros(1 << 20, dtype=torch.uint8,
                                                                        device=a["q"].device)[8:]},
     r"'workspace': got an address that is not a multiple of 16, want 16-byte alignment"),
]  # fmt: skip

FUNCTIONAL: list[tuple[str, Change, str]] = [
    ("q of 3 dimensions", reshape("q", 6, 4, 64), r"'q': got shape \[6, 4, 64\], want \[B, q_rows, Hq, D\]"),
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': got shape \[4, 16, 64\], want \[pages"),
    ("table of 1 dimension", reshape("block_table", 2), r"'block_table': got shape \[2\], want \[B, max_blocks\]"),
    ("uint8 without a format", value(kv_format=None), r"'kv_format': got None.*want one of \['e4m3', 'e5m2', 'fp16'"),
    ("FP16 caches", lambda a: {**caches(dtype=torch.float16)(a), "kv_format": "fp16"},
     r"'kv_format': got 'fp16', want one of \['e4m3', 'e5m2'\]\. No kernel is built for FP16 caches: decode"),
    ("a group of 17", reshape("q", 2, 3, 34, 64), r"'query_heads': got 34, want 1 to 16 times kv_heads=2"),
    ("17 query rows", lambda a: {**reshape("q", 2, 17, 4, 64)(a), **reshape("seq_lens", 2, 17)(a)},
     r"'q_rows': got 17, want a whole number from 1 to 16"),
    ("a head dimension of 96", lambda a: {**reshape("q", 2, 3, 4, 96)(a), **caches(shape=(4, 16, 2, 96))(a)},
     r"'head_dim': got 96, want one of \[64, 128, 256\]\. No kernel is built for others"),
]  # fmt: skip


def arguments(device: torch.device) -> dict[str, Any]:
    return {
        "q": torch.ones(2, 3, 4, 64, dtype=torch.float16, device=device),
        "key_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "value_cache": torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device),
        "block_table": torch.zeros(2, 2, dtype=torch.int32, device=device),
        "seq_lens": torch.full((2, 3), 20, dtype=torch.int32, device=device),
        "out": torch.ones(2, 3, 4, 64, dtype=torch.float16, device=device),
        "lse": torch.ones(2, 3, 4, device=device),
    }


def check_refused(call: Any, named: dict[str, Any], change: Change, message: str) -> None:
    """The sentence, its remedy, no launch and nothing written."""
    named |= change(named)
    written = [named[name] for name in ("out", "lse", "workspace") if isinstance(named.get(name), Tensor)]
    before = [tensor.clone() for tensor in written]
    counts = verify.library.launch_counts()
    with pytest.raises((RuntimeError, TypeError, ValueError)) as caught:
        call(**named)
    text = str(caught.value)
    assert re.search(message, text), text
    assert re.search(r"want .+\. [A-Z].+", text), f"no remedy in: {text}"
    assert verify.library.launch_counts() == counts
    assert all(torch.equal(tensor, copy) for tensor, copy in zip(written, before, strict=True))


def plan_of(named: dict[str, Any], **changes: Any) -> verify.VerifyPlan:
    shape = {"requests": 2, "q_rows": 3, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "max_tokens": 32}
    return verify.plan(**{**shape, "kv_format": "e4m3", "device": named["q"].device, **changes})


RUN_AND_PLANNED = [*RUN, *PLANNED]
RUN_AND_FUNCTIONAL = [*RUN, *FUNCTIONAL]


@pytest.mark.parametrize("change,message", [c[1:] for c in RUN_AND_PLANNED], ids=[c[0] for c in RUN_AND_PLANNED])
def test_run_refuses(device: torch.device, change: Change, message: str) -> None:
    named = arguments(device)
    check_refused(plan_of(named).run, named, change, message)


@pytest.mark.parametrize("change,message", [c[1:] for c in RUN_AND_FUNCTIONAL], ids=[c[0] for c in RUN_AND_FUNCTIONAL])
def test_verify_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(verify.verify, {**arguments(device), "kv_format": "e4m3"}, change, message)


def test_cpu_tensors_are_refused_with_a_remedy() -> None:
    want = r"'q': got a tensor on the CPU, want a tensor on a CUDA device\. .*emulator.enabled\(\):' or SM70"
    check_refused(verify.verify, {**arguments(torch.device("cpu")), "kv_format": "e4m3"}, value(), want)


PLANS: list[tuple[str, dict[str, Any], str]] = [
    ("a format", {"kv_format": "int4"}, r"'kv_format': got 'int4', want one of \['e4m3', 'e5m2', 'fp16', 'fp8'"),
    ("FP16", {"kv_format": "fp16"}, r"'kv_format': got 'fp16', want one of \['e4m3', 'e5m2'\]"),
    ("a head dimension", {"head_dim": 80}, r"'head_dim': got 80, want one of \[64, 128, 256\]"),
    ("half a group", {"query_heads": 3}, r"'query_heads': got 3, want 1 to 16 times kv_heads=2"),
    ("no KV heads", {"kv_heads": 0}, r"'kv_heads': got 0, want a whole number from 1"),
    ("negative requests", {"requests": -1}, r"'requests': got -1, want a whole number from 0"),
    ("no rows", {"q_rows": 0}, r"'q_rows': got 0, want a whole number from 1 to 16"),
    ("too many rows", {"q_rows": 17}, r"'q_rows': got 17, want a whole number from 1 to 16"),
    ("rows of float", {"q_rows": 2.0}, r"'q_rows': got 2.0, want a whole number"),
    ("too many requests", {"requests": 2**19}, r"'requests': got 524288, want at most 1048576 rows with q_rows=3"),
    ("no tokens", {"max_tokens": 0}, r"'max_tokens': got 0, want a whole number from 1"),
    ("a device", {"device": "meta"}, r"'device': got 'meta', want a CUDA device, or cpu"),
]


@pytest.mark.parametrize("changes,message", [case[1:] for case in PLANS], ids=[case[0] for case in PLANS])
def test_plan_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        plan_of(arguments(torch.device("cpu")), **changes)
    assert re.search(r"want .+\. [A-Z].+", str(caught.value)), f"no remedy in: {caught.value}"


def test_the_operator_itself_refuses_what_no_plan_made(device: torch.device) -> None:
    """Called by its torch name, past the plan."""
    named = arguments(device)
    workspace = torch.zeros(1 << 20, dtype=torch.uint8, device=device)

    def call(q: Tensor, kv_format: str = "e4m3") -> None:
        torch.ops.sm70_kernels.verify(
            q, named["key_cache"], named["value_cache"], named["block_table"], named["seq_lens"], named["out"],
            workspace, kv_format, 0.125,
        )  # fmt: skip

    with pytest.raises(RuntimeError, match="'kv_format': got 'fp16', want 'e4m3' or 'e5m2'"):
        call(named["q"], "fp16")
    with pytest.raises(RuntimeError, match="'q': got 17 query rows a request, want 1 to 16"):
        call(torch.ones(2, 17, 4, 64, dtype=torch.float16, device=device))
    with pytest.raises(RuntimeError, match="'q': got 5 query heads on 2 KV heads, want 1 to 16"):
        call(torch.ones(2, 3, 5, 64, dtype=torch.float16, device=device))


@pytest.mark.parametrize("shape", [(8, 6, 1, 256, 3000), (3, 2, 2, 64, 700), (16, 6, 1, 128, 300)])
def test_the_workspace_is_large_enough_to_the_byte(device: torch.device, shape: tuple[int, ...]) -> None:
    q_rows, group, kv_heads, head_dim, total = shape
    case = make_case([draft(total, q_rows)] * 2, group=group, kv_heads=kv_heads, head_dim=head_dim, device=device)
    size = case.plan().workspace_bytes
    memory = torch.zeros(size + 64, dtype=torch.uint8, device=device)
    case.run(workspace=memory[16 : 16 + size])
    assert not memory[:16].any() and not memory[16 + size :].any()
    with pytest.raises(RuntimeError, match=f"'workspace': got {size - 1} bytes, want {size} bytes at least"):
        case.run(workspace=memory[: size - 1])


def test_the_workspace_of_8_rows_is_at_most_4_mib_whatever_the_table() -> None:
    """80 states of 6.2 KB a row: a function of shapes, not of lengths or the device."""
    for tokens in (1, 128, 8 << 10, 256 << 10, 16 << 20, 2**31 - 1):
        shape = {"requests": 1, "q_rows": 8, "query_heads": 6, "kv_heads": 1, "head_dim": 256, "max_tokens": tokens}
        sizes = {verify.plan(**shape, kv_format=name, device="cpu").workspace_bytes for name in verify.FORMATS}
        assert len(sizes) == 1 and 0 < sizes.pop() <= 4 * MIB


def test_an_older_library_is_refused(tmp_path: Any) -> None:
    """Capability revision: a DSO of another numerical contract or workspace layout does not run silently."""
    original = verify.library.path.read_bytes()
    current = verify.CAPABILITY_REVISION
    mark = b"sm70_kernels capability revision %d\0"
    assert original.count(mark % current) == 1
    stale = tmp_path / "libsm70_stale_verify.so"
    stale.write_bytes(original.replace(mark % current, mark % (current - 1)))
    message = f"capability revision {current - 1}, this Python code wants {current}. Rebuild with"
    with pytest.raises(_native.LibraryError, match=message):
        _native.load("stale_verify", current, stale)
    assert "stale_verify" not in _native.loaded()


@pytest.mark.parametrize("name", ["key_cache", "block_table", "seq_lens", "out"])
def test_a_meta_tensor_among_real_ones_is_refused(name: str) -> None:
    """torch takes the fake implementation then, and the output would stay unwritten."""
    case = make_case([[5, 1]], page=16, head_dim=64, device=torch.device("cpu"))
    tensors = {
        "q": case.q, "key_cache": case.key_cache, "value_cache": case.value_cache, "block_table": case.block_table,
        "seq_lens": case.seq_lens, "out": torch.empty_like(case.q),
    }  # fmt: skip
    tensors[name] = tensors[name].to("meta")
    with emulator.enabled(), pytest.raises(RuntimeError, match="some on the device meta and some on cpu"):
        case.plan().run(**tensors)
