"""What is mapped is what counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm70_kernels.build.manifest import sha256
from sm70_kernels.evidence.binaries import mapped

MAPS = """\
7f00-7f01 r--p 00000000 fe:01 17                        /opt/x/libtorch.so
7f01-7f02 r-xp 00001000 fe:01 17                        /opt/x/libtorch.so
7f02-7f03 r--p 00000000 fe:01 18                        /usr/lib/libc.so.6
7f03-7f04 r--p 00000000 fe:01 19                        /a b/sm70_kernels/lib/libsm70_fake.so (deleted)
7f04-7f05 rw-p 00000000 00:00 0                         [heap]
7f05-7f06 rw-p 00000000 00:00 0
7f06-7f07 r--s 00000000 00:01 20                        /memfd:x (deleted)
"""


def test_parse() -> None:
    assert mapped.parse(MAPS) == [
        mapped.MappedFile(Path("/a b/sm70_kernels/lib/libsm70_fake.so"), deleted=True),
        mapped.MappedFile(Path("/opt/x/libtorch.so"), deleted=False),
        mapped.MappedFile(Path("/usr/lib/libc.so.6"), deleted=False),
    ]


def test_this_process() -> None:
    files = mapped.mapped_files()
    digests = mapped.hashes(files)
    assert any(file.path.name.startswith("_core.") for file in files)  # msgspec's
    assert all(digests[file.path] == sha256(file.path) for file in files[:5])
    assert mapped.hashes(files) == digests  # from the cache


LIBRARY = "sm70_kernels/lib/libsm70_fake.so"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / LIBRARY
    path.parent.mkdir(parents=True)
    path.write_bytes(b"library")
    return path


def differences(path: Path, root: Path, digest: str, *, deleted: bool = False) -> list[str]:
    return mapped.differences([mapped.MappedFile(path, deleted)], {LIBRARY: digest}, root)


def test_the_built_library_is_no_difference(library: Path, tmp_path: Path) -> None:
    assert differences(library, tmp_path, sha256(library)) == []


def test_another_hash(library: Path, tmp_path: Path) -> None:
    (sentence,) = differences(library, tmp_path, "0" * 64)
    assert sha256(library) in sentence
    assert "0" * 64 in sentence


def test_a_library_replaced_after_loading(library: Path, tmp_path: Path) -> None:
    (sentence,) = differences(library, tmp_path, sha256(library), deleted=True)
    assert "replaced or removed after it was loaded" in sentence


def test_a_library_of_the_same_name_elsewhere(library: Path, tmp_path: Path) -> None:
    other = tmp_path / "old" / library.name
    other.parent.mkdir()
    other.write_bytes(library.read_bytes())
    (sentence,) = differences(other, tmp_path, sha256(library))
    assert "another folder" in sentence


def test_a_library_that_was_not_built(library: Path, tmp_path: Path) -> None:
    stranger = library.with_name("libsm70_gone.so")
    stranger.write_bytes(b"")
    (sentence,) = differences(stranger, tmp_path, sha256(library))
    assert "does not name it" in sentence


def test_other_shared_objects_and_those_of_tests_do_not_matter(library: Path, tmp_path: Path) -> None:
    for path in (Path("/usr/lib/libc.so.6"), tmp_path / "build/test_ops/canary/libsm70_canary.so"):
        assert differences(path, tmp_path, sha256(library)) == []
