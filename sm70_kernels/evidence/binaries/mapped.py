"""The shared objects of this process as the kernel maps them, and their hashes.

The file that is mapped is what ran; a path that somebody rebuilt after loading is not. The kernel marks a mapping whose
file was replaced or removed with ``(deleted)``: its hash is None, and the session fails. A file that is overwritten in
place changes the mapping with it, so its hash on disk is right.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sm70_kernels.build.manifest import sha256

_DELETED = " (deleted)"
#: Names of this package's own shared objects.
_OWN_PREFIXES = ("libsm70_", "_emulator.")
#: Hashes of the environment's files, in the environment's folder.
_CACHE = ".sm70-kernels-hashes.json"


@dataclass(frozen=True)
class MappedFile:
    """A shared object in /proc/self/maps."""

    path: Path
    deleted: bool

    def is_own(self) -> bool:
        """Whether it is one of this package's, which are hashed anew each time."""
        return self.path.name.startswith(_OWN_PREFIXES)

    def digest(self) -> str | None:
        """SHA-256 of the mapped file; None when it can't be read any more."""
        if self.deleted:
            return None
        try:
            return sha256(self.path)
        except OSError:
            return None


def parse(maps: str) -> list[MappedFile]:
    """The shared objects of a maps file, sorted by path (proc_pid_maps(5))."""
    found: dict[str, MappedFile] = {}
    for line in maps.splitlines():
        fields = line.split(None, 5)
        if len(fields) < 6 or not fields[5].startswith("/"):
            continue
        deleted = fields[5].endswith(_DELETED)
        name = fields[5].removesuffix(_DELETED)
        if ".so" in Path(name).suffixes:
            found[name] = MappedFile(Path(name), deleted)
    return [found[name] for name in sorted(found)]


def mapped_files() -> list[MappedFile]:
    """The shared objects that are mapped in this process now."""
    return parse(Path("/proc/self/maps").read_text())


def differences(files: Iterable[MappedFile], expected: Mapping[str, str], root: Path) -> list[str]:
    """A sentence for each own shared object that is mapped but is not the one that the build manifest names.

    ``expected`` maps paths relative to ``root`` to SHA-256. Own objects elsewhere, those of tests for instance, may
    have names that the manifest lacks, but not names that it has: two libraries of one name are a classic fault.
    """
    by_name = {Path(path).name: path for path in expected}
    sentences = []
    for file in files:
        if not file.is_own():
            continue
        path = by_name.get(file.path.name)
        if path is None:
            if file.path.is_relative_to(root / "sm70_kernels"):
                sentences.append(f"{file.path.name} is loaded, but the build manifest does not name it")
        elif file.path.resolve() != (root / path).resolve():
            sentences.append(f"{file.path.name} was loaded from another folder than {Path(path).parent}")
        elif (found := file.digest()) is None:
            sentences.append(f"{path} was replaced or removed after it was loaded")
        elif found != expected[path]:
            sentences.append(f"{path}: the mapped file has SHA-256 {found}, the build manifest says {expected[path]}")
    return sentences


def _identity(path: Path) -> str:
    """Changes when a file is replaced or written: the change time can't be set by a program."""
    stat = path.stat()
    return f"{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def hashes(files: Iterable[MappedFile]) -> dict[Path, str | None]:
    """SHA-256 of each file. torch maps some 5 GB, so hashes of the environment's files are kept beside them."""
    environment = Path(sys.prefix).resolve()
    cache_path = environment / _CACHE
    try:
        cache: dict[str, list[str]] = json.loads(cache_path.read_text())
    except (OSError, ValueError):
        cache = {}

    def digest(file: MappedFile) -> tuple[Path, str | None]:
        if file.deleted or file.is_own() or not file.path.is_relative_to(environment):
            return file.path, file.digest()
        try:
            key, identity = str(file.path.relative_to(environment)), _identity(file.path)
        except OSError:
            return file.path, None
        if cache.get(key, [""])[0] != identity:
            found = file.digest()
            if found is None:
                return file.path, None
            cache[key] = [identity, found]
        return file.path, cache[key][1]

    before = json.dumps(cache)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib lets other threads run meanwhile
        result = dict(pool.map(digest, files))
    if json.dumps(cache) != before:
        try:
            temporary = cache_path.with_name(cache_path.name + ".tmp")
            temporary.write_text(json.dumps(cache))
            temporary.replace(cache_path)
        except OSError:
            pass  # a read-only environment: hash again next time
    return result
