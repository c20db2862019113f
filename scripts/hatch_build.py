"""Build hook of the wheel: builds the DSOs by the same code as the in-place build, names the wheel's one tag, and adds
what the wheel says about itself: provenance and bill of materials.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SourceBuildHook(BuildHookInterface):
    """Compiles from source before the wheel, editable or not, is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build in place; the files are then taken up as artifacts of the package."""
        sys.path.insert(0, str(Path(self.root)))
        from sm70_kernels.build.inplace import build

        manifest = build()
        # One module is compiled for this interpreter, so the wheel is too. The operator DSOs in it fit any Python.
        python = f"cp{sys.version_info.major}{sys.version_info.minor}"
        build_data["pure_python"] = False
        build_data["tag"] = f"{python}-{python}-linux_x86_64"
        if version == "editable":
            return
        from sm70_kernels.release import inside

        statement, bill = inside.write(manifest)
        build_data["force_include"][str(statement)] = inside.STATEMENT
        build_data["sbom_files"].append(str(bill.relative_to(self.root)))
