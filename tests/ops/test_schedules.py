"""Every operator under 32 schedules of the emulated V100: silent under all checkers, and the same bits each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import sm70_kernels.ops
from sm70_kernels.lab import emulator
from sm70_kernels.lab.checkers import Checks
from sm70_kernels.ops import kv_cache
from sm70_kernels.reference.compare import compare_bitwise
from tests.ops import marks, prefill_cases, verify_cases
from tests.ops.decode_cases import LEAF, VARIANTS, make_case
from tests.ops.kv_cases import canonical_nan, fill_live, make_cache, make_rows, poison, random_bytes

SEEDS = range(1, 33)
CPU = torch.device("cpu")


def write_and_gather() -> list[Tensor]:
    """New tokens into pages of E4M3, skipped ones among them, and the live prefixes back: tails, odd heads, poison."""
    heads, dim, page = 3, 40, 16
    caches = make_cache("padded", (12, page, heads, dim), "e4m3", CPU)
    rows = make_rows([37, 0, 16, 50], page, 12, CPU, max_tokens=64)
    for seed, cache in enumerate(caches):
        fill_live(cache, rows, "e4m3", seed)
    slots = torch.cat([rows.block_table[3, :3].long() * page + 5, torch.tensor([-1])])
    k = random_bytes(torch.empty(4, heads, dim, dtype=torch.float16), "fp16", 3)
    poison(k[3:], "fp16")  # of the token that is skipped
    kv_cache.write_paged_kv(k, k, *caches, slots, k_scale=0.37, v_scale=2.0, kv_format="e4m3")
    outputs = [torch.empty(4, 64, heads, dim, dtype=torch.float16) for _ in range(2)]
    marks.undefined(*outputs)
    kv_cache.gather_paged_kv(
        *caches, rows.block_table, rows.seq_lens, k_scale=0.5, kv_format="e4m3", k_out=outputs[0], v_out=outputs[1]
    )
    live = [output[row, :length] for output in outputs for row, length in enumerate(rows.lengths)]
    return [canonical_nan(tensor) for tensor in live]


def decode_both_ways() -> list[Tensor]:
    """Rows of one unit and of several, one without keys, a tail in the last tile, in both variants."""
    case = make_case([300, 0, 17, LEAF], page=48, group=3, kv_heads=2, head_dim=64, device=CPU)
    return [tensor for variant in VARIANTS for tensor in case.run(variant)]


def prefill_a_ragged_batch() -> list[Tensor]:
    """Sequences of one tile and of several, one without queries; keys shared among blocks, and combined."""
    case = prefill_cases.make_case([(30, 500), (0, 10), (1, 129)], group=3, head_dim=64, device=CPU)
    return list(case.run())


def verify_rows() -> list[Tensor]:
    """Rows of one chunk and of several, padding, a tail in the last tile, two KV heads."""
    case = verify_cases.make_case(
        [[300, 0, 17], [LEAF, LEAF - 1, 1]], page=48, group=3, kv_heads=2, head_dim=64, device=CPU
    )
    return [*case.run()]


#: By operator module, launches on small shapes that return what must not change.
CASES: dict[str, Callable[[], list[Tensor]]] = {
    "decode": decode_both_ways,
    "kv_cache": write_and_gather,
    "prefill": prefill_a_ragged_batch,
    "verify": verify_rows,
}


def test_every_operator_has_a_case() -> None:
    (folder,) = sm70_kernels.ops.__path__
    assert set(CASES) == {path.stem for path in Path(folder).glob("[a-z]*.py")}


@pytest.mark.parametrize("operator", CASES)
def test_schedules(operator: str) -> None:
    with Checks() as checks, marks.reported_to(checks):
        with emulator.enabled(instruments=checks.instruments):
            natural = CASES[operator]()
        for seed in SEEDS:
            with emulator.enabled(seed=seed, instruments=checks.instruments) as run:
                shuffled = CASES[operator]()
            assert run.launches
            for got, want in zip(shuffled, natural, strict=True):
                compare_bitwise(got, want, f"seed {seed}")
        assert checks.findings == []
