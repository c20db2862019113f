"""What the Python side of operators checks before the operator itself does: names of formats, kinds of arguments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: Storage formats of a KV cache, by name, with the dtype of a typed cache.
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16}
#: vLLM's names of these. Its ``auto`` is none of them: it means the model's dtype, which no operator knows.
ALIASES = {"fp8": "e4m3", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}


def refusal(op: str, argument: str, got: object, want: str, remedy: str) -> ValueError:
    """The sentence in which every argument is refused (not raised here)."""
    return ValueError(f"{op}: argument {argument!r}: got {got}, want {want}. {remedy}")


def format_name(op: str, kv_format: str | None, cache: Tensor | None = None) -> str:
    """Canonical format name; without one it follows from the cache's dtype, except for uint8, which says nothing."""
    want, remedy = f"one of {sorted([*FORMATS, *ALIASES])}", "Name the format that the cache holds"
    if kv_format is not None:
        name = ALIASES.get(kv_format, kv_format)
        if name not in FORMATS:
            raise refusal(op, "kv_format", repr(kv_format), want, remedy)
        return name
    if cache is not None:
        for name, dtype in FORMATS.items():
            if cache.dtype == dtype:
                return name
    got = "None" if cache is None else f"None for a {cache.dtype} cache, whose dtype does not say the format"
    raise refusal(op, "kv_format", got, want, remedy)


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


def require_dimensions(op: str, *tensors: tuple[str, Tensor, str]) -> None:
    """Refuse a tensor with another number of dimensions than its ``dims`` name: ``("q", q, "[rows, Hq, D]")``."""
    for name, tensor, dims in tensors:
        if tensor.dim() != dims.count(",") + 1:
            raise refusal(op, name, f"shape {list(tensor.shape)}", dims, "Reshape or unsqueeze it")


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
