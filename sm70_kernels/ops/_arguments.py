"""What the Python side of operators checks before the operator itself does: names of formats, kinds of arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Storage formats of a KV cache, by name, with the dtype of a typed cache. ``fp8`` is an alias of ``e4m3``.
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16}
ALIASES = {"fp8": "e4m3", "fp8_e5m2": "e5m2"}


def format_name(op: str, kv_format: str | None, cache: Tensor | None = None) -> str:
    """Canonical format name; without one it follows from the cache's dtype, except for uint8, which says nothing."""
    wanted = sorted([*FORMATS, *ALIASES])
    if kv_format is not None:
        name = ALIASES.get(kv_format, kv_format)
        if name not in FORMATS:
            raise ValueError(
                f"{op}: argument 'kv_format': got {kv_format!r}, want one of {wanted}. "
                "Name the format that the cache holds"
            )
        return name
    if cache is not None:
        for name, dtype in FORMATS.items():
            if cache.dtype == dtype:
                return name
    found = "None" if cache is None else f"None for a {cache.dtype} cache, whose dtype does not say the format"
    raise ValueError(
        f"{op}: argument 'kv_format': got {found}, want one of {wanted}. Name the format that the cache holds"
    )


def split_scale(op: str, name: str, scale: float | Tensor) -> tuple[float, Tensor | None]:
    """The operators take a host scale and an optional device scale."""
    if isinstance(scale, Tensor):
        return 1.0, scale
    if not isinstance(scale, int | float):
        raise TypeError(
            f"{op}: argument {name!r}: got {type(scale).__name__}, want a number or a one-element float32 tensor. "
            "Pass the factor between stored and real values"
        )
    return scale, None


def require_tensors(op: str, **arguments: object) -> None:
    """Refuse what is no tensor with a sentence; the operator itself checks device, dtype and shape."""
    for name, value in arguments.items():
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{op}: argument {name!r}: got {type(value).__name__}, want a torch.Tensor. Convert it, with "
                "torch.as_tensor for instance"
            )


def fake(op: str) -> Callable[..., None]:
    """The fake implementation of an operator that returns nothing: its effect is on its arguments.

    torch takes it for meta tensors, and also if one is mixed with real ones, whose outputs would stay unwritten.
    """

    def check(*arguments: object, **named: object) -> None:
        tensors = [value for value in (*arguments, *named.values()) if isinstance(value, Tensor)]
        devices = sorted({tensor.device.type for tensor in tensors})
        if "meta" in devices and len(devices) > 1:
            raise RuntimeError(
                f"{op}: tensors: got some on the device meta and some on {devices[0]}, want all on one device. "
                "Move all tensors to one device"
            )

    return check


def require_planned(
    op: str,
    q: Tensor,
    key_cache: Tensor,
    block_table: Tensor,
    *,
    q_shape: tuple[int, ...],
    kv_heads: int,
    max_tokens: int,
    device: torch.device,
) -> None:
    """The tensors of a paged operator have the shapes that a plan is for; the operator checks everything else.

    Raises:
        ValueError: one has another shape, or is on another device.
    """
    if tuple(q.shape) != q_shape:
        raise ValueError(
            f"{op}: argument 'q': got shape {list(q.shape)}, want {list(q_shape)}, as planned. Make a plan for this "
            "shape"
        )
    if key_cache.dim() != 4 or key_cache.shape[2] != kv_heads:
        raise ValueError(
            f"{op}: argument 'key_cache': got shape {list(key_cache.shape)}, want [pages, page, {kv_heads}, "
            f"{q_shape[-1]}], as planned. Make a plan for this cache"
        )
    if block_table.dim() != 2 or block_table.shape[1] * key_cache.shape[1] > max_tokens:
        raise ValueError(
            f"{op}: argument 'block_table': got shape {list(block_table.shape)} with pages of {key_cache.shape[1]} "
            f"tokens, want [requests, max_blocks] for at most {max_tokens} tokens, as planned. Make a plan for more "
            "tokens"
        )
    if q.device.type != device.type:
        raise ValueError(
            f"{op}: argument 'q': got a tensor on {q.device}, want one on {device}, as planned. Make a plan for this "
            "device"
        )
