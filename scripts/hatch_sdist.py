"""Build hook of the sdist: records the commit, because an unpacked sdist has no git to ask."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class SourceRecordHook(BuildHookInterface):
    """Adds source.json, which sm70_kernels.build.manifest reads where there is no git checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the record among the intermediate files and have it included."""
        sys.path.insert(0, str(Path(self.root)))
        from sm70_kernels.build.manifest import SOURCE_RECORD, source_record

        root = Path(self.root)
        path = root / "build" / SOURCE_RECORD
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(source_record(root), indent=1, sort_keys=True) + "\n")
        build_data["force_include"][str(path)] = SOURCE_RECORD
