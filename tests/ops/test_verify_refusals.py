"""Every refusal of verify: a sentence that names the argument, and nothing launched or written. And its workspace."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from sm70_kernels import _native
from sm70_kernels.ops import verify
from tests.ops import refusal_cases
from tests.ops.refusal_cases import (
    CPU_REFUSED,
    Change,
    PlanRefusal,
    Refusal,
    caches,
    check_mixed_meta_refused,
    check_plan_refused,
    check_refused,
    check_workspace_size,
    each,
    each_plan,
    reshape,
    value,
)
from tests.ops.verify_cases import draft, make_case

MIB = 1 << 20


#: Refusals that the plan's run and the functional form share.
RUN: list[Refusal] = [
    *refusal_cases.PAGED,
    ("table of other requests", reshape("block_table", 3, 2), r"'block_table': .*\(requests of q\)"),
    ("lengths of 1 dimension", reshape("seq_lens", 6), r"'seq_lens': got shape \[6\], want \[B, q_rows\]"),
    ("lengths of other requests", reshape("seq_lens", 1, 3), r"'seq_lens': .*\(requests of q\)"),
    ("lengths of other rows", reshape("seq_lens", 2, 4), r"'seq_lens': .*\(query rows of q\)"),
    ("out of 3 dimensions", reshape("out", 6, 4, 64), r"'out': got shape \[6, 4, 64\], want \[B, q_rows, Hq, D\]"),
    ("out of other rows", reshape("out", 2, 2, 4, 64), r"'out': .*\(shape of q\)"),
    ("lse of 2 dimensions", reshape("lse", 6, 4), r"'lse': got shape \[6, 4\], want \[B, q_rows, Hq\]"),
    ("lse of other heads", reshape("lse", 2, 3, 2), r"'lse': .*\(query heads of q\)"),
]  # fmt: skip

#: Where the two forms speak differently: the plan has shapes of its own.
PLANNED: list[Refusal] = [
    *refusal_cases.PAGED_PLANNED,
    ("q of other requests", reshape("q", 3, 3, 4, 64), r"'q': got shape \[3, 3, 4, 64\], want \[2, 3, 4, 64\]"),
    ("q of other rows", reshape("q", 2, 2, 4, 64), r"'q': got shape \[2, 2, 4, 64\], want \[2, 3, 4, 64\], as planned"),
]  # fmt: skip

FUNCTIONAL: list[Refusal] = [
    *refusal_cases.PAGED_FUNCTIONAL,
    ("q of 3 dimensions", reshape("q", 6, 4, 64), r"'q': got shape \[6, 4, 64\], want \[B, q_rows, Hq, D\]"),
    ("table of 1 dimension", reshape("block_table", 2), r"'block_table': got shape \[2\], want \[B, max_blocks\]"),
    ("FP16 caches", lambda a: {**caches(dtype=torch.float16)(a), "kv_format": "fp16"},
     r"'kv_format': got 'fp16', want one of \['e4m3', 'e5m2'\]\. No kernel is built for FP16 caches: decode"),
    ("a group of 17", reshape("q", 2, 3, 34, 64), r"'query_heads': got 34, want 1 to 16 times kv_heads=2"),
    ("17 query rows", lambda a: {**reshape("q", 2, 17, 4, 64)(a), **reshape("seq_lens", 2, 17)(a)},
     r"'q_rows': got 17, want a whole number from 1 to 16"),
    ("a head dimension of 96", lambda a: {**reshape("q", 2, 3, 4, 96)(a), **caches(4, 16, 2, 96)(a)},
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


def plan_of(named: dict[str, Any], **changes: Any) -> verify.VerifyPlan:
    shape = {"requests": 2, "q_rows": 3, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "max_tokens": 32}
    return verify.plan(**{**shape, "kv_format": "e4m3", "device": named["q"].device, **changes})


@each([*RUN, *PLANNED])
def test_run_refuses(device: torch.device, change: Change, message: str) -> None:
    named = arguments(device)
    check_refused(plan_of(named).run, named, change, message)


@each([*RUN, *FUNCTIONAL])
def test_verify_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(verify.verify, {**arguments(device), "kv_format": "e4m3"}, change, message)


def test_cpu_tensors_are_refused_with_a_remedy() -> None:
    check_refused(
        verify.verify, {**arguments(torch.device("cpu")), "kv_format": "e4m3"}, value(), f"'q': {CPU_REFUSED}"
    )


PLANS: list[PlanRefusal] = [
    *refusal_cases.PAGED_PLANS,
    ("FP16", {"kv_format": "fp16"}, r"'kv_format': got 'fp16', want one of \['e4m3', 'e5m2'\]"),
    ("negative requests", {"requests": -1}, r"'requests': got -1, want a whole number from 0"),
    ("no rows", {"q_rows": 0}, r"'q_rows': got 0, want a whole number from 1 to 16"),
    ("too many rows", {"q_rows": 17}, r"'q_rows': got 17, want a whole number from 1 to 16"),
    ("rows of float", {"q_rows": 2.0}, r"'q_rows': got 2.0, want a whole number"),
    ("too many requests", {"requests": 2**19}, r"'requests': got 524288, want at most 1048576 rows with q_rows=3"),
]


@each_plan(PLANS)
def test_plan_refuses(changes: dict[str, Any], message: str) -> None:
    check_plan_refused(functools.partial(plan_of, arguments(torch.device("cpu"))), changes, message)


def test_the_operator_itself_refuses_what_no_plan_made(device: torch.device) -> None:
    """Called by its torch name, past the plan."""
    named = arguments(device)
    workspace = torch.zeros(1 << 20, dtype=torch.uint8, device=device)

    def call(q: Tensor, kv_format: str = "e4m3") -> None:
        torch.ops.sm70_kernels.verify(
            q,
            named["key_cache"],
            named["value_cache"],
            named["block_table"],
            named["seq_lens"],
            named["out"],
            workspace,
            kv_format,
            0.125,
        )

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
    check_workspace_size(case.run, case.plan().workspace_bytes, device)


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
    check_mixed_meta_refused(case.plan().run, tensors, name)
