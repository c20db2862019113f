"""Whether a downloaded set of artifacts hangs together: sums, wheels, what is inside them, the provenance.

Read from the files: nothing is installed, unpacked to disk or loaded. A set whose sums, wheel and provenance were all
replaced consistently is found by its signature or by building the commit again, not here.
"""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from sm70_kernels.build.settings import LIBRARY_FOLDER, MANIFEST_NAME, PACKAGE
from sm70_kernels.evidence.binaries import built, embedded
from sm70_kernels.evidence.binaries.installation import built_files, record_digest
from sm70_kernels.evidence.integrity import sums
from sm70_kernels.evidence.integrity.sums import Finding
from sm70_kernels.evidence.runs.schema import SUMS, EvidenceError

_STATEMENT = "https://in-toto.io/Statement/v1"
_PROVENANCE = (".provenance.json", ".intoto.json")
_MANIFEST = f"{PACKAGE.name}/{LIBRARY_FOLDER}/{MANIFEST_NAME}"
_INSIDE = f"{PACKAGE.name}/{LIBRARY_FOLDER}/provenance.json"
_BILL = ".cdx.json"


class _Subject(msgspec.Struct, frozen=True):
    name: str
    digest: dict[str, str]


class _Statement(msgspec.Struct, frozen=True):
    type: str = msgspec.field(name="_type")
    subject: list[_Subject]
    predicate_type: str = msgspec.field(name="predicateType")


def check(folder: Path) -> Iterator[Finding]:
    """A folder with wheels, sdist, provenance and SHA256SUMS."""
    yield from sums.check(folder)
    if not (folder / SUMS).is_file():
        return
    wheels = sorted(folder.glob("*.whl"))
    statements = sorted(path for path in folder.iterdir() if path.name.endswith(_PROVENANCE))
    for wanted, present in (
        ("wheel", wheels),
        ("sdist (*.tar.gz)", list(folder.glob("*.tar.gz"))),
        ("provenance (*.provenance.json)", statements),
    ):
        if not present:
            yield Finding(path=folder.name, what=f"has no {wanted}")
    libraries: dict[str, str] = {}
    for wheel in wheels:
        try:
            with zipfile.ZipFile(wheel) as archive:
                contents = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
        except (OSError, zipfile.BadZipFile, zlib.error, ValueError, RuntimeError, EOFError) as error:
            yield Finding(path=wheel.name, what=f"can't be unpacked ({error})")
            continue
        yield from _wheel(wheel.name, contents)
        beside = folder / f"{wheel.stem}.manifest.json"
        if beside.is_file() and beside.read_bytes() != contents.get(_MANIFEST):
            yield Finding(path=beside.name, what=f"is not the build manifest inside {wheel.name}")
        bills = {content for name, content in contents.items() if ".dist-info/sboms/" in name}
        for path in sorted(folder.glob(f"*{_BILL}")):
            if path.read_bytes() not in bills:
                yield Finding(path=path.name, what=f"is not the bill of materials inside {wheel.name}")
        for name, digest in _libraries(contents).items():
            if libraries.setdefault(name, digest) != digest:
                yield Finding(path=f"{wheel.name}/{name}", what="is not the same file as in the other wheel")
    named: set[str] = set()
    for path in statements:
        yield from _provenance(path, libraries, folder, named)
    if statements:
        for name in sorted((libraries.keys() | {path.name for path in wheels}) - named):
            yield Finding(path=name, what="is no subject of the provenance")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _libraries(contents: Mapping[str, bytes]) -> dict[str, str]:
    """Shared objects of a wheel -> SHA-256."""
    return {name: _digest(content) for name, content in contents.items() if name.endswith(".so")}


