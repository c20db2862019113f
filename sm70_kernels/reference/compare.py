"""Bitwise comparison of tensors that says where they differ."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

_BITS_DTYPES: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def compare_bitwise(actual: Tensor, expected: Tensor, name: str = "tensor") -> None:
    """Return if both tensors hold the same bits, element by element; raise ``AssertionError`` otherwise.

    NaN payloads and signs of zeros count; strides, storage offsets and devices do not. The message gives the
    number of differing elements and, for the first in row-major order, its coordinate, element index, the
    offset of its first differing byte (in a contiguous little-endian copy) and both values with their bits. A
    different dtype or shape is a difference too.
    """
    for what, got, wanted in (
        ("dtype", actual.dtype, expected.dtype),
        ("shape", list(actual.shape), list(expected.shape)),
    ):
        if got != wanted:
            raise AssertionError(f"{name}: {what} differs: got {got}, expected {wanted}")
    got_bits, wanted_bits = _bits(actual), _bits(expected)
    if torch.equal(got_bits, wanted_bits):
        return
    differing = (got_bits != wanted_bits).nonzero().flatten()
    element = int(differing[0])
    size = actual.element_size()
    got_code, wanted_code = (int(bits[element]) & ((1 << 8 * size) - 1) for bits in (got_bits, wanted_bits))
    changed = got_code ^ wanted_code
    first_byte = ((changed & -changed).bit_length() - 1) // 8  # byte of the lowest differing bit: little-endian first
    coordinate = _coordinate(element, list(actual.shape))
    raise AssertionError(
        f"{name}: {differing.numel()} of {got_bits.numel()} elements differ bitwise ({actual.dtype}, shape"
        f" {list(actual.shape)})\n"
        f"  first at {coordinate}, element {element}, byte {element * size + first_byte}\n"
        f"  actual   {_value(actual, element)} (0x{got_code:0{2 * size}x})\n"
        f"  expected {_value(expected, element)} (0x{wanted_code:0{2 * size}x})"
    )


def _bits(tensor: Tensor) -> Tensor:
    """Return a flat, contiguous CPU view of the elements as integers of the same size."""
    size = tensor.element_size()
    if size not in _BITS_DTYPES:
        raise TypeError(f"compare_bitwise: got dtype {tensor.dtype}; wanted elements of 1, 2, 4 or 8 bytes")
    return tensor.detach().cpu().contiguous().flatten().view(_BITS_DTYPES[size])


def _coordinate(element: int, shape: list[int]) -> list[int]:
    coordinate = []
    for extent in reversed(shape):
        coordinate.append(element % extent)
        element //= extent
    return coordinate[::-1]


def _value(tensor: Tensor, element: int) -> str:
    return repr(tensor.detach().cpu().contiguous().flatten()[element].item())
