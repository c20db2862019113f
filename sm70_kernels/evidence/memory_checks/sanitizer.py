"""Finds a compute-sanitizer that works and runs programs under its tools."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels.evidence.memory_checks.memcheck import ERROR_EXIT_CODE, Tool
from sm70_kernels.evidence.runs.schema import EvidenceError
from sm70_kernels.evidence.sessions import processes

_TOOLKIT = Path("/usr/local/cuda/bin/compute-sanitizer")
_STARTED = "program started under compute-sanitizer"
_PROBE_SECONDS = 120.0


@dataclass(frozen=True)
class Sanitizer:
    """A launcher, and what the run's manifest says of it."""

    launcher: Path
    source: str

    def starts_programs(self) -> bool:
        """Whether a program under it runs at all."""
        command = [str(self.launcher), "--require-cuda-init=no", sys.executable, "-c", f"print({_STARTED!r})"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return False
        return _STARTED in done.stdout

    def run(
        self, tool: Tool, log: Path, command: Sequence[str | Path], root: Path, timeout_seconds: float
    ) -> int | None:
        """Run a command under a tool, whose output goes to ``log``. Returns the exit code, None after the time-out."""
        # Host backtraces are long and show torch's dispatcher only; the kernel's own lines stay.
        options = [
            "--show-backtrace",
            "device",
            "--tool",
            tool.name,
            *tool.options,
            "--error-exitcode",
            str(ERROR_EXIT_CODE),
            "--log-file",
            str(log),
        ]
        # torch's caching allocator hands out parts of large blocks: an overrun would stay inside and unseen.
        return processes.run(
            [self.launcher, *options, *command],
            cwd=root,
            variables={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            timeout_seconds=timeout_seconds,
        )


def _version(launcher: Path) -> str:
    try:
        output = subprocess.run([str(launcher), "--version"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return "unknown version"
    found = re.search(r"Version (\S+)", output)
    return found.group(1) if found else "unknown version"


def _candidates() -> Iterator[Sanitizer]:
    """The one on PATH, the toolkit's."""
    on_path = shutil.which("compute-sanitizer")
    if on_path is not None:
        yield Sanitizer(Path(os.path.realpath(on_path)), f"PATH, {_version(Path(on_path))}")
    if _TOOLKIT.is_file():
        yield Sanitizer(_TOOLKIT.resolve(), f"CUDA toolkit, {_version(_TOOLKIT)}")


def find() -> Sanitizer:
    """The first compute-sanitizer that starts programs; one without its helpers does not. Raises EvidenceError."""
    tried = []
    for candidate in _candidates():
        if candidate.starts_programs():
            return candidate
        tried.append(candidate.source)
    raise EvidenceError(
        f"no working compute-sanitizer: tried {'; '.join(tried) or 'none, as none was found'}; want one that starts a "
        "program. Install cuda-sanitizer-12-8 from NVIDIA's CUDA 12 repository (CUDA 13's does not list Volta among "
        f"its GPUs), and put it on PATH or in {_TOOLKIT.parent}"
    )