def _wheel(wheel: str, contents: Mapping[str, bytes]) -> Iterator[Finding]:
    """The files of a wheel against its RECORD, its libraries against the build manifest and the provenance inside."""
    yield from (Finding(path=f"{wheel}/{name}", what=what) for name, what in _record(contents))
    yield from (Finding(path=f"{wheel}/{name}", what=what) for name, what in _inside(contents))
    try:
        build = msgspec.json.decode(contents[_MANIFEST], type=built.Build)
    except (KeyError, msgspec.MsgspecError) as error:
        yield Finding(path=f"{wheel}/{_MANIFEST}", what=f"is missing or no build manifest ({error})")
        return
    files = {file.path: file for file in built_files(build)}
    for name in sorted(_libraries(contents).keys() - files.keys()):
        yield Finding(path=f"{wheel}/{name}", what="is not in the build manifest inside the wheel")
    for name, file in sorted(files.items()):
        content = contents.get(name)
        if content is None:
            yield Finding(path=f"{wheel}/{name}", what="is missing, the build manifest inside names it")
            continue
        if (found := _digest(content)) != file.sha256:
            what = f"has SHA-256 {found[:12]}…, the build manifest inside says {file.sha256[:12]}…"
            yield Finding(path=f"{wheel}/{name}", what=what)
        if isinstance(file, built.BuiltOperator):
            for sentence in embedded.differences(content, file.cubin_sha256, file.ptx_sha256):
                yield Finding(path=f"{wheel}/{name}", what=sentence)


def _record(contents: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    records = [name for name in contents if name.endswith(".dist-info/RECORD")]
    if len(records) != 1:
        yield "RECORD", "is missing" if not records else "is there twice"
        return
    try:
        rows = {row[0]: row[1] for row in csv.reader(io.StringIO(contents[records[0]].decode())) if row}
    except (UnicodeDecodeError, csv.Error, IndexError) as error:
        yield records[0], f"can't be read ({error})"
        return
    for name in sorted(rows.keys() | contents.keys() - set(records)):
        if name in records:
            continue
        if name not in contents or name not in rows:
            yield name, f"is {'missing, though' if name not in contents else 'not'} in the wheel's RECORD"
        elif rows[name] != f"sha256={record_digest(hashlib.sha256(contents[name]).digest())}":
            yield name, "is not the file of the wheel's RECORD"


def _statement(content: bytes) -> _Statement:
    """A statement from its bytes. Raises EvidenceError with a sentence's predicate."""
    try:
        statement = msgspec.json.decode(content, type=_Statement)
    except msgspec.MsgspecError as error:
        raise EvidenceError(f"is no in-toto Statement v1 ({error})") from error
    if statement.type != _STATEMENT:
        raise EvidenceError(f"is no in-toto Statement v1 (its _type is {statement.type!r})")
    return statement


def _inside(contents: Mapping[str, bytes]) -> Iterator[tuple[str, str]]:
    """The statement inside a wheel: its subjects are the wheel's libraries, all of them."""
    if _INSIDE not in contents:
        yield _INSIDE, "is missing"
        return
    try:
        subjects = {each.name: each.digest.get("sha256") for each in _statement(contents[_INSIDE]).subject}
    except EvidenceError as error:
        yield _INSIDE, str(error)
        return
    libraries = _libraries(contents)
    for name in sorted(subjects.keys() | libraries.keys()):
        if name not in libraries:
            yield _INSIDE, f"names {name}, which is not in the wheel"
        elif name not in subjects:
            yield name, "is no subject of the provenance inside the wheel"
        elif subjects[name] != libraries[name]:
            yield name, f"is not the subject of the provenance inside, which says {str(subjects[name])[:12]}…"


def _provenance(path: Path, libraries: Mapping[str, str], folder: Path, named: set[str]) -> Iterator[Finding]:
    """A statement's subjects against the files: artifacts beside it, and libraries inside the wheels.

    The subjects that are here are added to ``named``.
    """
    try:
        statement = _statement(path.read_bytes())
    except EvidenceError as error:
        yield Finding(path=path.name, what=str(error))
        return
    for subject in statement.subject:
        inside = _named(subject.name, libraries)
        beside = folder / Path(subject.name).name
        found = libraries[inside] if inside else _digest(beside.read_bytes()) if beside.is_file() else None
        named.add(inside or beside.name)
        if found is None:
            yield Finding(path=path.name, what=f"names {subject.name}, which is neither here nor in a wheel")
        elif subject.digest.get("sha256") != found:
            what = f"is not the subject of {path.name}, which says {str(subject.digest.get('sha256'))[:12]}…"
            yield Finding(path=subject.name, what=what)


def _named(name: str, libraries: Mapping[str, Any]) -> str | None:
    """The library that a subject names, by its path in the wheel or by its file name."""
    if name in libraries:
        return name
    matches = [library for library in libraries if Path(library).name == Path(name).name]
    return matches[0] if len(matches) == 1 else None
