"""A run folder's life."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from small_checkout import Tree

from sm70_kernels.evidence.runs import run, schema

COMMAND = ["/usr/bin/python3", "-m", "sm70_kernels.evidence", "test"]


def read(folder: Path) -> schema.Manifest:
    return schema.read(folder / schema.MANIFEST, schema.Manifest)


def test_open_folder_says_interrupted_and_has_no_sums(tree: Tree) -> None:
    folder = run.RunFolder.start("test", COMMAND, tree.results, tree.root)
    manifest = read(folder.path)
    assert (manifest.status, manifest.end) == ("fail", None)
    assert manifest.reason.startswith("interrupted")
    with pytest.raises(schema.EvidenceError, match="no SHA256SUMS"):
        run.read_sums(folder.path)


def test_finished_folder_passes_sha256sum(tree: Tree) -> None:
    folder = run.RunFolder.start("test", COMMAND, tree.results, tree.root)
    (folder.path / "memcheck-racecheck.log").write_text("log\n")
    folder.finish("pass", f"read {tree.root}/tests")
    manifest = read(folder.path)
    assert (manifest.status, manifest.reason, manifest.command[0]) == ("pass", "read tests", "python3")
    subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=folder.path, check=True, capture_output=True)
    assert set(run.read_sums(folder.path)) == {"manifest.json", "memcheck-racecheck.log"}


def test_name_has_time_commit_and_session(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_now", lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))
    # No git here: the commit is the build's.
    assert run.RunFolder.start("bench", COMMAND, tree.results, tree.root).path.name == "20260102T030405Z-0123456-bench"
    # A build must not be named after the build before.
    assert run.RunFolder.start("build", COMMAND, tree.results, tree.root).path.name == "20260102T030405Z-nogit-build"


def test_two_sessions_of_one_second_get_two_folders(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter([5, 5, 5, 6, 6, 6])
    monkeypatch.setattr(run, "_now", lambda: datetime(2026, 1, 2, 3, 4, next(seconds), tzinfo=UTC))
    names = [run.RunFolder.start("test", COMMAND, tree.results, tree.root).path.name for _ in range(2)]
    assert names == ["20260102T030405Z-0123456-test", "20260102T030406Z-0123456-test"]


@pytest.mark.parametrize(
    "error,reason",
    [
        (KeyboardInterrupt(), "interrupted by Ctrl-C"),
        (OSError("disk full"), "the session itself failed: OSError: disk full"),
    ],
)
def test_a_broken_session_is_sealed_as_failed(tree: Tree, error: BaseException, reason: str) -> None:
    with pytest.raises(type(error)), run.recorded("test", COMMAND, tree.results, tree.root):
        raise error
    manifest = tree.manifest()
    assert (manifest.status, manifest.reason) == ("fail", reason)
    assert run.read_sums(tree.run_folder())


def test_a_session_without_a_verdict_has_failed(tree: Tree) -> None:
    with run.recorded("test", COMMAND, tree.results, tree.root):
        pass
    assert tree.manifest().status == "fail"


def _wait(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_leaves_a_folder_that_says_so(tree: Tree, number: signal.Signals) -> None:
    tree.write(
        "tests/test_slow.py",
        "import time\nfrom pathlib import Path\n"
        "def test_slow():\n    Path('started').touch()\n    for _ in range(200): time.sleep(0.05)\n",
    )
    with subprocess.Popen(
        tree.command("test"), cwd=tree.root, env=tree.environment(), stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        _wait((tree.root / "started").exists)
        process.send_signal(number)
        process.wait(timeout=30)
    if number == signal.SIGKILL:  # which the session can't pass on to its pytest
        os.killpg(process.pid, signal.SIGKILL)
    manifest = tree.manifest()
    assert manifest.status == "fail"
    assert manifest.reason.startswith("interrupted")
    assert (tree.run_folder() / schema.SUMS).exists() == (number != signal.SIGKILL)
    if number != signal.SIGKILL:
        assert process.returncode == 130
