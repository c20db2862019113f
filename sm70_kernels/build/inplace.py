"""Builds everything in the checkout: the code behind ``python -m sm70_kernels.build`` and behind the wheel's hook."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sm70_kernels import _variables
from sm70_kernels.build import graph, manifest, toolchain
from sm70_kernels.build.settings import BUILD, LIBRARY_FOLDER, PACKAGE, ROOT, BuildError, refuse_other_architectures


@contextmanager
def _locked() -> Iterator[None]:
    """One build at a time in a checkout; a second one waits."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another build of this checkout is running: waiting for it", flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _remove_strangers(targets: list[str]) -> None:
    """Remove libraries that this source does not build, such as a removed operator's: nobody must find or ship them."""
    expected = {str(ROOT / target) for target in targets}
    for path in (PACKAGE / LIBRARY_FOLDER).glob("*.so"):
        if str(path) not in expected:
            path.unlink()


def _remove_changed(pairs: dict[str, str]) -> None:
    """Remove installed files that differ from what was linked, damaged ones say: they are then installed again."""
    for installed, linked in pairs.items():
        source, target = ROOT / linked, ROOT / installed
        if source.is_file() and target.is_file() and manifest.sha256(source) != manifest.sha256(target):
            target.unlink()


def build(*, clean: bool = False, jobs: int | None = None) -> Path:
    """Build all operators and the interpreter module in place; returns the manifest's path.

    Ninja rebuilds only what is out of date, so an interrupted build continues where it stopped. Raises BuildError.
    """
    _variables.check()
    refuse_other_architectures()
    tools = toolchain.find()
    with _locked():
        if clean:
            for path in BUILD.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.name != ".lock":
                    path.unlink()
        graph.write(tools)
        files = graph.installed_files(tools)
        _remove_strangers(list(files))
        _remove_changed(files)
        command = [str(tools.ninja), "-f", "build/build.ninja", "-j", str(jobs or os.cpu_count() or 1)]
        # NVRTC takes the working directory from PWD, where a checkout reached through a link has another name.
        environment = {**os.environ, "PWD": str(ROOT)}
        if subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode != 0:
            raise BuildError("the build failed: the first error is above")
        return manifest.write(tools)
