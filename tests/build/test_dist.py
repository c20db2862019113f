"""A release: what is in it, that it is the same bytes again, and that its sdist builds without git."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from sm70_kernels import __version__
from sm70_kernels.build import manifest, settings
from sm70_kernels.evidence.integrity import artifacts
from sm70_kernels.release import dist, inside, provenance, tools

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
WHEEL = f"sm70_kernels-{__version__}-{PYTHON}-{PYTHON}-linux_x86_64"
SDIST = f"sm70_kernels-{__version__}"


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The built package and its manifest, in the place of this checkout."""
    root = tmp_path / "checkout"
    (root / "sm70_kernels").mkdir(parents=True)
    shutil.copytree(ROOT / "sm70_kernels" / "lib", root / "sm70_kernels" / "lib")
    for path in (ROOT / "sm70_kernels").glob("*.so"):
        shutil.copy(path, root / "sm70_kernels")
    monkeypatch.setattr(dist, "ROOT", root)
    return root


def pack(root: Path, wheel: Path, **changed: bytes | None) -> Path:
    """A wheel of the checkout's built files; ``changed`` replaces or leaves out a file by its stem."""
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(root.rglob("*")):
            content = changed.get(path.name.split(".")[0], b"")
            if path.is_file() and content is not None:
                archive.writestr(str(path.relative_to(root)), content or path.read_bytes())
    return wheel


def test_a_wheel_with_other_files_than_the_manifests_is_refused(checkout: Path, tmp_path: Path) -> None:
    path = checkout / "sm70_kernels" / "lib" / "manifest.json"
    wheel = tmp_path / "x.whl"
    dist.check_wheel(pack(checkout, wheel), path, {})
    for name in ("libsm70_kv_cache", "libsm70_emulator", "_emulator", "manifest"):
        with pytest.raises(settings.BuildError, match=f"got no sm70_kernels/.*{name}.*want it inside"):
            dist.check_wheel(pack(checkout, wheel, **{name: None}), path, {})
        with pytest.raises(settings.BuildError, match=f"{name}.* differs from the one built in place"):
            dist.check_wheel(pack(checkout, wheel, **{name: b"other"}), path, {})
    (checkout / "sm70_kernels" / "lib" / "libsm70_stranger.so").touch()
    with pytest.raises(settings.BuildError, match="want only libraries of the manifest"):
        dist.check_wheel(pack(checkout, wheel), path, {})


def test_a_wheel_without_the_records_of_its_build_is_refused(checkout: Path, tmp_path: Path) -> None:
    path = checkout / "sm70_kernels" / "lib" / "manifest.json"
    (checkout / "bill.json").write_text("of this build")
    wheel = pack(checkout, tmp_path / "x.whl")
    dist.check_wheel(wheel, path, {"bill.json": "of this build"})
    for name, text in (("bill.json", "of another build"), ("missing.json", "")):
        with pytest.raises(settings.BuildError, match=f"got no {name} of this build, want it inside"):
            dist.check_wheel(wheel, path, {name: text})


def test_an_earlier_release_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    made, output = tmp_path / "made", tmp_path / "dist"
    made.mkdir()
    for name in ("one.whl", "two.whl"):
        for path in made.iterdir():
            path.unlink()
        (made / name).write_text(name)
        dist.write_sums(made)
        dist.replace(made, output)
        assert {path.name for path in output.iterdir()} == {name, dist.SUMS}
    check = subprocess.run(["sha256sum", "--check", dist.SUMS], cwd=output, capture_output=True, text=True)
    assert check.returncode == 0 and check.stdout == "two.whl: OK\n"
    (output / "mine").touch()
    with pytest.raises(settings.BuildError, match=r"got \['mine'\], want only files of an earlier release"):
        dist.replace(made, output)
    assert (output / "two.whl").exists()


def release(checkout: Path, output: Path) -> dict[str, bytes]:
    """The files of a release made in another checkout."""
    command = [sys.executable, "-m", "sm70_kernels.release.dist", "--dirty", "--output", output]
    done = subprocess.run(command, cwd=checkout, env=tools.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: path.read_bytes() for path in output.iterdir()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sdist_builds_to_the_same_release_without_git(tmp_path: Path) -> None:
    built: dict[str, Any] = json.loads((ROOT / "sm70_kernels" / "lib" / "manifest.json").read_text())
    libraries = {entry["path"]: (ROOT / entry["path"]).read_bytes() for entry in provenance.built_files(built)}
    record = manifest.source_record(ROOT)
    epoch = str(record["commit_time"] or tools.DEFAULT_EPOCH)
    variables = tools.environment(SOURCE_DATE_EPOCH=epoch)
    tools.run([sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path], ROOT, variables)
    with tarfile.open(tmp_path / f"{SDIST}.tar.gz") as archive:
        names = archive.getnames()
        archive.extractall(tmp_path, filter="data")
    assert not [name for name in names if name.endswith((".so", ".o", ".pyc", "manifest.json"))]
    unpacked = tmp_path / SDIST
    assert manifest.source_record(unpacked) == record
    stale = [name for name, digest in built["sources"].items() if manifest.sha256(unpacked / name) != digest]
    assert not stale, f"got sources that changed since the build: {stale}. Run scripts/nox -s build"

    # By a standard frontend, in an environment that has the pinned build requirements.
    frontend = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, unpacked]
    tools.run(frontend, tmp_path, variables)
    with zipfile.ZipFile(tmp_path / f"{WHEEL}.whl") as wheel:
        within: dict[str, Any] = json.loads(wheel.read("sm70_kernels/lib/manifest.json"))
        for name, content in libraries.items():
            assert hashlib.sha256(wheel.read(name)).digest() == hashlib.sha256(content).digest(), name
        tag = wheel.read(f"{SDIST}.dist-info/WHEEL").decode()
        statement, bill = wheel.read(inside.STATEMENT), wheel.read(inside.BILL)
        listed = wheel.read(f"{SDIST}.dist-info/RECORD").decode()
    assert f"{inside.STATEMENT},sha256=" in listed and f"{inside.BILL},sha256=" in listed
    assert f"Tag: {PYTHON}-{PYTHON}-linux_x86_64\n" in tag and "Root-Is-Purelib: false" in tag
    assert json.loads(statement)["predicate"]["runDetails"]["builder"]["id"] == inside.BUILDER
    subjects = {each["name"]: each["digest"]["sha256"] for each in json.loads(statement)["subject"]}
    assert subjects == {name: hashlib.sha256(content).hexdigest() for name, content in libraries.items()}
    assert (within["commit"], within["dirty"]) == (record["commit"], record["dirty"])
    for name in ("operators", "emulator", "interpreter_module", "sources"):
        assert within[name] == built[name], name

    if record["commit"] is None:
        return
    first = release(unpacked, tmp_path / "first")
    assert set(first) == {
        f"{WHEEL}.whl",
        f"{WHEEL}.manifest.json",
        f"{WHEEL}.provenance.json",
        f"{SDIST}.tar.gz",
        f"{SDIST}.cdx.json",
        dist.SUMS,
    }
    for name in (f"{WHEEL}.whl", f"{SDIST}.tar.gz"):
        assert first[name] == (tmp_path / name).read_bytes(), f"{name} differs between two ways to build it"
    assert first[f"{SDIST}.cdx.json"] == bill
    assert list(artifacts.check(tmp_path / "first")) == []
    for path in unpacked.rglob("*"):
        os.utime(path, follow_symlinks=False)  # another day
    assert release(unpacked, tmp_path / "second") == first
