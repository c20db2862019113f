"""The types that random programs compute with, and how numpy holds them: an element, or a pair of halves, a thread."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Type:
    """A type of variables. `prefix` starts the names of its variables."""

    name: str
    cuda: str
    dtype: type
    prefix: str

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: object) -> Type:
        return self  # types are compared by identity


BOOL = Type("BOOL", "bool", np.bool_, "p")
U32 = Type("U32", "unsigned", np.uint32, "u")
U64 = Type("U64", "wide", np.uint64, "w")
F32 = Type("F32", "float", np.float32, "f")
H2 = Type("H2", "__half2", np.float16, "h")
TYPES = (BOOL, U32, U64, F32, H2)

CANONICAL_NAN = np.uint32(0x7FFFFFFF)
CANONICAL_HALF_NAN = np.uint16(0x7FFF)


def bits_of(x: np.ndarray) -> np.ndarray:
    """Singles or pairs of halves as words; every NaN the same."""
    if x.dtype == np.float16:
        halves = np.where(np.isnan(x), CANONICAL_HALF_NAN, x.view(np.uint16))
        return np.ascontiguousarray(halves).view(np.uint32)[:, 0]
    return np.where(np.isnan(x), CANONICAL_NAN, x.view(np.uint32))


def pair_from_bits(x: np.ndarray) -> np.ndarray:
    """Words as pairs of halves, the lower first."""
    return np.ascontiguousarray(x, np.uint32).view(np.float16).reshape(-1, 2)


def words(x: np.ndarray, type_: Type) -> list[np.ndarray]:
    """The value as the words that a program writes out, lower first."""
    if type_ is U64:
        return [x.astype(np.uint32), (x >> np.uint64(32)).astype(np.uint32)]
    if type_ in (F32, H2):
        return [bits_of(x)]
    return [x.astype(np.uint32)]


def written(name: str, type_: Type) -> list[str]:
    """CUDA expressions of those words."""
    if type_ is U64:
        return [f"(unsigned){name}", f"(unsigned)({name} >> 32)"]
    if type_ in (F32, H2):
        return [f"bits_of({name})"]
    return [f"(unsigned){name}"]


def select(where: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x where the condition holds, y elsewhere, also for pairs."""
    return np.where(where[:, None] if x.ndim == 2 else where, x, y)
