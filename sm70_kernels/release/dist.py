"""``python -m sm70_kernels.release.dist``: everything a release consists of, in dist/.

Wheel, sdist, the build manifest, its provenance statement, the bill of materials, and SHA256SUMS over them. Building
the same commit again gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from sm70_kernels._variables import VariableError
from sm70_kernels.build import inplace
from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import ROOT, BuildError
from sm70_kernels.release import inside, provenance, tools
from sm70_kernels.release.reproduce import require_clean

SUMS = "SHA256SUMS"


def _one(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise BuildError(f"got {[path.name for path in found]} from the build, want exactly one {pattern}")
    return found[0]


def check_wheel(wheel: Path, manifest: Path, records: Mapping[str, str]) -> None:
    """Raise BuildError unless the wheel holds the manifest and every file it names, byte by byte as built in place.

    ``records`` are what it must hold besides: name -> text.
    """
    expected = {str(manifest.relative_to(ROOT)): sha256(manifest)}
    expected |= {entry["path"]: entry["sha256"] for entry in provenance.built_files(json.loads(manifest.read_text()))}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        for name, digest in expected.items():
            if name not in held:
                raise BuildError(
                    f"{wheel.name}: got no {name}, want it inside. Build again with a clean dist/ and build/"
                )
            if archive.read(name) != (ROOT / name).read_bytes() or sha256(ROOT / name) != digest:
                raise BuildError(f"{wheel.name}: {name} differs from the one built in place. Build again")
        for name, text in records.items():
            if name not in held or archive.read(name) != text.encode():
                raise BuildError(f"{wheel.name}: got no {name} of this build, want it inside. Build again")
        libraries = {name for name in held if name.endswith(".so")}
    if strangers := sorted(libraries - set(expected)):
        raise BuildError(
            f"{wheel.name}: got {strangers}, want only libraries of the manifest. Remove them and build again"
        )


def write_sums(folder: Path) -> None:
    """Write SHA256SUMS over every other file of the folder, for ``sha256sum --check``."""
    paths = sorted(path for path in folder.iterdir() if path.name != SUMS)
    (folder / SUMS).write_text("".join(f"{sha256(path)}  {path.name}\n" for path in paths))


def make(folder: Path) -> Path:
    """Write a whole release into an empty folder; returns the wheel."""
    manifest = inplace.build()
    tools.build_archives(Path(sys.executable), ROOT, folder, tools.environment(SOURCE_DATE_EPOCH=str(inside.epoch())))
    wheel, sdist = _one(folder, "*.whl"), _one(folder, "*.tar.gz")
    records = inside.records(manifest)
    check_wheel(wheel, manifest, records)
    shutil.copyfile(manifest, folder / f"{wheel.stem}.manifest.json")
    statement = provenance.statement(json.loads(manifest.read_text()), manifest, [wheel, sdist])
    (folder / f"{wheel.stem}.provenance.json").write_text(tools.json_text(statement))
    (folder / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json").write_text(records[inside.BILL])
    write_sums(folder)
    return wheel


def replace(made: Path, output: Path) -> None:
    """Replace the files of an earlier release by those just made. Refuses a folder that holds anything else."""
    output.mkdir(parents=True, exist_ok=True)
    sums = output / SUMS
    earlier = {line.split("  ", 1)[1] for line in sums.read_text().splitlines()} | {SUMS} if sums.is_file() else set()
    if strangers := sorted(path.name for path in output.iterdir() if path.name not in earlier):
        raise BuildError(f"{output.name}/: got {strangers}, want only files of an earlier release. Move them away")
    for path in output.iterdir():
        path.unlink()
    for path in sorted(made.iterdir()):
        shutil.copyfile(path, output / path.name)


def smoke(wheel: Path, folder: Path) -> str:
    """Install the wheel and its locked dependencies in a new environment and use it there; returns what it printed."""
    uv = tools.find_uv()
    python = folder / "environment" / "bin" / "python"
    requirements = folder / "requirements.txt"
    variables = tools.environment()
    export: list[str | Path] = [uv, "export", "--quiet", "--locked", "--no-default-groups", "--no-emit-project"]
    requirements.write_text(tools.run(export, ROOT))
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--python", python]
    tools.run([uv, "venv", "--quiet", "--python", sys.executable, python.parents[1]], folder, variables)
    tools.run([*install, "--require-hashes", "--requirement", requirements], folder, variables)
    tools.run([*install, "--no-deps", wheel], folder, variables)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    commands: list[list[str | Path]] = [
        [python.with_name("sm70-kernels"), "doctor"],
        [python, "-c", "import sm70_kernels.ops"],
        [python, "-I", ROOT / "scripts" / "smoke_installed.py"],
    ]
    return "".join(tools.run(command, elsewhere, variables) for command in commands)


def main() -> int:
    """Parse the command line and make a release; exit code 1 with a sentence when it fails."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.release.dist", description=__doc__)
    parser.add_argument("--dirty", action="store_true", help="take the working tree as it is; the files say so")
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder to write  [default: dist]")
    parser.add_argument("--smoke", action="store_true", help="install the wheel in a new environment and use it")
    options = parser.parse_args()
    try:
        require_clean(options.dirty)
        with tempfile.TemporaryDirectory(prefix="sm70-dist-") as name:
            made = Path(name).resolve() / "dist"
            made.mkdir()
            wheel = make(made)
            if options.smoke:
                print(smoke(wheel, made.parent), end="")
            replace(made, options.output)
    except (BuildError, VariableError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 1
    print((options.output / SUMS).read_text(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
