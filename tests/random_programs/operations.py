"""The operations of random programs: how each is written in CUDA C++, and what it must compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.random_programs.values import Type


@dataclass(frozen=True)
class Operation:
    """`text` takes the operands as {0}, {1}, ... and a number fixed at compile time, one of `fixed`, as {n}. `compute`
    takes arrays, and that number last."""

    name: str
    group: str
    result: Type
    operands: tuple[Type, ...]
    text: str
    compute: Callable[..., np.ndarray]
    fixed: tuple[int, ...] = ()


class Table:
    """Collects operations."""

    def __init__(self) -> None:
        self.operations: dict[str, Operation] = {}

    def add(
        self, group: str, result: Type, operands: Any, text: str, compute: Callable[..., Any], *, name: str = "",
        fixed: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """One operation, named by its text."""
        operands = operands if isinstance(operands, tuple) else (operands,)
        operation = Operation(name or text, group, result, operands, text, compute, fixed)
        assert operation.name not in self.operations, f"{operation.name} is there already"
        self.operations[operation.name] = operation


def table() -> dict[str, Operation]:
    """Every operation, by name."""
    from tests.random_programs import float_operations, integer_operations

    operations = Table()
    integer_operations.add_all(operations)
    float_operations.add_all(operations)
    return operations.operations
