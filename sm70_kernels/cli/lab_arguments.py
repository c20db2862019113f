"""Arguments of ``sm70-kernels lab run``: scalars with a type, arrays of a shape, type and filling, ``.npy`` files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from sm70_kernels.lab.arguments import aligned
from sm70_kernels.lab.errors import LabError

TYPES: dict[str, type[np.generic]] = {
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
}
FILLINGS = ("zeros", "ones", "arange", "random", "nan", "undefined")
_FORM = re.compile(r"(?P<type>\w+)(?:\[(?P<shape>[\d, x]*)\])?:(?P<value>\S+)")
_NAMED = re.compile(r"(?P<name>[A-Za-z_]\w*)=(?P<spec>.*)", re.DOTALL)
#: Integers that ``random`` draws lie below it.
_RANDOM_INTEGERS = 100


@dataclass(frozen=True)
class NamedArgument:
    """One argument and what the command line calls it."""

    name: str
    value: Any
    undefined: bool = False


def _refuse(spec: str, want: str) -> LabError:
    return LabError(f"--arg: got {spec!r}, want {want}. Write f32:2.0, 'f32[1024]:random', x.npy or null, for instance")


def _number(spec: str, dtype: type[np.generic], text: str) -> Any:
    try:
        if issubclass(dtype, np.integer):
            value = int(text, 0)
            limits = np.iinfo(dtype)
            if not limits.min <= value <= limits.max:
                raise _refuse(spec, f"a number from {limits.min} to {limits.max}")
            return dtype(value)
        return dtype(float(text))
    except ValueError as error:
        if isinstance(error, LabError):
            raise
        what = "a whole number" if issubclass(dtype, np.integer) else "a number"
        raise _refuse(spec, f"{what} in place of {text!r}") from error


def _filled(spec: str, dtype: type[np.generic], shape: tuple[int, ...], filling: str, rng: np.random.Generator) -> Any:
    is_integer = issubclass(dtype, np.integer)
    if filling in ("zeros", "undefined"):
        return np.zeros(shape, dtype)
    if filling == "ones":
        return np.ones(shape, dtype)
    if filling == "arange":
        return np.arange(np.prod(shape, dtype=np.int64)).astype(dtype).reshape(shape)
    if filling == "random":
        return (rng.integers(_RANDOM_INTEGERS, size=shape) if is_integer else rng.standard_normal(shape)).astype(dtype)
    if filling == "nan":
        if is_integer:
            raise _refuse(spec, "a floating-point type with the filling nan")
        return np.full(shape, np.nan, dtype)
    if re.match(r"[-+.\d]", filling):
        return np.full(shape, _number(spec, dtype, filling), dtype)
    raise _refuse(spec, f"a number or one of {', '.join(FILLINGS)} in place of {filling!r}")


def _load(spec: str) -> Any:
    try:
        return aligned(np.ascontiguousarray(np.load(spec, allow_pickle=False)))
    except (OSError, ValueError) as error:
        raise _refuse(spec, f"a .npy file that can be read ({error})") from error


def _value(spec: str, rng: np.random.Generator) -> Any:
    if spec == "null":
        return None
    if spec.endswith(".npy"):
        return _load(spec)
    form = _FORM.fullmatch(spec)
    if form is None:
        raise _refuse(spec, "TYPE:VALUE, TYPE[SHAPE]:FILLING, a .npy file or null")
    dtype = TYPES.get(form["type"])
    if dtype is None:
        raise _refuse(spec, f"one of the types {' '.join(TYPES)} in place of {form['type']!r}")
    if form["shape"] is None:
        return _number(spec, dtype, form["value"])
    sizes = tuple(int(size) for size in re.split(r"[,x ]+", form["shape"].strip(" ,")) if size)
    if not sizes or min(sizes) < 1:
        raise _refuse(spec, "a shape of whole numbers from 1 on, 4,300 for instance")
    return aligned(_filled(spec, dtype, sizes, form["value"], rng))


def parse(specs: Sequence[str], seed: int) -> list[NamedArgument]:
    """The arguments, in order. One without a name is called ``argument`` and its position.

    Raises:
        LabError: an argument is none of the forms, or two have one name.
    """
    rng = np.random.default_rng(seed)
    found: list[NamedArgument] = []
    for position, text in enumerate(specs):
        named = _NAMED.fullmatch(text)
        name, spec = (named["name"], named["spec"]) if named else (f"argument {position}", text)
        if any(argument.name == name for argument in found):
            raise LabError(f"--arg: got the name {name!r} twice. Give every argument a name of its own")
        found.append(NamedArgument(name, _value(spec, rng), spec.endswith(":undefined")))
    return found


def position(option: str, name: str, arguments: Sequence[NamedArgument]) -> int:
    """Where the array with this name is. Raises LabError."""
    for at, argument in enumerate(arguments):
        if argument.name == name and isinstance(argument.value, np.ndarray):
            return at
    known = ", ".join(argument.name for argument in arguments if isinstance(argument.value, np.ndarray)) or "none"
    raise LabError(f"{option}: got {name!r}, want the name of an array, which are {known}. Name it: --arg {name}=SPEC")


def saves(texts: Sequence[str], arguments: Sequence[NamedArgument]) -> list[tuple[int, Path]]:
    """Positions of arrays and where ``--save`` wants them. Raises LabError."""
    found = []
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not path.endswith(".npy"):
            raise LabError(f"--save: got {text!r}, want NAME=FILE.npy. Write --save out=out.npy, for instance")
        if not Path(path).resolve().parent.is_dir():
            raise LabError(f"--save: got {path!r}, whose folder does not exist. Make it first")
        found.append((position("--save", name, arguments), Path(path)))
    return found


def extent(option: str, text: str) -> tuple[int, ...]:
    """``4``, ``4,2`` or ``4x2x1`` as numbers. Raises LabError."""
    try:
        return tuple(int(number) for number in re.split("[,x]", text))
    except ValueError as error:
        raise LabError(f"{option}: got {text!r}, want one to three whole numbers. Write 4 or 4,2,1") from error
