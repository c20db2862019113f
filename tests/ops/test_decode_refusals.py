"""Every refusal of decode: a sentence that names the argument, and nothing launched or written. And its workspace."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from sm70_kernels.lab import emulator
from sm70_kernels.ops import decode
from tests.ops import refusal_cases
from tests.ops.decode_cases import VARIANTS, make_case
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

MIB = 1 << 20


#: Refusals that the plan's run and the functional form share.
RUN: list[Refusal] = [
    *refusal_cases.PAGED,
    ("table of other rows", reshape("block_table", 3, 2), r"'block_table': .*rows of q, without row_requests"),
    ("lengths of 2 dimensions", reshape("seq_lens", 2, 1), r"'seq_lens': got shape \[2, 1\], want \[rows\]"),
    ("lengths of other rows", reshape("seq_lens", 3), r"'seq_lens': .*\(rows of q\)"),
    ("requests of int64", lambda a: {"row_requests": torch.zeros(2, dtype=torch.int64, device=a["q"].device)},
     r"'row_requests': got torch.int64, want torch.int32"),
    ("requests of other rows", lambda a: {"row_requests": torch.zeros(3, dtype=torch.int32, device=a["q"].device)},
     r"'row_requests': .*\(rows of q\)"),
    ("requests of 2 dimensions", lambda a: {"row_requests": torch.zeros(2, 1, dtype=torch.int32,
                                                                        device=a["q"].device)},
     r"'row_requests': got shape \[2, 1\], want \[rows\]"),
    ("out of 2 dimensions", reshape("out", 8, 64), r"'out': got shape \[8, 64\], want \[rows, Hq, D\]"),
    ("out of other rows", reshape("out", 3, 4, 64), r"'out': .*\(shape of q\)"),
    ("out of other heads", reshape("out", 2, 6, 64), r"'out': .*\(shape of q\)"),
    ("out of other D", reshape("out", 2, 4, 128), r"'out': .*\(shape of q\)"),
    ("lse of 1 dimension", reshape("lse", 8), r"'lse': got shape \[8\], want \[rows, Hq\]"),
    ("lse of other rows", reshape("lse", 3, 4), r"'lse': .*\(rows of q\)"),
    ("lse of other heads", reshape("lse", 2, 2), r"'lse': .*\(query heads of q\)"),
]  # fmt: skip

#: Where the two forms speak differently: the plan has shapes of its own.
PLANNED: list[Refusal] = [
    *refusal_cases.PAGED_PLANNED,
    ("q of other rows", reshape("q", 3, 4, 64), r"'q': got shape \[3, 4, 64\], want \[2, 4, 64\], as planned"),
    ("q of other heads", reshape("q", 2, 2, 64), r"'q': got shape \[2, 2, 64\], want \[2, 4, 64\], as planned"),
]  # fmt: skip

FUNCTIONAL: list[Refusal] = [
    *refusal_cases.PAGED_FUNCTIONAL,
    ("q of 2 dimensions", reshape("q", 2, 64), r"'q': got shape \[2, 64\], want \[rows, Hq, D\]"),
    ("table of 1 dimension", reshape("block_table", 2), r"'block_table': got shape \[2\], want \[requests, max_bl"),
    ("FP16 as E4M3", caches(dtype=torch.float16), r"'key_cache': got torch.float16, want torch.float8_e4m3fn or"),
    ("unknown variant", value(variant="fast"), r"'variant': got 'fast', want one of \['xqa', 'scalar'\]"),
    ("heads that no group divides", reshape("q", 2, 5, 64), r"'query_heads': got 5, want 1 to 16 times kv_heads=2"),
    ("a group of 17", reshape("q", 2, 34, 64), r"'query_heads': got 34, want 1 to 16 times kv_heads=2"),
    ("a head dimension of 96", lambda a: {**reshape("q", 2, 4, 96)(a), **caches(4, 16, 2, 96)(a)},
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


def plan_of(named: dict[str, Any], **changes: Any) -> decode.DecodePlan:
    shape = {"rows": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 64, "max_tokens": 32, "kv_format": "e4m3"}
    return decode.plan(**{**shape, "device": named["q"].device, **changes})


@each([*RUN, *PLANNED])
def test_run_refuses(device: torch.device, change: Change, message: str) -> None:
    named = arguments(device)
    check_refused(plan_of(named).run, named, change, message)


@each([*RUN, *FUNCTIONAL])
def test_decode_refuses(device: torch.device, change: Change, message: str) -> None:
    check_refused(decode.decode, {**arguments(device), "kv_format": "e4m3"}, change, message)


@pytest.mark.parametrize("variant", VARIANTS)
def test_cpu_tensors_are_refused_with_a_remedy(variant: str) -> None:
    named = {**arguments(torch.device("cpu")), "kv_format": "e4m3", "variant": variant}
    check_refused(decode.decode, named, value(), f"'q': {CPU_REFUSED}")


PLANS: list[PlanRefusal] = [
    *refusal_cases.PAGED_PLANS,
    ("a variant", {"variant": "fast"}, r"'variant': got 'fast', want one of \['xqa', 'scalar'\]"),
    ("negative rows", {"rows": -1}, r"'rows': got -1, want a whole number from 0 to 1048576"),
    ("too many rows", {"rows": 2**20 + 1}, r"'rows': got 1048577, want a whole number from 0 to 1048576"),
    ("rows of float", {"rows": 2.0}, r"'rows': got 2.0, want a whole number"),
]


@each_plan(PLANS)
def test_plan_refuses(changes: dict[str, Any], message: str) -> None:
    check_plan_refused(functools.partial(plan_of, arguments(torch.device("cpu"))), changes, message)


def test_a_plan_of_another_device_is_refused(cuda_device: torch.device) -> None:
    named = arguments(cuda_device)
    check_refused(plan_of(named, device="cpu").run, named, value(), r"'q': got a tensor on cuda.*want one on cpu")


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_workspace_is_large_enough_to_the_byte(device: torch.device, variant: str) -> None:
    case = make_case([3000, 100], head_dim=64, kv_heads=2, device=device)
    check_workspace_size(functools.partial(case.run, variant), case.plan(variant).workspace_bytes, device)


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
                    rows=1,
                    query_heads=6,
                    kv_heads=1,
                    head_dim=256,
                    max_tokens=256 << 10,
                    kv_format=kv_format,
                    device="cpu",
                )
                assert planned.workspace_bytes == sizes[multiprocessors]
    assert 0 < sizes[72] <= sizes[80]


@pytest.mark.parametrize("name", ["key_cache", "block_table", "seq_lens", "out"])
def test_a_meta_tensor_among_real_ones_is_refused(name: str) -> None:
    """torch takes the fake implementation then, and the output would stay unwritten."""
    case = make_case([5], page=16, head_dim=64, device=torch.device("cpu"))
    planned = decode.plan(
        rows=1,
        query_heads=case.q.shape[1],
        kv_heads=case.key_cache.shape[2],
        head_dim=64,
        kv_format=case.kv_format,
        max_tokens=case.block_table.shape[1] * 16,
        device="cpu",
    )
    tensors = {
        "q": case.q, "key_cache": case.key_cache, "value_cache": case.value_cache, "block_table": case.block_table,
        "seq_lens": case.seq_lens, "out": torch.empty_like(case.q),
    }  # fmt: skip
    check_mixed_meta_refused(planned.run, tensors, name)
