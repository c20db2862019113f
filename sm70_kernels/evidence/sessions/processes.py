"""Child processes of a session: one way to start, wait for and stop them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

#: Seconds that a child gets to end by itself after Ctrl-C or SIGTERM.
_GRACE_SECONDS = 10.0


def _copy(stream: IO[bytes], log: Path) -> None:
    """Write a child's output to this process's and to a file, line by line."""
    with log.open("wb") as file:
        for line in stream:
            file.write(line)
            file.flush()
            sys.stdout.write(line.decode(errors="replace"))
            sys.stdout.flush()


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path,
    variables: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
    log: Path | None = None,
) -> int | None:
    """Run a command with this process's output; returns its exit code, None after the time-out.

    With ``log`` its output goes there too.

    When this process is interrupted, the child is given time to end, as it has got the same Ctrl-C, and then killed.
    """
    environment = {**os.environ, **(variables or {})}
    output = None if log is None else subprocess.PIPE
    words = [str(word) for word in command]
    with subprocess.Popen(words, cwd=cwd, env=environment, stdout=output, stderr=output and subprocess.STDOUT) as child:
        copier = None
        if log is not None and child.stdout is not None:
            copier = threading.Thread(target=_copy, args=(child.stdout, log), daemon=True)
            copier.start()
        try:
            code = child.wait(timeout=timeout_seconds)
            if copier is not None:
                copier.join(_GRACE_SECONDS)  # a process that the child left behind may hold the pipe
            return code
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
