"""Which tests a session runs: on which device, and whether its arguments choose fewer than its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

#: Options that leave out tests; their value is either attached or the next word.
_NARROWING = ("-k", "-m", "--deselect", "--ignore", "--ignore-glob", "--lf", "--last-failed", "--sw", "--stepwise")
#: A run over one of these folders has all that its session is for.
_WHOLE = {"test": ("tests", "tests/ops"), "memcheck": ("tests", "tests/ops"), "bench": ("benchmarks",)}

#: Kinds of device that an operator test may be for.
TARGETS = GPU, EMULATOR = ("gpu", "emulator")
#: The value of the operator tests' device fixture that is not a GPU.
EMULATED_DEVICE = "emulated V100"
_DEVICE_FIXTURES = ("device", "cuda_device")


def target(parameters: Mapping[str, Any]) -> str | None:
    """What a test with these parameters runs on; None when it asks for no device."""
    devices = [parameters[name] for name in _DEVICE_FIXTURES if name in parameters]
    if not devices:
        return None
    return EMULATOR if EMULATED_DEVICE in devices else GPU


def paths(arguments: Sequence[str], root: Path) -> list[str]:
    """The arguments that name files, folders or tests (``tests/ops/test_x.py::test_y``)."""
    return [word for word in arguments if not word.startswith("-") and (root / word.split("::", 1)[0]).exists()]


def narrows(arguments: Sequence[str], root: Path, session: str = "test") -> bool:
    """Whether the arguments leave out something that the session is for."""
    for word in arguments:
        # -m and -k may have their value attached: -mmemcheck.
        if word.split("=", 1)[0] in _NARROWING or (word[:2] in ("-k", "-m") and not word.startswith("--")):
            return True
    named = paths(arguments, root)
    return bool(named) and not any(word.rstrip("/") in _WHOLE[session] for word in named)
