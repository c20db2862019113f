"""A small checkout with one built operator, on which sessions run in a second: no torch, no compiler, no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels.evidence.runs import schema

LIBRARY = "sm70_kernels/lib/libsm70_fake.so"


@dataclass(frozen=True)
class Tree:
    """The checkout and how to run a session in it."""

    root: Path

    @property
    def results(self) -> Path:
        return self.root / "results"

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "SM70_KERNELS_"))}
        # No GPU, whatever the machine has; and pytest's other plugins take longer to load than these tests to run.
        return kept | {
            "CUDA_VISIBLE_DEVICES": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self.root),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sm70_kernels.evidence", *arguments]

    def session(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.root, env=self.environment(), capture_output=True, text=True, timeout=60
        )

    def run_folder(self) -> Path:
        (folder,) = self.results.iterdir()
        return folder

    def manifest(self) -> schema.Manifest:
        return schema.read(self.run_folder() / schema.MANIFEST, schema.Manifest)
