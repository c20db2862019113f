"""Finds compute-sanitizer and runs programs under its tools."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels.evidence import processes
from sm70_kernels.evidence.memcheck import ERROR_EXIT_CODE, Tool
from sm70_kernels.evidence.schema import EvidenceError

_DISTRIBUTION = "nvidia-cuda-sanitizer-api-cu12"


@dataclass(frozen=True)
class Sanitizer:
    """A launcher that can be started, and what the run's manifest says of it."""

    launcher: Path
    injection: Path | None
    source: str

    def run(
        self, tool: Tool, log: Path, command: Sequence[str | Path], root: Path, timeout_seconds: float
    ) -> int | None:
        """Run a command under a tool, whose own words go to ``log``. Returns the exit code, None after the time-out."""
        options = ["--tool", tool.name, *tool.options, "--error-exitcode", str(ERROR_EXIT_CODE), "--log-file", str(log)]
        if self.injection is not None:
            options += ["--injection-path", str(self.injection)]
        # torch's caching allocator hands out parts of large blocks: an overrun would stay inside and unseen.
        return processes.run(
            [self.launcher, *options, *command],
            cwd=root,
            variables={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            timeout_seconds=timeout_seconds,
        )


def _version(launcher: Path) -> str:
    output = subprocess.run([str(launcher), "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Version (\S+)", output)
    return found.group(1) if found else "unknown version"


def find(scratch: Path) -> Sanitizer:
    """The locked wheel's compute-sanitizer, else the one on PATH. Raises EvidenceError when there is neither.

    The wheel installs its launcher without the execute permission, and an image's environment may be read-only, so the
    launcher is copied into ``scratch``, a folder that must outlive the sanitizer.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in spec.submodule_search_locations or [] if spec else []:
        package = Path(folder) / "cuda_sanitizer_api"
        packed = package / "bin" / "compute-sanitizer"
        if packed.is_file():
            launcher = scratch / packed.name
            shutil.copyfile(packed, launcher)
            launcher.chmod(0o755)
            return Sanitizer(launcher, package / "lib", f"wheel {_DISTRIBUTION}, {_version(launcher)}")
    on_path = shutil.which("compute-sanitizer")
    if on_path is None:
        raise EvidenceError(
            f"compute-sanitizer was not found, neither in the wheel {_DISTRIBUTION!r} nor on PATH. Run the session "
            "through scripts/nox, or 'uv sync --locked --group test'"
        )
    return Sanitizer(Path(os.path.realpath(on_path)), None, f"PATH, {_version(Path(on_path))}")
