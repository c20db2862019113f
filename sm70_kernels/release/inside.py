"""What a wheel holds about itself: the provenance of its libraries, and the bill of materials (PEP 770).

The build hook (scripts/hatch_build.py) puts both in, whatever frontend runs it. A wheel can't name its own hash, so the
subjects of this statement are the libraries; the one that dist writes beside the wheel names the archives as well.
"""

from __future__ import annotations

import json
from pathlib import Path

from sm70_kernels import __version__
from sm70_kernels.build.manifest import source_record
from sm70_kernels.build.settings import LIBRARY_FOLDER, PACKAGE, ROOT
from sm70_kernels.release import provenance, sbom, tools

#: The build hook is the builder, whatever the machine: the bytes do not depend on it.
BUILDER = "urn:sm70-kernels:builder:wheel-hook:1"

#: Names in the wheel.
STATEMENT = f"{PACKAGE.name}/{LIBRARY_FOLDER}/provenance.json"
BILL = f"{PACKAGE.name}-{__version__}.dist-info/sboms/sm70-kernels.cdx.json"


def epoch() -> int:
    """The commit's time, which archive members and the bill of materials carry."""
    return int(source_record(ROOT)["commit_time"] or tools.DEFAULT_EPOCH)


def records(manifest: Path) -> dict[str, str]:
    """Name in the wheel -> text, for a build manifest."""
    statement = provenance.statement(json.loads(manifest.read_text()), manifest, [], BUILDER)
    return {
        STATEMENT: tools.json_text(statement),
        BILL: tools.json_text(sbom.document(tools.find_uv(), epoch())),
    }


def write(manifest: Path) -> tuple[Path, Path]:
    """Write both among the intermediate files; returns the paths of statement and bill."""
    folder = ROOT / "build" / "release"
    folder.mkdir(parents=True, exist_ok=True)
    texts = records(manifest)
    paths = folder / Path(STATEMENT).name, folder / Path(BILL).name
    for path, name in zip(paths, (STATEMENT, BILL), strict=True):
        path.write_text(texts[name])
    return paths
