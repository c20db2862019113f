"""Files against a list of sums in the format of sha256sum(1): what is wrong with which file, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from sm70_kernels.build.manifest import sha256
from sm70_kernels.evidence.runs.schema import SUMS, EvidenceError, Record

_LINE = re.compile(r"([0-9a-f]{64})  ([^\r\n]+)")

#: Beside the run folders: the sums of the SHA256SUMS of every committed run.
INDEX = "INDEX"


class Finding(Record, kw_only=True, frozen=True):
    """Something that is not as its list says. ``path`` names the file or folder."""

    path: str
    what: str


def parse(text: str) -> tuple[dict[str, str], list[str]]:
    """File -> SHA-256, and what is wrong with the list itself: strict, so that no byte can change unseen."""
    found: dict[str, str] = {}
    wrong = [] if text.endswith("\n") else ["the last line is cut off"]
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        match = _LINE.fullmatch(line)
        name = match.group(2) if match else ""
        if match is None or name.startswith("/") or ".." in name.split("/"):
            wrong.append(f"line {number} is not '<SHA-256>  <file>'")
        elif name in found:
            wrong.append(f"line {number} names {name} a second time")
        else:
            found[name] = match.group(1)
    return found, wrong


def _text(path: Path) -> str:
    """Raises EvidenceError where there is nothing to read."""
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise EvidenceError(f"{path.name} is missing") from error
    except UnicodeDecodeError as error:
        raise EvidenceError(f"{path.name} is no text ({error.reason} at byte {error.start})") from error


def check(folder: Path, listed: str = SUMS) -> Iterator[Finding]:
    """Every file under a folder against the folder's list: changed, missing, not listed, or no plain file."""
    try:
        wanted, wrong = parse(_text(folder / listed))
    except EvidenceError as error:
        yield Finding(path=f"{folder.name}/{listed}", what=f"{error}: the folder can't be vouched for")
        return
    for sentence in wrong:
        yield Finding(path=f"{folder.name}/{listed}", what=sentence)
    present = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if not _is_folder(path)}
    for name, digest in sorted(wanted.items()):
        path = present.pop(name, None)
        if path is None:
            yield Finding(path=f"{folder.name}/{name}", what=f"is missing, {listed} names it")
        elif path.is_symlink() or not path.is_file():
            yield Finding(path=f"{folder.name}/{name}", what="is no plain file")
        elif (found := sha256(path)) != digest:
            what = f"has SHA-256 {found[:12]}…, {listed} says {digest[:12]}…: one of the two was changed"
            yield Finding(path=f"{folder.name}/{name}", what=what)
    for name in sorted(present.keys() - {listed}):
        yield Finding(path=f"{folder.name}/{name}", what=f"is not in {listed}: it was added or renamed")


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def read_index(results: Path) -> tuple[dict[str, str], list[Finding]]:
    """Committed run folder -> SHA-256 of its SHA256SUMS. Without an index there are none."""
    path = results / INDEX
    if not path.is_file():
        return {}, []
    try:
        listed, wrong = parse(_text(path))
    except EvidenceError as error:
        return {}, [Finding(path=INDEX, what=str(error))]
    findings = [Finding(path=INDEX, what=sentence) for sentence in wrong]
    suffix = f"/{SUMS}"
    findings += [
        Finding(path=INDEX, what=f"names {name}, which is no run's {SUMS}")
        for name in sorted(listed)
        if not name.endswith(suffix) or name.count("/") != 1
    ]
    return {name.removesuffix(suffix): digest for name, digest in listed.items() if name.endswith(suffix)}, findings


def write_index(results: Path, folders: Callable[[], list[Path]]) -> None:
    """Add run folders to the index. An entry is never changed: raises EvidenceError when a run is not what it was."""
    listed, wrong = read_index(results)
    if wrong:
        raise EvidenceError(f"{INDEX} {wrong[0].what}. Restore it from git")
    for folder in folders():
        digest = sha256(folder / SUMS)
        if listed.setdefault(folder.name, digest) != digest:
            raise EvidenceError(f"{folder.name} is not the run that {INDEX} lists. Restore it from git")
    text = "".join(f"{digest}  {name}/{SUMS}\n" for name, digest in sorted(listed.items()))
    (results / INDEX).write_text(text)
