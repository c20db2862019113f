"""A run folder's life: made when the session starts, says so when it was interrupted, sealed at the end.

The folder's first manifest already says ``fail`` and ``interrupted``, so a killed session can't pass for more than it
was; SHA256SUMS is the last file, so a folder without it is incomplete.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from sm70_kernels.build.manifest import git_state, sha256
from sm70_kernels.build.settings import ROOT
from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.machine import places
from sm70_kernels.evidence.runs.schema import MANIFEST, SUMS, EvidenceError, Manifest, SessionName, Status, write

_INTERRUPTED = "interrupted: the session did not come to its end"


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM stopped the session."""


def _now() -> datetime:
    return datetime.now(UTC)


def _iso(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _commits(session: SessionName, root: Path) -> tuple[str | None, bool | None, str | None]:
    """Commit and dirty flag of the checkout, or of the build where there is no git; and the build's commit."""
    state = git_state(root)
    commit, dirty, build_commit = state["commit"], state["dirty"], None
    # An earlier build says nothing of the one that is about to be made.
    if session != "build":
        try:
            build = built.read(root)
        except EvidenceError:
            return commit, dirty, None
        build_commit = build.commit
        if commit is None:
            commit, dirty = build.commit, build.dirty
    return commit, dirty, build_commit


class RunFolder:
    """An open run folder. Set fields of ``manifest`` through :meth:`update`; :meth:`finish` seals it."""

    def __init__(self, path: Path, manifest: Manifest, names: places.Places) -> None:
        self.path = path
        self.manifest = manifest
        self.places = names
        self.sealed = False

    @classmethod
    def start(cls, session: SessionName, command: Sequence[str], results: Path, root: Path = ROOT) -> RunFolder:
        """Make ``results/<UTC>-<commit7>-<session>``. Of two sessions in one second the later waits for the next.

        Raises EvidenceError when the folder can't be written.
        """
        commit, dirty, build_commit = _commits(session, root)
        names = places.here(root)
        try:
            path, moment = cls._make(results, f"{commit[:7] if commit else 'nogit'}-{session}")
        except OSError as error:
            raise EvidenceError(
                f"--results: got {results}, want a folder that can be written ({error.strerror}). Make it writable, or "
                "name another one with --results"
            ) from error
        manifest = Manifest(
            session=session,
            status="fail",
            reason=_INTERRUPTED,
            commit=commit,
            dirty=dirty,
            build_commit=build_commit,
            command=names.command(command),
            start=_iso(moment),
            end=None,
        )
        write(path / MANIFEST, manifest)
        return cls(path, manifest, names)

    @staticmethod
    def _make(results: Path, name: str) -> tuple[Path, datetime]:
        """Make the folder and those above it."""
        results.mkdir(parents=True, exist_ok=True)
        while True:
            moment = _now()
            path = results / f"{moment:%Y%m%dT%H%M%SZ}-{name}"
            try:
                path.mkdir()
            except FileExistsError:
                time.sleep(0.1)
            else:
                return path, moment

    def update(self, **fields: Any) -> None:
        """Set fields of the manifest; they are written by :meth:`finish`."""
        self.manifest = msgspec.structs.replace(self.manifest, **fields)

    def finish(self, status: Status, reason: str) -> None:
        """Write the manifest and then the sums. The folder does not change afterwards."""
        self.update(status=status, reason=self.places.text(reason), end=_iso(_now()))
        write(self.path / MANIFEST, self.manifest)
        seal(self.path)
        self.sealed = True


def seal(folder: Path) -> None:
    """Write SHA256SUMS over every other file, in the format of sha256sum(1)."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    lines = [f"{sha256(path)}  {path.relative_to(folder)}\n" for path in files]
    temporary = folder / f"{SUMS}.tmp"
    temporary.write_text("".join(lines))
    temporary.replace(folder / SUMS)


def read_sums(folder: Path) -> dict[str, str]:
    """File -> SHA-256 from SHA256SUMS. Raises EvidenceError when the folder is incomplete."""
    path = folder / SUMS
    if not path.is_file():
        raise EvidenceError(f"run {folder.name} has no {SUMS}: the session was killed. Run it again")
    return {name: digest for digest, name in (line.split("  ", 1) for line in path.read_text().splitlines())}


@contextmanager
def recorded(session: SessionName, command: Sequence[str], results: Path, root: Path = ROOT) -> Iterator[RunFolder]:
    """A run folder that is sealed whatever happens, SIGTERM and Ctrl-C included. A body that leaves it open failed."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Interrupted(signal.Signals(number).name)

    folder = RunFolder.start(session, command, results, root)
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield folder
        if not folder.sealed:
            folder.finish("fail", "the session came to its end without a verdict")
    except KeyboardInterrupt as error:
        if not folder.sealed:
            folder.finish("fail", f"interrupted by {error if isinstance(error, Interrupted) else 'Ctrl-C'}")
        raise
    except Exception as error:
        if not folder.sealed:
            folder.finish("fail", f"the session itself failed: {type(error).__name__}: {error}")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
