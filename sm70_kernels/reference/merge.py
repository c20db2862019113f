"""Merging attention states over disjoint key ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sm70_kernels.reference.arguments import FLOATS, refusal, require_dtype, require_shape


def merge_states(outs: Tensor | Sequence[Tensor], lses: Tensor | Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Combine partial attention results into the result over the union of their (disjoint) key ranges.

    ``outs``: ``parts`` tensors ``[..., D]`` (or one ``[parts, ..., D]``), each normalised; ``lses``: as many
    ``[...]``, natural logarithms of the softmax denominators, -inf for a part without keys, whose output is
    then not looked at. Any of float16/32/64; returns float64 ``(out [..., D], lse [...])``; zeros and -inf
    where every part is empty. The weight of a part is ``exp(lse) / sum(exp(lse))``; an error ``e`` in an lse
    is a relative error ``e`` in that part's weight. Raises ``ValueError`` for no parts, or numbers and shapes
    that disagree.
    """
    out_parts, lse_parts = list(outs), list(lses)
    if not out_parts:
        raise refusal("outs", "no parts", "at least one part")
    if len(lse_parts) != len(out_parts):
        raise refusal("lses", f"{len(lse_parts)} parts", f"{len(out_parts)} parts, one for each of outs")
    shape = out_parts[0].shape
    if len(shape) == 0:
        raise refusal("outs[0]", "shape []", "shape [..., D]")
    for part, (out, lse) in enumerate(zip(out_parts, lse_parts, strict=True)):
        require_dtype(f"outs[{part}]", out, FLOATS)
        require_dtype(f"lses[{part}]", lse, FLOATS)
        require_shape(f"outs[{part}]", out, tuple(shape))
        require_shape(f"lses[{part}]", lse, tuple(shape[:-1]))
    out = torch.stack([part.to(torch.float64) for part in out_parts])
    lse = torch.stack([part.to(torch.float64) for part in lse_parts])

    empty = lse == -math.inf
    largest = lse.amax(dim=0)  # NaN if any part's is, so a NaN state stays NaN
    # Where every part is empty, -inf - -inf would be NaN: any finite reference point gives the wanted zeros.
    reference_point = torch.where(largest == -math.inf, 0.0, largest)
    weight = torch.exp(lse - reference_point)
    denominator = weight.sum(dim=0)
    # An empty part is left out by selection, not by a weight of zero: 0 x NaN would let its bytes through.
    numerator = torch.where(empty[..., None], 0.0, weight[..., None] * out).sum(dim=0)
    nothing = empty.all(dim=0)
    merged = torch.where(nothing[..., None], 0.0, numerator / denominator[..., None])
    return merged, reference_point + torch.log(denominator)
