"""The number formats of the KV cache, from their bit definitions: E4M3FN, E5M2 and FP16.

Format names are ``"e4m3"``, ``"e5m2"`` and ``"fp16"``; aliases belong to the operators, not to the oracle.

Sources: Micikevicius et al., "FP8 formats for deep learning", 2022 (arXiv:2209.05433) for E4M3FN and E5M2;
IEEE 754-2019 for binary16. Nothing here goes through torch's float8 dtypes, so tests may compare with them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Final

import torch
from torch import Tensor

from sm70_kernels.reference.arguments import FLOATS, Scale, fp32_scale, refusal, require_dtype


@dataclass(frozen=True)
class FloatLayout:
    """Sign, exponent and mantissa fields of a small binary float, most significant first."""

    exponent_bits: int
    mantissa_bits: int
    has_infinity: bool
    """True: an all-ones exponent is infinity or NaN (IEEE). False: only the all-ones code is NaN."""
    nan_code: int
    """The code, without sign, that rounding a NaN produces."""
    storage: tuple[torch.dtype, ...]
    """Tensor dtypes that may hold these codes."""

    @property
    def sign_code(self) -> int:
        """The sign bit."""
        return 1 << (self.exponent_bits + self.mantissa_bits)


LAYOUTS: Final = {
    "e4m3": FloatLayout(4, 3, False, 0x7F, (torch.uint8, torch.float8_e4m3fn)),
    "e5m2": FloatLayout(5, 2, True, 0x7E, (torch.uint8, torch.float8_e5m2)),
    "fp16": FloatLayout(5, 10, True, 0x7E00, (torch.float16,)),
}
FORMATS: Final = tuple(LAYOUTS)
#: Other names of these, as the operators take them.
ALIASES: Final = {"fp8": "e4m3", "fp8_e4m3": "e4m3", "fp8_e5m2": "e5m2"}


def layout_of(kv_format: str) -> FloatLayout:
    """Return the layout of a format name; raise ``ValueError`` for any other name."""
    name = ALIASES.get(kv_format, kv_format)
    if name not in LAYOUTS:
        raise refusal("kv_format", repr(kv_format), "one of " + ", ".join(map(repr, (*FORMATS, *ALIASES))))
    return LAYOUTS[name]


def require_storage(argument: str, tensor: Tensor, kv_format: str) -> None:
    """Raise ``ValueError`` unless ``tensor``'s dtype can hold codes of ``kv_format``."""
    storage = layout_of(kv_format).storage
    if tensor.dtype not in storage:
        wanted = " or ".join(str(dtype) for dtype in storage)
        raise refusal(argument, f"dtype {tensor.dtype}", f"{wanted}, the storage of {kv_format}")


def decode_code(code: int, kv_format: str) -> float:
    """Return the exact value of one code (0..255, or 0..65535 for FP16); signs of zeros and NaNs are kept."""
    layout = layout_of(kv_format)
    if not 0 <= code < 2 * layout.sign_code:
        raise refusal("code", code, f"0..{2 * layout.sign_code - 1} for {kv_format}")
    sign = -1.0 if code & layout.sign_code else 1.0
    all_ones = (1 << layout.exponent_bits) - 1
    exponent = (code >> layout.mantissa_bits) & all_ones
    mantissa = code & ((1 << layout.mantissa_bits) - 1)
    if exponent == all_ones:
        if layout.has_infinity:
            return sign * math.inf if mantissa == 0 else math.copysign(math.nan, sign)
        if mantissa == (1 << layout.mantissa_bits) - 1:
            return math.copysign(math.nan, sign)
    bias = (1 << (layout.exponent_bits - 1)) - 1
    if exponent == 0:  # zero and subnormals: no hidden bit, the exponent of the smallest normal
        return sign * math.ldexp(mantissa, 1 - bias - layout.mantissa_bits)
    return sign * math.ldexp(mantissa + (1 << layout.mantissa_bits), exponent - bias - layout.mantissa_bits)


@cache
def _decode_table(kv_format: str) -> Tensor:
    codes = range(2 * layout_of(kv_format).sign_code)
    return torch.tensor([decode_code(code, kv_format) for code in codes], dtype=torch.float64)


def decode_table(kv_format: str) -> Tensor:
    """Return a fresh float64 tensor of the value of every code, ``[256]`` (``[65536]`` for FP16)."""
    return _decode_table(kv_format).clone()


def sign_bits(x: Tensor) -> Tensor:
    """Return the sign bit of every element as bool, zeros and NaNs included.

    Read from the bits, because conversions (float16 to float32 on CPU, any arithmetic on a GPU) may drop the
    sign of a NaN.
    """
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.view(integers[x.element_size()]) < 0


def stored_codes(stored: Tensor, kv_format: str) -> Tensor:
    """Return the codes (int64) held by a tensor of a storage dtype of ``kv_format``, ``ValueError`` for another."""
    require_storage("stored", stored, kv_format)
    if kv_format == "fp16":
        return stored.view(torch.int16).to(torch.int64) & 0xFFFF
    return stored.view(torch.uint8).to(torch.int64)


def decode(stored: Tensor, kv_format: str) -> Tensor:
    """Return the stored values as float64, exactly, in the shape of ``stored``.

    ``stored`` is uint8 or the float8 dtype of ``kv_format`` (FP16: float16). NaN stays NaN, signed zeros are kept.
    """
    codes = stored_codes(stored, kv_format)
    return _decode_table(kv_format).to(stored.device)[codes]


