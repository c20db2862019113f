"""Arguments of a launch: packed as the kernel's parameters, with the bounds of the arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sm70_kernels.lab.errors import LabError

if TYPE_CHECKING:
    from torch import Tensor

Array: TypeAlias = "np.ndarray[Any, Any] | Tensor"
#: None is a null pointer; bytes and ctypes structures are passed by value.
Argument: TypeAlias = "Array | np.generic | ctypes.Structure | ctypes.Union | bytes | None"

_POINTER_BYTES = 8


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel. A cubin has its place and its size, not its type."""

    offset: int
    size: int


@dataclass(frozen=True)
class Buffer:
    """Memory of the host that a launch may access."""

    name: str
    address: int
    size: int
    writable: bool
    owner: Any
    """Keeps the memory alive."""
    position: int | None = None
    """Of the argument that it is; None for one that is only reachable."""

    def view(self) -> np.ndarray[Any, Any]:
        """Its bytes."""
        return np.ctypeslib.as_array((ctypes.c_uint8 * self.size).from_address(self.address))


@dataclass(frozen=True)
class Packed:
    """A launch's parameter bytes and the memory that it may access."""

    parameters: bytes
    buffers: tuple[Buffer, ...]

    def for_emulator(self) -> list[tuple[str, tuple[int, int], bool]]:
        """The buffers as the emulator takes them."""
        return [(buffer.name, (buffer.address, buffer.size), buffer.writable) for buffer in self.buffers]


@dataclass(frozen=True)
class Named:
    """The arguments of a launch in order, and what reports and refusals call them."""

    names: tuple[str, ...]
    values: tuple[Argument, ...]

    @classmethod
    def of(cls, args: Sequence[Argument] | Mapping[str, Argument]) -> Named:
        """Of a mapping by its keys, of a sequence by position."""
        if isinstance(args, Mapping):
            return cls(tuple(args), tuple(args.values()))
        return cls(tuple(f"argument {place}" for place in range(len(args))), tuple(args))

    def positions(self, option: str, places: Collection[int | str]) -> frozenset[int]:
        """Positions of the arrays that an option names. Raises LabError."""
        found = set()
        for place in places:
            at = self.names.index(place) if place in self.names else place
            arrays = {at: name for at, name in enumerate(self.names) if is_array(self.values[at])}
            if at not in arrays:
                raise LabError(
                    f"launch: argument {option!r}: got {place!r}, want arrays of 'args' by name, or by position from 0 "
                    f"on: {', '.join(arrays.values()) or 'there are none'}. Name one of them"
                )
            found.add(int(at))
        return frozenset(found)


def is_array(value: object) -> bool:
    """Whether a value is passed as a pointer with bounds: a numpy array or a torch tensor."""
    return isinstance(value, np.ndarray) or (hasattr(value, "data_ptr") and hasattr(value, "is_contiguous"))


def _extent(value: Any, what: str) -> tuple[int, int, bool]:
    """Address, bytes and whether the host may write it."""
    if isinstance(value, np.ndarray):
        if not value.flags.c_contiguous:
            raise LabError(
                f"{what}: got an array with strides {value.strides}, want a contiguous one. "
                "Pass numpy.ascontiguousarray(x)"
            )
        return value.ctypes.data, value.nbytes, bool(value.flags.writeable)
    if value.device.type != "cpu":
        raise LabError(f"{what}: got a tensor on {value.device}, want one on the CPU. Pass x.cpu()")
    if not value.is_contiguous():
        raise LabError(
            f"{what}: got a tensor with strides {tuple(value.stride())}, want a contiguous one. Pass x.contiguous()"
        )
    return value.data_ptr(), value.numel() * value.element_size(), True


def _by_value(value: Any, what: str) -> bytes:
    if isinstance(value, np.generic):
        return value.tobytes()
    if isinstance(value, bytes):
        return value
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return bytes(value)
    if isinstance(value, bool | int | float):
        example = "float32" if isinstance(value, float) else "int32"
        raise LabError(
            f"{what}: got the Python number {value!r}, want one with a type, as a cubin has sizes but no types. "
            f"Pass numpy.{example}({value!r}), for instance"
        )
    raise LabError(
        f"{what}: got {type(value).__name__}, want a numpy array, a torch tensor, a numpy scalar, bytes, "
        "a ctypes structure, or None for a null pointer. Convert it"
    )


def _buffer(value: Array, name: str, *, writable: bool | None = None, position: int | None = None) -> Buffer:
    """An array's bounds. ``writable=None``: as the host may. Raises LabError."""
    address, size, host_writable = _extent(value, f"launch: {name}")
    if writable and not host_writable:
        raise LabError(f"launch: {name}: got a read-only array, want one that can be written. Pass x.copy()")
    allowed = host_writable if writable is None else writable
    return Buffer(name, address, size, allowed, value, position)


def pack(
    kernel: str,
    parameters: Sequence[Parameter],
    arguments: Named,
    *,
    outputs: Collection[int] | None,
    reachable: Sequence[Array],
) -> Packed:
    """Pack arguments by the kernel's parameters.

    Raises:
        LabError: their number or a size is wrong, or an array can't be a buffer.
    """
    if len(arguments.values) != len(parameters):
        sizes = ", ".join(str(parameter.size) for parameter in parameters)
        raise LabError(
            f"launch: argument 'args': got {len(arguments.values)} of them, want {len(parameters)}: {kernel} has "
            f"{f'parameters of {sizes} bytes' if parameters else 'no parameters'}. Pass one per parameter"
        )
    blob = bytearray(max((parameter.offset + parameter.size for parameter in parameters), default=0))
    buffers = []
    for place, (parameter, value) in enumerate(zip(parameters, arguments.values, strict=True)):
        what = arguments.names[place]
        if is_array(value):
            writable = None if outputs is None else place in outputs
            found = _buffer(value, what, writable=writable, position=place)  # type: ignore[arg-type]
            data = found.address.to_bytes(_POINTER_BYTES, "little")
            buffers.append(found)
        elif value is None:
            data = bytes(_POINTER_BYTES)
        else:
            data = _by_value(value, f"launch: {what}")
        if len(data) != parameter.size:
            got = f"{'a pointer' if is_array(value) or value is None else type(value).__name__} of {len(data)} bytes"
            raise LabError(
                f"launch: {what}: got {got}, want {parameter.size} bytes, as {kernel} declares. "
                "Pass a value of the parameter's type"
            )
        blob[parameter.offset : parameter.offset + parameter.size] = data
    buffers += [_buffer(value, f"reachable {place}") for place, value in enumerate(reachable)]
    return Packed(bytes(blob), tuple(found for found in buffers if found.size))


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy at an address that is a multiple of 512, as CUDA's allocators give.

    numpy aligns to 16 bytes, which shifts an array against the sectors and lines that statistics and estimates count.
    """
    storage = np.empty(array.nbytes + 512, np.uint8)
    start = -storage.ctypes.data % 512
    copied: np.ndarray[Any, Any] = storage[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copied[...] = array
    return copied
