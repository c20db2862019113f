"""Measures of error against a float64 reference, in the words of the operator contracts."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sm70_kernels.reference.arguments import FLOATS, refusal, require_dtype, require_shape
from sm70_kernels.reference.fp8 import round_to_fp16


def _pair(actual: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    require_dtype("actual", actual, FLOATS)
    require_dtype("reference", reference, FLOATS)
    require_shape("actual", actual, tuple(reference.shape))
    return actual.to(torch.float64), reference.to(torch.float64)


def relative_l2(actual: Tensor, reference: Tensor) -> float:
    """Return ``||actual - reference|| / ||reference||`` over all elements, summed in float64.

    NaN where either holds one, so that every bound fails; for an all-zero reference 0 or infinity.
    """
    got, wanted = _pair(actual, reference)
    error = float(torch.linalg.vector_norm(got - wanted))
    norm = float(torch.linalg.vector_norm(wanted))
    if norm == 0.0:
        return error if error == 0.0 or math.isnan(error) else math.inf
    return error / norm


def max_abs_error(actual: Tensor, reference: Tensor) -> float:
    """Return the largest ``|actual - reference|``, 0 for no elements, NaN where either holds one."""
    got, wanted = _pair(actual, reference)
    return float((got - wanted).abs().max()) if got.numel() else 0.0


def fp16_rounding_floor(reference: Tensor) -> float:
    """Return the relative L2 error of the reference rounded to FP16: no FP16 output does better."""
    return relative_l2(round_to_fp16(reference), reference)


def fp16_spacing(x: Tensor) -> Tensor:
    """Return the distance (float64) between FP16 neighbours in the binade of each float16 element.

    ``2^-24`` for zeros and subnormals, ``2^(e - 10)`` for magnitudes in ``[2^e, 2^(e + 1))``, else NaN.
    """
    require_dtype("x", x, (torch.float16,))
    exponent_field = (x.contiguous().view(torch.int16).to(torch.int64) >> 10) & 31
    spacings = [math.ldexp(1.0, max(field, 1) - 25) for field in range(31)] + [math.nan]
    return torch.tensor(spacings, dtype=torch.float64, device=x.device)[exponent_field]


def ulp_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return ``|a - b|`` of float16 elements in FP16 spacings *of the larger magnitude* (float64).

    This is the unit of the contracts. Equal elements (NaN with NaN, infinities of one sign) are 0 apart, any
    other pair with an element that is not finite is infinitely far apart.
    """
    first, second = _pair(a, b)
    larger = torch.where(first.abs() >= second.abs(), a, b)
    distance = (first - second).abs() / fp16_spacing(larger)
    same = (first == second) | (first.isnan() & second.isnan())
    finite = first.isfinite() & second.isfinite()
    return torch.where(same, 0.0, torch.where(finite, distance, math.inf))


def steps_apart(a: Tensor, b: Tensor) -> Tensor:
    """Return how many steps between FP16 neighbours lead from ``a`` to ``b`` (int64, 0 from -0 to +0).

    Near a power of two this counts finer steps than :func:`ulp_distance`. NaN with NaN is 0; NaN with a
    number is 65536, more than any pair of numbers.
    """
    ordinals = []
    for argument, tensor in (("a", a), ("b", b)):
        require_dtype(argument, tensor, (torch.float16,))
        code = tensor.contiguous().view(torch.int16).to(torch.int64) & 0xFFFF
        magnitude = code & 0x7FFF  # ordered like the values, subnormals and infinity included
        ordinals.append(torch.where(code >= 0x8000, -magnitude, magnitude))
    require_shape("a", a, tuple(b.shape))
    steps = (ordinals[0] - ordinals[1]).abs()
    nans = a.isnan().to(torch.int64) + b.isnan().to(torch.int64)
    return torch.where(nans == 0, steps, torch.where(nans == 2, 0, 65536))


def differing_elements(a: Tensor, b: Tensor) -> int:
    """Return how many elements differ in value (NaN equals NaN, +0 equals -0)."""
    first, second = _pair(a, b)
    return int(((first != second) & ~(first.isnan() & second.isnan())).sum())


def fraction_differing(a: Tensor, b: Tensor) -> float:
    """Return the share of elements, 0..1, that differ in value; 0 for no elements."""
    return differing_elements(a, b) / a.numel() if a.numel() else 0.0


class GroupChanges(NamedTuple):
    """Groups whose error became smaller, became larger, or stayed."""

    improved: int
    worsened: int
    unchanged: int


def group_changes(current: Tensor, previous: Tensor, reference: Tensor) -> GroupChanges:
    """Compare two revisions group by group, a group being one vector along the last dimension ``[..., D]``.

    A group improves when the L2 norm of its error against the reference falls. A group that is NaN counts as
    infinitely wrong.
    """
    errors = []
    for result in (current, previous):
        got, wanted = _pair(result, reference)
        if got.dim() == 0:
            raise refusal("reference", "shape []", "shape [..., D]")
        errors.append(torch.linalg.vector_norm(got - wanted, dim=-1).nan_to_num(nan=math.inf, posinf=math.inf))
    now, before = errors
    improved, worsened = int((now < before).sum()), int((now > before).sum())
    return GroupChanges(improved, worsened, now.numel() - improved - worsened)


def prefill_flops(query_heads: int, head_dim: int, query_rows: int, keys: int) -> int:
    """Return the operations of causal prefill: ``4 Hq D (Q (KV - Q) + Q (Q + 1) / 2)``.

    Two products (QK and PV) of ``D`` multiplications and ``D`` additions for every visible pair of query and
    key.
    """
    if query_heads < 1 or head_dim < 1:
        raise refusal("query_heads, head_dim", f"{query_heads}, {head_dim}", "1 or more of each")
    if not 1 <= query_rows <= keys:
        raise refusal("query_rows", query_rows, f"1..keys={keys}")
    visible_pairs = query_rows * (keys - query_rows) + query_rows * (query_rows + 1) // 2
    return 4 * query_heads * head_dim * visible_pairs
