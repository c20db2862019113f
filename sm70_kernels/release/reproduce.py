"""``python -m sm70_kernels.release.reproduce``: build the commit twice, in unlike places, and compare bytes.

The second checkout lies in a folder of another length, its files carry another day and other permissions, and it is
built by an environment of its own, inside it, in another time zone and locale. Everything that is shipped or recorded
must come out the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels._variables import VariableError
from sm70_kernels.build.manifest import sha256, source_record
from sm70_kernels.build.settings import ROOT, BuildError
from sm70_kernels.release import tools
from sm70_kernels.release.differences import describe

#: What is compared, as patterns in a built checkout.
COMPARED = (
    "sm70_kernels/lib/*",
    "sm70_kernels/_emulator*.so",
    "build/ops/*/kernel.ptx",
    "build/ops/*/kernel.cubin",
    "build/ops/*/kernel.sass",
    "build/test_ops/*/kernel.ptx",
    "build/test_ops/*/kernel.cubin",
    "build/test_ops/*/kernel.sass",
    "build/test_ops/*/*.so",
    "build/release/*",
    "dist/*",
)
ANOTHER_DAY = 1_000_000_000


@dataclass(frozen=True)
class Row:
    """One compared file: its digest in either build, None where it is missing."""

    path: str
    first: str | None
    second: str | None

    @property
    def same(self) -> bool:
        """Whether both builds made the file, with the same bytes."""
        return self.first is not None and self.first == self.second


def compare(first: Path, second: Path) -> list[Row]:
    """Compare what two checkouts hold. Raises BuildError when a pattern finds nothing: then nothing is proven."""
    rows: list[Row] = []
    for pattern in COMPARED:
        names = sorted({str(path.relative_to(side)) for side in (first, second) for path in side.glob(pattern)})
        if not names:
            raise BuildError(
                f"got no file {pattern} in either build, want one at least: the build has changed its places"
            )
        for name in names:
            digests = [sha256(side / name) if (side / name).is_file() else None for side in (first, second)]
            rows.append(Row(name, *digests))
    return rows


def table(rows: list[Row]) -> str:
    """The comparison as text, a line for each digest."""
    lines = [f"{'SAME' if row.same else 'DIFFERENT':9}  {row.first or 'missing':64}  {row.path}" for row in rows]
    for position, row in reversed(list(enumerate(rows))):
        if not row.same:
            lines.insert(position + 1, f"{'':9}  {row.second or 'missing':64}")
    return "\n".join(lines)


def check_out(target: Path, *, dirty: bool, umask: int = -1) -> None:
    """A clone at HEAD, or, for ``dirty``, a copy of the working tree's files without what git ignores."""
    if not dirty:
        tools.run(["git", "clone", "--quiet", ROOT, target], target.parent, umask=umask)
        tools.run(["git", "checkout", "--quiet", "--detach", source_record(ROOT)["commit"]], target, umask=umask)
        return
    listing = tools.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in listing.split("\0"):
        if name and (ROOT / name).is_file() and not name.startswith("results/"):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)


def second_environment(checkout: Path) -> Path:
    """An environment of the locked build packages inside a checkout; returns its interpreter.

    uv's cache is hard-linked, or linked by name where it lies on another file system: no package is stored again.
    """
    uv = tools.find_uv()
    cache = Path(tools.run([uv, "cache", "dir"], checkout).strip())
    while not cache.exists():
        cache = cache.parent
    linked = "hardlink" if cache.stat().st_dev == checkout.stat().st_dev else "symlink"
    command: list[str | Path] = [uv, "sync", "--locked", "--no-install-project", "--group", "build"]
    tools.run(
        [*command, "--link-mode", linked, "--python", sys.executable],
        checkout,
        tools.environment(UV_PROJECT_ENVIRONMENT=str(checkout / ".venv")),
    )
    return checkout / ".venv" / "bin" / "python"


@contextmanager
def _work_folder(keep: bool) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="sm70-reproduce-")).resolve()
    try:
        yield folder
    finally:
        if keep:
            print(f"kept: {folder}")
        else:
            shutil.rmtree(folder)


def _timed(what: str, start: float) -> None:
    print(f"reproduce: {what} ({time.monotonic() - start:.0f} s)", flush=True)


def build_twice(work: Path, *, dirty: bool) -> tuple[Path, Path]:
    """Build in two checkouts under ``work`` with two environments; returns the checkouts."""
    epoch = str(source_record(ROOT)["commit_time"] or tools.DEFAULT_EPOCH)
    start = time.monotonic()
    first = work / "a"
    second = work / "second" / "checkout-with-a-longer-name"
    second.parent.mkdir()
    check_out(first, dirty=dirty)
    check_out(second, dirty=dirty, umask=0o077)
    for path in second.rglob("*"):
        if ".git" not in path.relative_to(second).parts:
            os.utime(path, (ANOTHER_DAY, ANOTHER_DAY), follow_symlinks=False)
    python = second_environment(second)
    _timed("two checkouts, two environments", start)
    tools.build_archives(
        Path(sys.executable), first, first / "dist", tools.environment(SOURCE_DATE_EPOCH=epoch, TZ="UTC", LC_ALL="C")
    )
    _timed("the first is built", start)
    variables = tools.environment(SOURCE_DATE_EPOCH=epoch, TZ="Asia/Kathmandu", LC_ALL="C.UTF-8")
    tools.build_archives(python, second, second / "dist", variables, umask=0o077)
    _timed("the second is built", start)
    return first, second


def require_clean(dirty: bool) -> None:
    """Refuse a tree without a commit, and one that differs from its commit unless ``dirty`` allows it."""
    record = source_record(ROOT)
    if record["commit"] is None:
        raise BuildError("got no git commit, want a checkout: clone the repository and run this there")
    if record["dirty"] and not dirty:
        raise BuildError(
            f"got files that differ from commit {record['commit'][:7]}, want none: the result would belong to no "
            "commit. Commit or stash them ('git status' names them), or add '-- --dirty' to try the working tree"
        )


def main() -> int:
    """Parse the command line, build twice and compare; exit code 1 when anything differs."""
    parser = argparse.ArgumentParser(prog="python -m sm70_kernels.release.reproduce", description=__doc__)
    parser.add_argument("--dirty", action="store_true", help="build the working tree instead of the commit")
    parser.add_argument("--keep", action="store_true", help="keep both checkouts and name their folder")
    options = parser.parse_args()
    try:
        require_clean(options.dirty)
        with _work_folder(options.keep) as work:
            first, second = build_twice(work, dirty=options.dirty)
            rows = compare(first, second)
            print(table(rows))
            different = [row for row in rows if not row.same]
            for row in different:
                if row.first and row.second:
                    print(f"\n{row.path}: {describe(first / row.path, second / row.path)}")
    except (BuildError, VariableError) as error:
        print(f"reproduce: {error}", file=sys.stderr)
        return 1
    print(f"reproduce: {len(rows) - len(different)} of {len(rows)} files are the same")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
