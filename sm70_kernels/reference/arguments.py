"""Refusals of the reference oracles: every message names the argument, what was got and what is wanted."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.float32, torch.float64)

Scale = float | Tensor
"""A scale as an operator takes it: a number, or a tensor of one element."""


def refusal(argument: str, got: object, wanted: str) -> ValueError:
    """Build (not raise) the one kind of error the reference refuses its input with."""
    return ValueError(f"{argument}: got {got}; wanted {wanted}")


def require_dtype(argument: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    """Raise ``ValueError`` unless ``tensor`` has one of ``dtypes``."""
    if tensor.dtype not in dtypes:
        raise refusal(argument, f"dtype {tensor.dtype}", "dtype " + " or ".join(str(d) for d in dtypes))


def require_shape(argument: str, tensor: Tensor, shape: Sequence[int | str]) -> None:
    """Raise ``ValueError`` unless the shape matches: an integer must be met, a string names a free extent."""
    met = tensor.dim() == len(shape) and all(
        isinstance(wanted, str) or got == wanted for got, wanted in zip(tensor.shape, shape, strict=True)
    )
    if not met:
        wanted_text = ", ".join(str(extent) for extent in shape)
        raise refusal(argument, f"shape {list(tensor.shape)}", f"shape [{wanted_text}]")


def require_distinct(argument: str, what: str, values: Tensor) -> None:
    """Raise ``ValueError`` if an integer occurs twice in ``values``; ``what`` says what the integers are."""
    ordered = values.flatten().sort().values
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if repeated.numel():
        raise refusal(argument, f"{what} {int(repeated[0])} more than once", f"each {what} at most once")


def require_group_size(query_heads: int, kv_heads: int) -> int:
    """Return ``G = Hq / Hkv``; raise ``ValueError`` unless ``Hkv`` divides ``Hq``."""
    if kv_heads < 1 or query_heads < 1 or query_heads % kv_heads:
        raise refusal("q", f"Hq={query_heads}", f"a positive multiple of Hkv={kv_heads}")
    return query_heads // kv_heads


def fp32_scale(argument: str, scale: Scale) -> float:
    """Round a scale to FP32, the precision in which kernels receive it, and return that value exactly.

    Raises ``ValueError`` unless the FP32 value is positive and finite (so ``1e-50``, zero in FP32, is
    refused).
    """
    if isinstance(scale, Tensor):
        if scale.numel() != 1:
            raise refusal(argument, f"a tensor of {scale.numel()} elements", "a number or a one-element tensor")
        require_dtype(argument, scale, FLOATS)
        scale = float(scale.item())
    value = float(torch.tensor(scale, dtype=torch.float64).to(torch.float32).item())
    if not (math.isfinite(value) and value > 0.0):
        raise refusal(argument, f"{scale!r} ({value!r} in FP32)", "a positive finite FP32 number")
    return value
