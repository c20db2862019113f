"""A small checkout with one built operator, on which sessions run in a second: no torch, no compiler, no GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import PACKAGE
from sm70_kernels.evidence import built, schema

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
        # No GPU is visible, whatever the machine has. pytest's other plugins take longer to load than these tests to run.
        return kept | {
            "CUDA_VISIBLE_DEVICES": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(self.root),
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "sm70_kernels.evidence.session", *arguments]

    def session(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments), cwd=self.root, env=self.environment(), capture_output=True, text=True, timeout=60
        )

    def run_folder(self) -> Path:
        (folder,) = self.results.iterdir()
        return folder

    def manifest(self) -> schema.Manifest:
        return schema.read(self.run_folder() / schema.MANIFEST, schema.Manifest)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """A checkout whose one DSO is a copy of a small shared object of the environment."""
    root = tmp_path / "checkout"
    shutil.copytree(PACKAGE, root / PACKAGE.name, ignore=shutil.ignore_patterns("*.so", "lib", "reference", "bench"))
    shutil.rmtree(root / PACKAGE.name / "ops", ignore_errors=True)
    library = root / LIBRARY
    library.parent.mkdir()
    shutil.copyfile(msgspec._core.__file__, library)
    made = Tree(root)
    made.write("csrc/ops/fake/kernel.cu", "// a kernel\n")
    manifest: dict[str, Any] = {
        "commit": "0123456789abcdef0123456789abcdef01234567",
        "dirty": False,
        "operators": {
            "fake": {
                "path": LIBRARY,
                "sha256": sha256(library),
                "cubin_sha256": "c" * 64,
                "ptx_sha256": "d" * 64,
                "capability_revision": 1,
                "kernels": {"fake_copy": {"registers": 32, "shared_bytes": 0}},
            }
        },
        "interpreter_module": {"path": "sm70_kernels/_emulator.so", "sha256": "e" * 64},
        "sources": {"csrc/ops/fake/kernel.cu": sha256(root / "csrc/ops/fake/kernel.cu")},
        "versions": {"gcc": "12.2.0", "nvrtc": "12.8.93"},
    }
    built.manifest_path(root).write_text(json.dumps(manifest))
    return made
