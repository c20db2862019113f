"""Every refusal of prefill: a sentence that names the argument, and nothing launched or written."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sm70_kernels.ops import prefill
from tests.ops import refusal_cases
from tests.ops.refusal_cases import (
    CPU_REFUSED,
    Change,
    PlanRefusal,
    Refusal,
    check_mixed_meta_refused,
    check_plan_refused,
    check_refused,
    each,
    each_plan,
    on_cpu,
    reshape,
    to,
    transposed_last,
    value,
    zeros,
)


def both(*shape: int) -> Change:
    """K and V of another shape."""
    return lambda a: {name: torch.zeros(shape, dtype=torch.float16, device=a["q"].device) for name in ("k", "v")}


def ragged(**changes: Any) -> Change:
    """The call as a ragged batch of two, apart from these."""

    def change(a: dict[str, Any]) -> dict[str, Any]:
        offsets = torch.tensor([0, 2, 4], dtype=torch.int32, device=a["q"].device)
        named = {"cu_seqlens_q": offsets, "cu_seqlens_k": 2 * offsets}
        return {**named, **{name: make(a) if callable(make) else make for name, make in changes.items()}}

    return change


def offsets(*shape: int, dtype: torch.dtype = torch.int32) -> Any:
    return lambda a: torch.zeros(shape, dtype=dtype, device=a["q"].device)


#: Refusals that the plan's run and the functional form share.
RUN: list[Refusal] = [
    *refusal_cases.ATTENTION,
    *refusal_cases.WORKSPACE,
    ("k that is a list", value(k=[0]), r"'k': got list, want a torch.Tensor"),
    ("v that is a list", value(v=[0]), r"'v': got list, want a torch.Tensor"),
    ("out that is a list", value(out=[0]), r"'out': got list, want a torch.Tensor"),
    ("lse that is a list", value(lse=[0]), r"'lse': got list, want a torch.Tensor"),
    ("workspace that is a list", value(workspace=[0]), r"'workspace': got list, want a torch.Tensor"),
    ("causal that is None", value(causal=None), r"'causal': got None, want True or False"),
    ("causal that is a number", value(causal=1), r"'causal': got 1, want True or False"),
    ("q of 2 dimensions", reshape("q", 16, 64), r"'q': got shape \[16, 64\], want \[1, tokens, Hq, D\] or \[tokens"),
    ("q of two batches", reshape("q", 2, 4, 4, 64), r"'q': got shape \[2, 4, 4, 64\], want \[1, tokens, Hq, D\] or"),
    ("k of 2 dimensions", reshape("k", 8, 64), r"'k': got shape \[8, 64\], want \[1, tokens, Hkv, D\] or"),
    ("v of 2 dimensions", reshape("v", 8, 64), r"'v': got shape \[8, 64\], want \[1, tokens, Hkv, D\] or"),
    ("k of float32", to("k", torch.float32), r"'k': got torch.float32, want torch.float16"),
    ("v of uint8", to("v", torch.uint8), r"'v': got torch.uint8, want torch.float16"),
    ("k with D not innermost", transposed_last("k"), r"'k': got strides"),
    ("v with D not innermost", transposed_last("v"), r"'v': got strides"),
    ("v of other tokens", zeros("v", 9, 2, 64), r"'v': .*\(shape of k\)"),
    ("v of other heads", zeros("v", 8, 1, 64), r"'v': .*\(shape of k\)"),
    ("v of other D", zeros("v", 8, 2, 128), r"'v': .*\(shape of k\)"),
    ("k on the CPU", on_cpu("k"), r"'k': got a tensor on cpu"),
    ("lse on the CPU", on_cpu("lse"), r"'lse': got a tensor on cpu"),
    ("out of 2 dimensions", reshape("out", 16, 64), r"'out': got shape \[16, 64\], want"),
    ("out of other tokens", zeros("out", 5, 4, 64), r"'out': .*\(shape of q\)"),
    ("out of other heads", zeros("out", 4, 6, 64), r"'out': .*\(shape of q\)"),
    ("out of other D", zeros("out", 4, 4, 128), r"'out': .*\(shape of q\)"),
    ("lse of 1 dimension", reshape("lse", 16), r"'lse': got shape \[16\], want \[1, tokens, Hq\] or"),
    ("lse of other tokens", zeros("lse", 5, 4, dtype=torch.float32), r"'lse': .*\(tokens of q\)"),
    ("lse of other heads", zeros("lse", 4, 6, dtype=torch.float32), r"'lse': .*\(query heads of q\)"),
    ("softmax_scale beyond FP32", value(softmax_scale=1e39), r"'softmax_scale': got"),
]  # fmt: skip

#: Where the two forms speak differently: the plan has shapes of its own.
PLANNED: list[Refusal] = [
    ("q of other tokens", zeros("q", 5, 4, 64), r"'q': got shape \[5, 4, 64\], want \[4, 4, 64\], as planned"),
    ("q of other heads", zeros("q", 4, 2, 64), r"'q': got shape \[4, 2, 64\], want \[4, 4, 64\], as planned"),
    ("k of other tokens", both(9, 2, 64), r"'k': got shape \[9, 2, 64\], want \[8, 2, 64\], as planned"),
    ("k of other heads", both(8, 4, 64), r"'k': got shape \[8, 4, 64\], want \[8, 2, 64\], as planned"),
    ("k of other D", both(8, 2, 128), r"'k': got shape \[8, 2, 128\], want \[8, 2, 64\], as planned"),
    (
        "offsets that are not planned",
        ragged(),
        r"'cu_seqlens_q': got a tensor, want None, as planned with sequences=None",
    ),
]

FUNCTIONAL: list[Refusal] = [
    ("other D than q", both(8, 2, 128), r"'k': .*want \[8, 2, 64\], as planned"),
    ("more queries than keys", both(3, 2, 64), r"'k': got 3 keys, want at least the 4 of q.*or causal=False"),
    ("heads that no group divides", both(8, 3, 64), r"'query_heads': got 4, want 1 to 16 times kv_heads=3"),
    ("a group of 34", lambda a: {**zeros("q", 4, 34, 64)(a), **both(8, 1, 64)(a)}, r"'query_heads': got 34, want 1"),
    ("a head dimension of 96", lambda a: {**zeros("q", 4, 4, 96)(a), **both(8, 2, 96)(a)},
     r"'head_dim': got 96, want one of \[64, 128, 256\]\. No kernel is built for others"),
    ("too many queries", zeros("q", 8193, 4, 64), r"'max_seqlen_q': got 8193, want a whole number from 0 to 8192"),
    ("too many keys", both(262145, 2, 64), r"'max_seqlen_k': got 262145, want a whole number from 0 to 262144"),
    ("max_seqlen_q alone", value(max_seqlen_q=4), r"'max_seqlen_q': got 4, want None without cu_seqlens_q"),
    ("max_seqlen_k alone", value(max_seqlen_k=4), r"'max_seqlen_k': got 4, want None without cu_seqlens_q"),
    ("offsets without max_seqlen_q", ragged(max_seqlen_k=8), r"'max_seqlen_q': got None, want the longest"),
    ("offsets without max_seqlen_k", ragged(max_seqlen_q=4), r"'max_seqlen_k': got None, want the longest"),
    ("cu_seqlens_q alone", ragged(cu_seqlens_k=None, max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_k': got NoneType, want a torch"),
    ("cu_seqlens_k alone", ragged(cu_seqlens_q=None, max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_q': got NoneType, want a torch"),
    ("offsets of int64", ragged(cu_seqlens_q=offsets(3, dtype=torch.int64), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_q': got torch.int64, want torch.int32"),
    ("keys' offsets of int64", ragged(cu_seqlens_k=offsets(3, dtype=torch.int64), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_k': got torch.int64, want torch.int32"),
    ("no offsets", ragged(cu_seqlens_q=offsets(0), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_q': got shape \[0\], want"),
    ("offsets of 2 dimensions", ragged(cu_seqlens_q=offsets(3, 1), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_q': got shape \[3, 1\], want \[sequences \+ 1\]"),
    ("keys' offsets of 2 dimensions", ragged(cu_seqlens_k=offsets(3, 1), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_k': got shape \[3, 1\], want \[sequences \+ 1\]"),
    ("fewer offsets of keys", ragged(cu_seqlens_k=offsets(2), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_k': .*size of cu_seqlens_q"),
    ("offsets apart", ragged(cu_seqlens_k=lambda a: offsets(6)(a)[::2], max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_k': got stri"),
    ("offsets on the CPU",
     ragged(cu_seqlens_k=lambda a: torch.zeros(3, dtype=torch.int32), max_seqlen_q=4, max_seqlen_k=8),
     r"'cu_seqlens_k': got a tensor on cpu"),
    ("negative max_seqlen_k", ragged(max_seqlen_q=4, max_seqlen_k=-1),
     r"'max_seqlen_k': got -1, want a whole number from 0 to 262144"),
    ("a long max_seqlen_q", ragged(max_seqlen_q=8193, max_seqlen_k=8), r"'max_seqlen_q': got 8193, want a whole"),
]  # fmt: skip


def arguments(device: torch.device) -> dict[str, Any]:
    shapes = {"q": (4, 4, 64), "k": (8, 2, 64), "v": (8, 2, 64), "out": (4, 4, 64)}
    named: dict[str, Any] = {
        name: torch.ones(shape, dtype=torch.float16, device=device) for name, shape in shapes.items()
    }
    return {**named, "lse": torch.ones(4, 4, device=device)}


def plan_of(**changes: Any) -> prefill.PrefillPlan:
    shape = {"max_seqlen_q": 4, "max_seqlen_k": 8, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "device": "cpu"}
    return prefill.plan(**{**shape, **changes})


@each([*RUN, *PLANNED])
def test_run_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(plan_of(device=device).run, arguments(device), change, message)


@each([*RUN, *FUNCTIONAL])
def test_prefill_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(prefill.prefill, arguments(device), change, message)


def test_cpu_tensors_are_refused_with_a_remedy() -> None:
    check_refused(prefill.prefill, arguments(torch.device("cpu")), value(), f"'q': {CPU_REFUSED}")


PLANS: list[PlanRefusal] = [
    *refusal_cases.PLANS,
    ("negative queries", {"max_seqlen_q": -1}, r"'max_seqlen_q': got -1, want a whole number from 0 to 8192"),
    ("too many queries", {"max_seqlen_q": 8193}, r"'max_seqlen_q': got 8193, want a whole number from 0 to 8192"),
    ("queries of float", {"max_seqlen_q": 2.0}, r"'max_seqlen_q': got 2.0, want a whole number"),
    ("too many keys", {"max_seqlen_k": 262145}, r"'max_seqlen_k': got 262145, want a whole number from 0 to 262144"),
    ("negative sequences", {"sequences": -1}, r"'sequences': got -1, want a whole number from 0 to 65536"),
    ("too many sequences", {"sequences": 65537}, r"'sequences': got 65537, want a whole number from 0 to 65536"),
    ("too many tiles", {"sequences": 65536, "max_seqlen_q": 8192, "query_heads": 16 * 17, "kv_heads": 17},
     r"'sequences': got 65536, want 1073741824 tiles of rows at most, not 1140850688"),
]  # fmt: skip


@each_plan(PLANS)
def test_plan_refuses(changes: dict[str, Any], message: str) -> None:
    check_plan_refused(plan_of, changes, message)


def test_the_operator_refuses_more_tiles_than_it_can_count(device: torch.device) -> None:
    """Without a plan too: a number past 31 bits would leave everything unwritten."""
    q = torch.ones(1, 16 * 17, 64, dtype=torch.float16, device=device)
    k = torch.ones(1, 17, 64, dtype=torch.float16, device=device)
    offsets = torch.zeros(65537, dtype=torch.int32, device=device)
    workspace = torch.empty(prefill.MAX_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    with pytest.raises(RuntimeError, match=r"'cu_seqlens_q': got 1140850688 tiles .*, want 1073741824 at most\. Pass"):
        torch.ops.sm70_kernels.prefill(q, k, k, q.clone(), workspace, 1.0, True, offsets, offsets, 8192, 8192)


def test_a_plan_of_another_device_is_refused(cuda_device: torch.device) -> None:
    check_refused(plan_of().run, arguments(cuda_device), value(), r"'q': got a tensor on cuda.*want one on cpu")


def test_a_plan_of_sequences_wants_their_offsets(device: torch.device) -> None:
    planned = plan_of(sequences=3, device=device)
    check_refused(
        planned.run, arguments(device), value(), r"'cu_seqlens_q': got None, want a tensor, as planned with se"
    )
    check_refused(planned.run, arguments(device), ragged(), r"'cu_seqlens_q': got shape \[3\], want \[sequences \+ 1\]")


def paged_arguments(device: torch.device) -> dict[str, Any]:
    cache = torch.zeros(4, 16, 2, 64, dtype=torch.uint8, device=device)
    return {
        "q": torch.ones(4, 4, 64, dtype=torch.float16, device=device), "key_cache": cache, "value_cache": cache.clone(),
        "block_table": torch.zeros(1, 2, dtype=torch.int32, device=device), "kv_format": "e4m3", "max_tokens": 32,
        "seq_lens": torch.full((1,), 20, dtype=torch.int32, device=device),
        "out": torch.ones(4, 4, 64, dtype=torch.float16, device=device),
    }  # fmt: skip


PAGED: list[Refusal] = [
    ("q that is None", value(q=None), r"'q': got NoneType, want a torch.Tensor"),
    ("cache of 3 dimensions", reshape("key_cache", 4, 16, 64), r"'key_cache': got shape \[4, 16, 64\], want \[pages"),
    ("lengths of 2 dimensions", reshape("seq_lens", 1, 1), r"'seq_lens': got shape \[1, 1\], want \[B\]"),
    ("no lengths", lambda a: {"seq_lens": a["seq_lens"][:0]}, r"'seq_lens': got no elements, want"),
    ("no room", value(max_tokens=None), r"'gathered': got None, want a workspace, or max_tokens"),
    ("room twice", zeros("gathered", 2, 1, 32, 2, 64), r"'gathered': got it beside max_tokens, want"),
    ("room of another shape", lambda a: {**zeros("gathered", 2, 1, 32, 1, 64)(a), "max_tokens": None},
     r"'gathered': got shape \[2, 1, 32, 1, 64\], want \[2, 1, max_tokens, 2, 64\], contiguous"),
    ("room of float32", lambda a: {**zeros("gathered", 2, 1, 32, 2, 64, dtype=torch.float32)(a), "max_tokens": None},
     r"'k_out': got torch.float32, want torch.float16"),
    ("two sequences without offsets", lambda a: {"seq_lens": a["seq_lens"].repeat(2)},
     r"'cu_seqlens_q': got None, want"),
    ("offsets of other sequences", lambda a: {"cu_seqlens_q": offsets(3)(a), "max_seqlen_q": 4},
     r"'cu_seqlens_q': got shape \[3\], want \[2\]"),
    ("offsets without max_seqlen_q", lambda a: {"cu_seqlens_q": offsets(2)(a)}, r"'max_seqlen_q': got None, want"),
    ("max_seqlen_q alone", value(max_seqlen_q=4), r"'max_seqlen_q': got 4, want"),
    ("tokens below none", value(max_tokens=-1), r"'max_tokens': got -1, want a whole number from 0 on"),
    ("too many tokens", value(max_tokens=262145), r"'max_seqlen_k': got 262145, want a whole number from 0 to 262144"),
    ("uint8 without a format", value(kv_format=None), r"'kv_format': got None.*want one of"),
    ("other D than q", zeros("q", 4, 4, 128), r"'q': got a head dimension of 128, want 64, as in key_cache"),
]  # fmt: skip


@each(PAGED)
def test_prefill_paged_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(prefill.prefill_paged, paged_arguments(device), change, message)


@pytest.mark.parametrize("name", ["k", "v", "out", "lse", "workspace", "cu_seqlens_q"])
def test_a_meta_tensor_among_real_ones_is_refused(name: str) -> None:
    """torch takes the fake implementation then, and the output would stay unwritten."""
    q = torch.zeros(4, 2, 64, dtype=torch.float16)
    arguments: dict[str, Any] = {
        "q": q, "k": torch.zeros(8, 1, 64, dtype=torch.float16), "v": torch.zeros(8, 1, 64, dtype=torch.float16),
        "out": torch.empty_like(q), "lse": torch.empty(4, 2), "workspace": torch.empty(1 << 20, dtype=torch.uint8),
    }  # fmt: skip
    if name == "cu_seqlens_q":
        offsets_of_both = torch.tensor([0, 4], dtype=torch.int32)
        arguments.update(cu_seqlens_q=offsets_of_both, cu_seqlens_k=2 * offsets_of_both, max_seqlen_q=4, max_seqlen_k=8)
    check_mixed_meta_refused(prefill.prefill, arguments, name)
