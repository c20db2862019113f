"""verify with other numerics, the operator of tests: two ways to sum scores, and three controls with known faults."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import Tensor

from sm70_kernels import _native
from tests.ops.verify_cases import Case, Result

LIBRARY = Path(__file__).resolve().parents[2] / "build" / "test_ops" / "verify_controls" / "libsm70_verify_controls.so"
#: The shipped numerics by another name, so that a control differs from it in one thing.
PLAIN = "plain"
COMPENSATIONS = ("none", PLAIN, "kahan")
#: What each control does wrong.
CONTROLS = {
    "carried": "one accumulator of the tensor core over a whole row",
    "single": "weights of one half, without a residual",
    "halves": "normalised partial results in FP16",
}


def load() -> None:
    """Before the emulator is switched on, for what is loaded then."""
    _native.load("verify_controls", 1, LIBRARY)


def run(case: Case, numerics: str) -> tuple[Result, Tensor]:
    """A result, and the workspace that it was made in. E4M3; D 64 in blocks of 16 rows, D 256 of 16 or 48."""
    result, workspace = case.new_result(), case.plan().new_workspace().fill_(0xFF)
    torch.ops.sm70_kernels_test.verify_controls(
        case.q,
        *case.caches,
        case.block_table,
        case.seq_lens,
        result.out,
        workspace,
        numerics,
        case.scale,
        case.k_scale,
        case.v_scale,
        result.lse,
    )
    return result, workspace


def unrounded(case: Case, workspace: Tensor) -> Tensor:
    """Float64 ``[rows, Hkv, G, D]`` of the states in a workspace that was filled with NaN: results before FP16.

    Combined in float64, so that what is wrong with them was wrong in the states.
    """
    group, head_dim = case.q.shape[2] // case.kv_heads, case.q.shape[3]
    slot = (group * (head_dim + 2) + 3) // 4 * 4
    rows = case.q.shape[0] * case.q.shape[1]
    slots = workspace.view(torch.float32).view(rows, case.kv_heads, -1, slot).double()
    numerators = slots[..., : group * head_dim].unflatten(-1, (group, head_dim))
    maximum, total = slots[..., group * head_dim : group * (head_dim + 2)].unflatten(-1, (group, 2)).unbind(-1)
    live = ~maximum.isnan()
    maximum = torch.where(live, maximum, -math.inf)
    weight = torch.exp2(maximum - maximum.amax(2, keepdim=True))
    denominator = (weight * torch.where(live, total, 0.0)).sum(2)
    numerator = (weight[..., None] * torch.where(live[..., None], numerators, 0.0)).sum(2)
    return numerator / denominator[..., None] * 256.0 * float(case.v_scale)  # E4M3 operands are of value / 256
