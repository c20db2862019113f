"""How prefill's work is divided: SM counts, shared tiles, folds, schedules; and that a workspace bounds it."""

from __future__ import annotations

import pytest
import torch

from sm70_kernels.lab import emulator
from sm70_kernels.ops import prefill
from tests.ops.prefill_cases import (
    FOLD,
    TILE,
    Case,
    Result,
    check_accuracy,
    check_same_bits,
    make_case,
)

MIB = 1 << 20
CPU = torch.device("cpu")


def kernels(case: Case, multiprocessors: int) -> tuple[Result, list[str]]:
    """A run on so many SMs, and the launches it took."""
    with emulator.enabled(multiprocessors=multiprocessors) as emulation:
        result = case.run()
    return result, [launch.kernel for launch in emulation.launches]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_whole_and_shared_tiles(head_dim: int) -> None:
    """7 tiles of up to 11 key tiles: one SM does all; more leave some over, whose keys several blocks share."""
    case = make_case((140, 1400), group=6, head_dim=head_dim, device=CPU)
    exact, shared = case.exact(), set()
    for multiprocessors in (1, 2, 4, 80):
        result, launched = kernels(case, multiprocessors)
        check_accuracy(result, exact, what=f"{multiprocessors} SMs")
        shared.add(len(launched) == 2)
    assert shared == {False, True}


@pytest.mark.parametrize("head_dim,group", [(256, 6), (64, 1)])
def test_folds_in_whole_and_shared_tiles(head_dim: int, group: int) -> None:
    """Two folds and a rest in one block; one fold in each of two blocks; none where there are many."""
    case = make_case((3, 2 * FOLD + 3 * TILE + 5), group=group, head_dim=head_dim, device=CPU)
    case = case.but(v=case.v + 2.0)
    exact = case.exact()
    for multiprocessors in (1, 2, 80):
        result, _ = kernels(case, multiprocessors)
        check_accuracy(result, exact, what=f"{multiprocessors} SMs")


def test_several_tiles_with_folds_in_one_block() -> None:
    """The slot of a block is used again, by its next tile."""
    case = make_case((50, FOLD + 200), group=6, head_dim=64, device=CPU)
    result, launched = kernels(case, 1)
    assert launched == ["prefill_d64_a16"]
    check_accuracy(result, case.exact())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("head_dim,group", [(256, 6), (128, 3), (64, 1)])
def test_schedules_do_not_matter(head_dim: int, group: int, seed: int) -> None:
    """Blocks, warps and their turns in a shuffled order: nothing is read before it is written."""
    case = make_case([(30, 500), (0, 10), (1, 129)], group=group, head_dim=head_dim, device=CPU)
    for multiprocessors in (1, 80):
        natural, _ = kernels(case, multiprocessors)
        with emulator.enabled(seed=seed, multiprocessors=multiprocessors):
            check_same_bits(case.run(), natural, f"seed {seed}:")


def test_schedules_do_not_matter_to_folds() -> None:
    case = make_case((22, FOLD + 300), head_dim=64, device=CPU)
    natural, _ = kernels(case, 1)
    with emulator.enabled(seed=5, multiprocessors=1):
        check_same_bits(case.run(), natural)


def test_six_runs_are_bitwise_equal(device: torch.device) -> None:
    case = make_case((50, 1100), head_dim=128, device=device)
    first = case.run()
    for _ in range(5):
        check_same_bits(case.run(), first)


def workspace_bytes(
    queries: int, keys: int, group: int = 6, kv_heads: int = 1, head_dim: int = 256, sequences: int | None = None
) -> int:
    return prefill.plan(
        max_seqlen_q=queries, max_seqlen_k=keys, query_heads=group * kv_heads, kv_heads=kv_heads, head_dim=head_dim,
        sequences=sequences, device="cpu",
    ).workspace_bytes  # fmt: skip


@pytest.mark.parametrize("multiprocessors", [1, 2, 13, 72, 80, 132])
def test_the_workspace_is_at_most_64_mib(multiprocessors: int) -> None:
    """A sweep of shapes, ragged batches and several KV heads among them."""
    lengths = [(1, 1), (1, 262144), (21, 262144), (22, 4096), (100, 131072), (999, 5000), (1642, 262144),
               (2731, 8192), (4000, 262144), (8000, 131072), (8192, 262144)]  # fmt: skip
    with emulator.enabled(multiprocessors=multiprocessors):
        sizes = [
            workspace_bytes(*pair, group, kv_heads, head_dim, sequences)
            for pair in lengths
            for group in (1, 6, 16)
            for kv_heads in (1, 2, 7)
            for head_dim in (64, 128, 256)
            for sequences in (None, 3, 65)
        ]
    assert min(sizes) > 0 and max(sizes) <= prefill.MAX_WORKSPACE_BYTES == 64 * MIB


def test_the_workspace_is_large_enough_to_the_byte(device: torch.device) -> None:
    case = make_case((50, 1100), head_dim=64, device=device)
    size = case.plan().workspace_bytes
    memory = torch.zeros(size + 64, dtype=torch.uint8, device=device)
    case.run(workspace=memory[16 : 16 + size])
    assert not memory[:16].any() and not memory[16 + size :].any()
    with pytest.raises(RuntimeError, match=f"'workspace': got {size - 1} bytes, want {size} bytes at least"):
        case.run(workspace=memory[: size - 1])


def test_the_workspace_follows_from_shapes_and_multiprocessors_alone() -> None:
    """Not from lengths: a graph is captured with the same one that it is replayed with."""
    sizes = []
    for multiprocessors in (72, 80):
        with emulator.enabled(multiprocessors=multiprocessors):
            sizes.append(workspace_bytes(8192, 262144))
            assert prefill.plan(
                max_seqlen_q=8192, max_seqlen_k=262144, query_heads=6, kv_heads=1, head_dim=256, device="cpu"
            ).multiprocessors == multiprocessors  # fmt: skip
    assert sizes[0] != sizes[1]
