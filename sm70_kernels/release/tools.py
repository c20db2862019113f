"""What the release commands share: where uv is, how a command is run, and the time that archives carry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sm70_kernels.build.settings import BuildError

#: Time of archive members when no commit is known: hatchling's own, 2020-02-02.
DEFAULT_EPOCH = 1580601600

#: Variables through which another checkout or environment could take part.
_UNWANTED = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")


def find_uv() -> Path:
    """The environment's own uv, or that on the path."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.is_file() else shutil.which("uv")
    if found is None:
        raise BuildError(
            "uv was not found: want it in the environment. Run this through scripts/nox, which installs it"
        )
    return Path(found)


def json_text(content: dict[str, Any]) -> str:
    """JSON as in every file of a release: the same content gives the same bytes."""
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def environment(**changes: str) -> dict[str, str]:
    """The variables of this process without those that name another checkout or environment, and with ``changes``."""
    kept = {name: value for name, value in os.environ.items() if name not in _UNWANTED}
    return {**kept, "UV_PYTHON_DOWNLOADS": "never", **changes}


def run(
    command: Sequence[str | Path], folder: Path, variables: Mapping[str, str] | None = None, umask: int = -1
) -> str:
    """Run a command and return its standard output. Raises BuildError with all of its output when it fails."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=dict(variables or environment()),
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        words = " ".join(map(str, command))
        raise BuildError(f"got exit code {done.returncode}, want 0, from: {words}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def build_archives(python: Path, checkout: Path, output: Path, variables: Mapping[str, str], umask: int = -1) -> None:
    """Make wheel and sdist of a checkout in ``output``. The wheel's hook builds the libraries in the checkout first."""
    command: list[str | Path] = [python, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d", output]
    run(command, checkout, variables, umask)
