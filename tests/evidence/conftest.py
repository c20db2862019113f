"""The small checkout as a fixture."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from small_checkout import LIBRARY, Tree

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import PACKAGE
from sm70_kernels.evidence.binaries import built


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
