"""The emulated V100: operators on CPU tensors run the sm_70 machine code of their cubin.

    with sm70_kernels.lab.emulator.enabled():
        kv_cache.write_paged_kv(k, v, key_cache, value_cache, slots, kv_format="e4m3")  # CPU tensors

The same host code checks the arguments, and the same cubin runs that a V100 would run, instruction by instruction,
with Volta's tensor-core arithmetic. Bounds, alignment and write permission of every access are checked always; a
violation is a RuntimeError that names kernel, instruction, address and buffer. What it covers is in
``docs/emulator.md``. It is slow, and its own times say nothing about a V100: estimates come from
``sm70_kernels.lab.cycle_model``. Without this context, or ``SM70_KERNELS_EMULATE=1``, CPU
tensors are refused.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from sm70_kernels import _native
from sm70_kernels.lab.instruments import Instruments

#: SMs of most V100 boards.
_MULTIPROCESSORS = 80


@dataclass(frozen=True)
class Launch:
    """One emulated launch."""

    kernel: str
    blocks_run: int
    blocks_total: int
    """Blocks of the grid. Where only some ran, the outputs of the others were not written."""
    warp_instructions: int
    seconds: float


@dataclass
class Emulation:
    """What ran inside a context; complete when the context is left."""

    launches: list[Launch] = field(default_factory=list)

    @property
    def warp_instructions(self) -> int:
        """Warp instructions executed, all launches together."""
        return sum(launch.warp_instructions for launch in self.launches)


class _Settings(ctypes.Structure):
    """``sm70_kernels_emulation`` of csrc/runtime/emulation.h."""

    _fields_ = (
        ("struct_bytes", ctypes.c_uint32),
        ("round_to_nearest", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("multiprocessors", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("max_blocks", ctypes.c_uint64),
        ("instruction_limit", ctypes.c_uint64),
        ("instruments", ctypes.c_void_p),
    )


class _Contexts(threading.local):
    """This thread's nested contexts, the innermost last."""

    def __init__(self) -> None:
        self.entered: list[tuple[_Settings, Emulation]] = []


_contexts = _Contexts()


def _collect() -> None:
    """Move the launches since the last change of settings into the innermost context's record."""
    if _contexts.entered:
        for library in _native.loaded().values():
            launches: list[dict[str, Any]] = library.json("sm70_kernels_emulated_launches")
            _contexts.entered[-1][1].launches.extend(Launch(**launch) for launch in launches)


def _apply() -> None:
    """Give the innermost context's settings to every library, or none outside."""
    settings = ctypes.byref(_contexts.entered[-1][0]) if _contexts.entered else None
    for library in _native.loaded().values():
        if library.call("sm70_kernels_emulate", settings) != 0:
            raise _native.LibraryError(
                f"{library.path} and this Python code differ in the emulator's settings. Rebuild"
            )


#: What a setting must lie between, and whether it may be left out as None.
_LIMITS = {
    "seed": (0, 2**64 - 1, False),
    "max_blocks": (1, 2**63, True),
    "threads": (1, 1024, True),
    "multiprocessors": (1, 1024, False),
    "instruction_limit": (1, 2**63, True),
}


def check_settings(where: str, *, tensor_rounding: str, **numbers: int | None) -> None:
    """Raise ValueError if a setting of a launch is out of range; ``where`` is the function that got it."""
    if tensor_rounding not in ("truncate", "nearest"):
        raise ValueError(
            f"{where}: argument 'tensor_rounding': got {tensor_rounding!r}, want 'truncate' or 'nearest'. Pass either"
        )
    for name, value in numbers.items():
        least, most, optional = _LIMITS[name]
        if not (value is None and optional) and not (isinstance(value, int) and least <= value <= most):
            raise ValueError(
                f"{where}: argument {name!r}: got {value!r}, want a whole number from {least} to {most}. "
                "Leave it out for the default"
            )


@contextmanager
def enabled(
    *,
    tensor_rounding: Literal["truncate", "nearest"] = "truncate",
    seed: int = 0,
    max_blocks: int | None = None,
    threads: int | None = None,
    multiprocessors: int = _MULTIPROCESSORS,
    instruction_limit: int | None = None,
    instruments: Instruments | None = None,
) -> Iterator[Emulation]:
    """Switch the emulator on for this thread. Contexts nest; the innermost counts.

    Args:
        tensor_rounding: ``truncate`` is Volta's arithmetic, ``nearest`` shows what truncation does.
        seed: shuffles the order of blocks, warps and their turns, reproducibly; 0 keeps the natural order.
        max_blocks: run at most so many blocks of each grid, evenly spaced; their number is in the record.
        threads: worker threads; one for each processor by default.
        multiprocessors: of the emulated device: 80 on most V100 boards, 72 on some.
        instruction_limit: warp instructions after which a block is taken to hang.
        instruments: watch the launches; an inner context without any is not watched.

    Raises:
        ValueError: an argument is out of range; nothing was switched.
    """
    check_settings(
        "enabled",
        tensor_rounding=tensor_rounding,
        seed=seed,
        max_blocks=max_blocks,
        threads=threads,
        multiprocessors=multiprocessors,
        instruction_limit=instruction_limit,
    )
    import sm70_kernels.ops  # noqa: F401 - the settings go to loaded libraries, so all are loaded

    settings = _Settings(
        struct_bytes=ctypes.sizeof(_Settings),
        round_to_nearest=tensor_rounding == "nearest",
        threads=threads or 0,
        multiprocessors=multiprocessors,
        seed=seed,
        max_blocks=max_blocks or 0,
        instruction_limit=instruction_limit or 0,
        instruments=instruments.handle if instruments is not None else None,
    )
    emulation = Emulation()
    _collect()
    _contexts.entered.append((settings, emulation))
    try:
        _apply()
        yield emulation
    finally:
        _collect()
        _contexts.entered.pop()
        _apply()
