"""The environment variables of the package: one place that names and reads them.

A value or a name that is not known is an error: a switch that is silently ignored is worse than none.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

PREFIX = "SM70_KERNELS_"

#: Name without prefix -> what it does. Flags take 0 or 1.
FLAGS = {
    "ALLOW_JIT": "run the compute_70 PTX on a GPU that is not a V100 (right results, times that say nothing of V100)",
    "EMULATE": "CPU tensors run the sm_70 machine code on the emulated V100, in the whole process",
    "ALLOW_ANY_GCC": "build with a GCC other than 12; the manifest records it",
    "BAKED_ENVIRONMENT": "the environment is complete (a container image): sessions install nothing",
}
TEXTS = {
    "CXX": "the C++ compiler of the build, g++-12 by default",
}


class VariableError(RuntimeError):
    """An environment variable has an unknown name or value."""


def check(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a variable with the package's prefix that nothing reads, a misspelt one, and a flag with another value.

    Raises:
        VariableError: names the variable, what was got and what is wanted.
    """
    known = {PREFIX + name for name in (*FLAGS, *TEXTS)}
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            raise VariableError(
                f"environment variable {name}: got an unknown name, want one of {', '.join(sorted(known))}. "
                "Correct or unset it"
            )
    for name, effect in FLAGS.items():
        value = environment.get(PREFIX + name, "0")
        if value not in ("0", "1"):
            raise VariableError(
                f"environment variable {PREFIX + name}: got {value!r}, want '0' or '1' ({effect}). Correct or unset it"
            )


def flag(name: str, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the flag is set to 1. Raises VariableError, as :func:`check` does."""
    if name not in FLAGS:
        raise KeyError(name)
    check(environment)
    return environment.get(PREFIX + name) == "1"


def text(name: str, default: str, environment: Mapping[str, str] = os.environ) -> str:
    """The value of a variable that holds text. Raises VariableError, as :func:`check` does."""
    if name not in TEXTS:
        raise KeyError(name)
    check(environment)
    return environment.get(PREFIX + name, default)
