"""Code in a Python of its own, where a trap may end the context and nothing was loaded before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    """Code in a fresh Python with the package on its path."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, **environment}
    command = [sys.executable, "-c", code]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
