"""scripts/nox on machines that lack something, and its pins."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sm70_kernels.build.settings import ROOT

LAUNCHER = ROOT / "scripts" / "nox"


def test_bootstrap_pins_uv_as_the_lock_does() -> None:
    text = (ROOT / "scripts" / "bootstrap-requirements.txt").read_text()
    (locked,) = (entry for entry in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if entry["name"] == "uv")
    assert re.findall(r"^uv==(\S+)", text, re.MULTILINE) == [locked["version"]]
    assert sorted(re.findall(r"--hash=(\S+)", text)) == sorted(wheel["hash"] for wheel in locked["wheels"])


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with what the launcher itself calls, and nothing else."""
    for tool in ("bash", "cat", "dirname", "env", "mv", "readlink", "sha256sum"):
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / tool).symlink_to(found)
    return tmp_path


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def start(machine: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine), "UV_PROJECT_ENVIRONMENT": str(machine / "environment")} | variables
    return subprocess.run([LAUNCHER, "-s", "test"], env=environment, capture_output=True, text=True, timeout=30)


def test_an_old_python_is_refused(machine: Path) -> None:
    script(machine / "python3", 'if [ "$1" = --version ]; then echo Python 3.9.2; fi; exit 1')
    done = start(machine)
    assert done.returncode == 2
    assert "got Python 3.9.2, want Python 3.11 to 3.14" in done.stderr
    assert not (machine / "environment").exists()


def test_a_missing_compiler_is_refused(machine: Path) -> None:
    script(machine / "python3", f'exec {sys.executable} "$@"')
    done = start(machine)
    assert done.returncode == 2
    assert re.search(r"apt-get install .*\bg\+\+-12\b", done.stderr)
    assert not (machine / "environment").exists()


def test_a_missing_venv_module_is_refused(machine: Path) -> None:
    script(machine / "g++-12", "exit 0")
    script(machine / "python3", f'case "$2" in *ensurepip*) exit 1;; esac; exec {sys.executable} "$@"')
    done = start(machine)
    assert done.returncode == 2
    assert "python3-venv" in done.stderr


def test_a_prepared_environment_starts_nox_at_once(machine: Path) -> None:
    binaries = machine / "environment" / "bin"
    binaries.mkdir(parents=True)
    script(binaries / "nox", 'echo "nox $*"; echo "$UV_PROJECT_ENVIRONMENT"')
    baked = start(machine, SM70_KERNELS_BAKED_ENVIRONMENT="1")
    assert baked.stdout.splitlines() == ["nox -s test", str(machine / "environment")]
    files = ("uv.lock", "pyproject.toml", "scripts/bootstrap-requirements.txt")
    stamp = subprocess.run(
        ["sha256sum"], input=b"".join((ROOT / name).read_bytes() for name in files), capture_output=True, check=True
    ).stdout
    (binaries.parent / ".sm70-kernels-bootstrap").write_bytes(stamp)
    assert start(machine).stdout == baked.stdout


def test_an_interrupted_start_is_repeated(machine: Path) -> None:
    binaries = machine / "environment" / "bin"
    binaries.mkdir(parents=True)
    script(binaries / "nox", "echo nox")
    done = start(machine)  # nox is there, the stamp is not: the start goes through its checks again
    assert done.returncode == 2
    assert "want Python 3.11" in done.stderr
