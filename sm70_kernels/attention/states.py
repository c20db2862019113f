"""Attention results over disjoint key ranges, merged: context-parallel ranks, shared prefixes, chunked prefill."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def merge_states(outs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Combine partial attention results into the result over the union of their key ranges.

    The weight of a part is ``exp(lse) / sum(exp(lse))``, in FP32, parts taken in their order. A part without keys has
    lse -inf; its output is not looked at.

    Args:
        outs: parts, each ``[..., D]`` and normalised, of one floating dtype; or one tensor ``[parts, ..., D]``.
        lses: as many FP32 ``[...]``: natural logarithms of the softmax denominators.

    Returns:
        ``(out [..., D] of the dtype of outs, lse [...] FP32)``; zeros and -inf where every part is empty.

    Raises:
        ValueError: no parts, or numbers, shapes or dtypes that disagree.
    """
    out_parts, lse_parts = list(outs), list(lses)
    if not out_parts or len(out_parts) != len(lse_parts):
        raise ValueError(
            f"merge_states: argument 'lses': got {len(lse_parts)} parts beside {len(out_parts)} of outs, want as many, "
            "and at least one. Pass the lse of every part"
        )
    first = out_parts[0]
    for index, (out, lse) in enumerate(zip(out_parts, lse_parts, strict=True)):
        if out.shape != first.shape or out.dtype != first.dtype or not out.is_floating_point():
            raise ValueError(
                f"merge_states: argument 'outs': part {index} is {out.dtype} {list(out.shape)}, want a floating dtype "
                f"and the shape of part 0, {first.dtype} {list(first.shape)}. Pass results of one query"
            )
        if lse.shape != first.shape[:-1] or lse.dtype != torch.float32:
            raise ValueError(
                f"merge_states: argument 'lses': part {index} is {lse.dtype} {list(lse.shape)}, want torch.float32 "
                f"{list(first.shape[:-1])}. Pass the lse that came with the output"
            )
    lse = torch.stack(lse_parts)
    largest = lse.amax(dim=0)
    # Where every part is empty -inf - -inf would be NaN: any finite reference gives the wanted zero weights.
    reference = torch.where(largest == -torch.inf, 0.0, largest)
    weights = torch.exp(lse - reference)
    denominator = weights.sum(dim=0)
    numerator = torch.zeros_like(first, dtype=torch.float32)
    for out, weight in zip(out_parts, weights, strict=True):
        # An empty part is left out by selection: 0 x NaN would let its bytes through.
        numerator += torch.where((weight != 0)[..., None], weight[..., None] * out.float(), 0.0)
    out = torch.where((denominator != 0)[..., None], numerator / denominator[..., None], 0.0)
    return out.to(first.dtype), reference + torch.log(denominator)
