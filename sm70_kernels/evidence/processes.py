"""Child processes of a session: one way to start, wait for and stop them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Seconds that a child gets to end by itself after Ctrl-C or SIGTERM.
_GRACE_SECONDS = 10.0


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
) -> int | None:
    """Run a command with this process's output; returns its exit code, None after the time-out.

    When this process is interrupted, the child is given time to end, as it has got the same Ctrl-C, and then killed.
    """
    environment = {**os.environ, **(variables or {})}
    with subprocess.Popen([str(word) for word in command], cwd=cwd, env=environment) as child:
        try:
            return child.wait(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            return None
        except BaseException:
            child.terminate()
            try:
                child.wait(timeout=_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
            raise
