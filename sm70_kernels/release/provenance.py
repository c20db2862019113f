"""The build manifest as an in-toto Statement v1 with SLSA provenance v1, so that existing verifiers can read it.

It holds no time: the same commit gives the same bytes. It is not signed; whoever publishes the files signs it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import ROOT, BuildError
from sm70_kernels.build.toolchain import BUILD_DISTRIBUTIONS

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"

#: docs/build.md says what externalParameters and internalParameters mean.
BUILD_TYPE = "urn:sm70-kernels:build-type:ninja:1"
#: The nox session is the builder, whatever the machine: the bytes do not depend on it.
BUILDER = "urn:sm70-kernels:builder:nox-dist:1"

#: hatchling puts the archives together, uv writes the bill of materials; the others make or link the libraries.
_DISTRIBUTIONS = {*BUILD_DISTRIBUTIONS, "hatchling", "uv"}


def locked_files(lock: Path = ROOT / "uv.lock") -> list[dict[str, Any]]:
    """The wheel of each build distribution that this interpreter gets from the lock, as resource descriptors."""
    rank = {tag: number for number, tag in enumerate(sys_tags())}
    found = []
    for package in tomllib.loads(lock.read_text())["package"]:
        if package["name"] not in _DISTRIBUTIONS:
            continue
        fitting = []
        for wheel in package.get("wheels", []):
            _, _, build, tags = parse_wheel_filename(wheel["url"].rsplit("/", 1)[1])
            fitting += [(-rank[tag], build, wheel["url"], wheel["hash"]) for tag in tags if tag in rank]
        if not fitting:
            raise BuildError(f"{lock.name}: got no wheel of {package['name']} for this Python, want one. Run 'uv lock'")
        *_, url, digest = max(fitting)  # the best tag, and of that the highest build number
        found.append({"name": url.rsplit("/", 1)[1], "uri": url, "digest": {"sha256": digest.removeprefix("sha256:")}})
    return sorted(found, key=lambda descriptor: str(descriptor["name"]))


def built_files(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Entries of the build manifest that are files of the package: operator DSOs, the emulator's, the module."""
    yield from manifest["operators"].values()
    yield manifest["emulator"]
    yield manifest["interpreter_module"]


def _described(path: Path, name: str | None = None) -> dict[str, Any]:
    return {"name": name or path.name, "digest": {"sha256": sha256(path)}}


def statement(
    manifest: dict[str, Any], manifest_file: Path, archives: list[Path], builder: str = BUILDER
) -> dict[str, Any]:
    """The statement about the files of a manifest and the archives that hold them."""
    built = [{"name": entry["path"], "digest": {"sha256": entry["sha256"]}} for entry in built_files(manifest)]
    source = {"name": "source", "digest": {"gitCommit": manifest["commit"]}} if manifest["commit"] else None
    dependencies = [source, _described(ROOT / "uv.lock"), *locked_files()]
    return {
        "_type": STATEMENT_TYPE,
        "subject": [*built, *map(_described, archives)],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"commit": manifest["commit"], "uncommittedChanges": manifest["dirty"]},
                "internalParameters": {
                    "architectures": manifest["architectures"],
                    "packageVersion": manifest["package_version"],
                    "versions": manifest["versions"],
                },
                "resolvedDependencies": [descriptor for descriptor in dependencies if descriptor],
            },
            "runDetails": {
                "builder": {"id": builder},
                "byproducts": [_described(manifest_file, "sm70_kernels/lib/manifest.json")],
            },
        },
    }
