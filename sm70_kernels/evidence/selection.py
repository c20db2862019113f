"""Whether pytest arguments choose fewer tests than a session's own: such a run validates nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

#: Options that leave out tests; their value is either attached or the next word.
_NARROWING = ("-k", "-m", "--deselect", "--ignore", "--ignore-glob", "--lf", "--last-failed", "--sw", "--stepwise")
#: A run over one of these folders has all that its session is for.
_WHOLE = {"test": ("tests", "tests/ops"), "memcheck": ("tests", "tests/ops"), "bench": ("benchmarks",)}


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