@cache
def _rounding_boundaries(kv_format: str) -> Tensor:
    """Midpoints of neighbouring magnitudes: code ``c`` is nearest between boundaries ``c - 1`` and ``c``."""
    layout = layout_of(kv_format)
    magnitudes = [value for code in range(layout.sign_code) if math.isfinite(value := decode_code(code, kv_format))]
    if layout.has_infinity:
        # IEEE 754 overflow: infinity takes the place of the next value as if the exponent range went on.
        magnitudes.append(2 * magnitudes[-1] - magnitudes[-2])
    values = torch.tensor(magnitudes, dtype=torch.float64)
    return (values[:-1] + values[1:]) / 2  # exact: neighbours differ in the last bit of a short mantissa


def round_to_codes(x: Tensor, kv_format: str, negative: Tensor | None = None) -> Tensor:
    """Round numbers to the nearest code, ties to the even code; int64 codes in the shape of ``x``.

    ``x`` is float16, float32 or float64 and is taken exactly: there is one rounding, never two. E4M3
    saturates to ±448 (infinities too); E5M2 and FP16 overflow to infinity. A NaN gives the format's quiet NaN
    (0x7F, 0x7E, 0x7E00). The sign is that of ``x``, or ``negative`` where the caller knows it better.
    """
    require_dtype("x", x, FLOATS)
    layout = layout_of(kv_format)
    magnitude = x.to(torch.float64).abs().contiguous()
    boundaries = _rounding_boundaries(kv_format).to(x.device)
    # The searches agree except on a midpoint, where they give its two neighbours: exactly one is even.
    low = torch.bucketize(magnitude, boundaries, right=False)
    high = torch.bucketize(magnitude, boundaries, right=True)
    codes = torch.where(low % 2 == 0, low, high)
    codes = torch.where(x.isnan(), layout.nan_code, codes)
    return torch.where(sign_bits(x) if negative is None else negative, codes + layout.sign_code, codes)


def encode(x: Tensor, kv_format: str) -> Tensor:
    """Round to ``e4m3`` or ``e5m2`` bytes (uint8, shape of ``x``) by the rules of :func:`round_to_codes`."""
    if kv_format == "fp16":
        raise refusal("kv_format", repr(kv_format), "'e4m3' or 'e5m2' (use round_to_fp16 for FP16)")
    return round_to_codes(x, kv_format).to(torch.uint8)


def round_to_fp16(x: Tensor, negative: Tensor | None = None) -> Tensor:
    """Round float16/32/64 to float16 once, to nearest even; NaN becomes 0x7E00 with the sign of the input.

    ``negative`` is as in :func:`round_to_codes`. The table of FP16 values does it, because torch converts
    float64 to float16 through float32, which rounds twice and moves midpoints.
    """
    return round_to_codes(x, "fp16", negative).to(torch.int16).view(torch.float16)


def quantize(x: Tensor, scale: Scale, kv_format: str, argument: str = "scale") -> Tensor:
    """Apply the write contract ``rne_format(float32(x / scale))``, uint8 for FP8, float16 for FP16 pages.

    ``x`` is float16 or float32; ``scale`` is positive and finite in FP32. Two roundings by definition: one
    FP32 division, then one to the format.
    """
    require_dtype("x", x, (torch.float16, torch.float32))
    # A float64 quotient of FP32 numbers, rounded again to FP32, is the correctly rounded FP32 quotient
    # (53 >= 2 * 24 + 2, Figueroa 1995). Spelled so because tensor / number may multiply by a reciprocal.
    divisor = torch.tensor(fp32_scale(argument, scale), dtype=torch.float64, device=x.device)
    quotient = (x.to(torch.float64) / divisor).to(torch.float32)
    if kv_format == "fp16":
        return round_to_fp16(quotient, sign_bits(x))
    return round_to_codes(quotient, kv_format, sign_bits(x)).to(torch.uint8)


def dequantize(stored: Tensor, scale: Scale, kv_format: str, argument: str = "scale") -> Tensor:
    """Return the exact real value ``decode(stored) * float32(scale)``, float64: what attention is defined on.

    At most 11 + 24 significant bits, so the float64 product does not round.
    """
    return decode(stored, kv_format) * fp32_scale(argument, scale)


@lru_cache(maxsize=16)
def _read_table(kv_format: str, scale: float) -> Tensor:
    """Return what the read contract makes of every code under an FP32 scale, float16."""
    product = (_decode_table(kv_format) * scale).to(torch.float32)
    negative = torch.arange(product.numel()) >= layout_of(kv_format).sign_code
    return round_to_fp16(product, negative)


def dequantize_fp16(stored: Tensor, scale: Scale, kv_format: str, argument: str = "scale") -> Tensor:
    """Apply the read contract of the gather, ``rne_fp16(float32(decode(stored) * scale))``, float16.

    Exact for unit scale. NaN stays NaN; its payload is 0x7E00 with the stored sign, which is this oracle's
    choice.
    """
    codes = stored_codes(stored, kv_format)
    return _read_table(kv_format, fp32_scale(argument, scale)).to(stored.device)[codes]
