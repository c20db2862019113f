"""The bill of materials: the locked run-time dependencies with the hashes of their files, as CycloneDX 1.5.

uv writes it from uv.lock. Its serial number and time, which are new in every run, are replaced by ones that depend on
the content and the commit only.
"""

from __future__ import annotations

import json
import sys
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sm70_kernels.build.settings import ROOT, BuildError
from sm70_kernels.release import tools


def document(uv: Path, epoch: int) -> dict[str, Any]:
    """The bill of materials of this checkout's lock file."""
    command: list[str | Path] = [uv, "export", "--quiet", "--offline", "--locked", "--no-default-groups"]
    command += ["--python", sys.executable, "--format", "cyclonedx1.5", "--preview-features", "sbom-export"]
    return normalized(json.loads(tools.run(command, ROOT)), epoch)


def normalized(bill: dict[str, Any], epoch: int) -> dict[str, Any]:
    """The bill with a serial number made from its content and the given time. Every component must have a hash."""
    bare = [
        component["name"]
        for component in bill["components"]
        if not any(reference.get("hashes") for reference in component.get("externalReferences", []))
    ]
    if bare or not bill["components"]:
        raise BuildError(
            f"bill of materials: got no file hash for {bare or 'any component'}, want one each: run 'uv lock'"
        )
    metadata = {**bill["metadata"], "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    fixed = {**bill, "metadata": metadata, "serialNumber": ""}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(fixed, sort_keys=True))
    return {**fixed, "serialNumber": f"urn:uuid:{serial}"}
