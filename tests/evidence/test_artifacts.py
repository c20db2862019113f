"""``sm70-kernels check-results --artifact``: a downloaded set hangs together."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sm70_kernels.build.settings import PACKAGE
from sm70_kernels.evidence.binaries import embedded
from sm70_kernels.evidence.binaries.installation import record_digest
from sm70_kernels.evidence.runs import run

LIBRARY, MODULE = "sm70_kernels/lib/libsm70_kv_cache.so", "sm70_kernels/_emulator.cpython-311-x86_64-linux-gnu.so"
MANIFEST, RECORD = "sm70_kernels/lib/manifest.json", "sm70_kernels-0.1.0.dist-info/RECORD"
WHEEL, SDIST = "sm70_kernels-0.1.0-cp311-cp311-linux_x86_64.whl", "sm70_kernels-0.1.0.tar.gz"
STATEMENT = WHEEL.removesuffix(".whl") + ".provenance.json"
INSIDE, BILL = "sm70_kernels/lib/provenance.json", "sm70_kernels-0.1.0.dist-info/sboms/sm70-kernels.cdx.json"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def pack(folder: Path, files: dict[str, bytes], *, record: bool = True) -> None:
    """Write a wheel, with a RECORD that fits unless it is given."""
    if record:
        lines = [
            f"{name},sha256={record_digest(hashlib.sha256(data).digest())},{len(data)}" for name, data in files.items()
        ]
        files = files | {RECORD: "\n".join([*lines, f"{RECORD},,", ""]).encode()}
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    """The members of a wheel around a real library."""
    library = (PACKAGE.parent / LIBRARY).read_bytes()
    hashes = embedded.hashes(library)
    operator = {
        "path": LIBRARY,
        "sha256": digest(library),
        "cubin_sha256": hashes["cubin"],
        "ptx_sha256": hashes["ptx"],
        "capability_revision": 1,
        "kernels": {},
    }
    manifest = {
        "commit": "0" * 40,
        "dirty": False,
        "operators": {"kv_cache": operator},
        "interpreter_module": {"path": MODULE, "sha256": digest(b"module")},
        "sources": {},
        "versions": {},
    }
    return {
        LIBRARY: library,
        MODULE: b"module",
        MANIFEST: json.dumps(manifest).encode(),
        INSIDE: statement({LIBRARY: digest(library), MODULE: digest(b"module")}),
        BILL: b"{}\n",
        "sm70_kernels/a.py": b"a\n",
    }


def statement(subjects: dict[str, str]) -> bytes:
    content = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, sha256 in subjects.items()],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {},
    }
    return json.dumps(content).encode()


@pytest.fixture
def dist(tmp_path: Path, files: dict[str, bytes]) -> Path:
    """An intact set."""
    pack(tmp_path, files)
    (tmp_path / SDIST).write_bytes(b"sdist")
    subjects = {LIBRARY: digest(files[LIBRARY]), MODULE: digest(b"module"), SDIST: digest(b"sdist")}
    subjects[WHEEL] = digest((tmp_path / WHEEL).read_bytes())
    (tmp_path / STATEMENT).write_bytes(statement(subjects))
    run.seal(tmp_path)
    return tmp_path


def verify(folder: Path) -> Result:
    return CliRunner().invoke(main_command(), ["check-results", "--artifact", str(folder)])


def main_command() -> Callable[..., object]:
    from sm70_kernels.cli import main

    return main


def test_an_intact_set(dist: Path) -> None:
    done = verify(dist)
    assert done.exit_code == 0, done.output
    assert done.output.startswith("intact (artifacts in ")


@pytest.mark.parametrize("name", [WHEEL, SDIST, STATEMENT, "SHA256SUMS"])
@pytest.mark.parametrize("tamper", ["flip", "rename", "delete"])
def test_a_tampered_file_of_the_set_is_named(dist: Path, name: str, tamper: str) -> None:
    path = dist / name
    if tamper == "flip":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    elif tamper == "rename":
        path.rename(path.with_name("renamed"))
    else:
        path.unlink()
    done = verify(dist)
    assert done.exit_code == 1
    assert name in done.output


def test_an_added_file_is_named(dist: Path) -> None:
    (dist / "more.whl").write_bytes(b"")
    assert "more.whl is not in SHA256SUMS" in verify(dist).output


def changed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def ptx_place(library: bytes) -> int:
    return library.index(embedded.images(library)["ptx"]) + 100


@pytest.mark.parametrize(
    "change,sentences",
    [
        (
            lambda f: {LIBRARY: changed(f[LIBRARY], ptx_place(f[LIBRARY]))},
            ["embedded PTX has", "is not the subject of"],
        ),
        (lambda f: {LIBRARY: changed(f[LIBRARY], 0x6000)}, [f"{WHEEL}/{LIBRARY} has SHA-256", "is not the subject of"]),
        (
            lambda f: {"sm70_kernels/lib/libsm70_x.so": b"x"},
            ["libsm70_x.so is not in the build manifest", "is no subject of"],
        ),
        (lambda _: {MANIFEST: b"{}"}, [f"{MANIFEST} is missing or no build manifest"]),
        (
            lambda _: {INSIDE: statement({LIBRARY: "0" * 64, "other.so": "0" * 64})},
            [
                f"{WHEEL}/{LIBRARY} is not the subject of the provenance inside, which says 000000000000…",
                f"{WHEEL}/{INSIDE} names other.so, which is not in the wheel",
                f"{WHEEL}/{MODULE} is no subject of the provenance inside the wheel",
            ],
        ),
        (lambda _: {INSIDE: b"{}"}, [f"{WHEEL}/{INSIDE} is no in-toto Statement v1"]),
    ],
)
def test_a_wheel_with_fitting_record_and_sums(
    dist: Path, files: dict[str, bytes], change: Callable[[dict[str, bytes]], dict[str, bytes]], sentences: list[str]
) -> None:
    pack(dist, files | change(files))
    run.seal(dist)
    done = verify(dist)
    assert done.exit_code == 1
    for sentence in sentences:
        assert sentence in done.output


def test_a_manifest_beside_that_is_not_the_one_inside(dist: Path, files: dict[str, bytes]) -> None:
    path = dist / f"{Path(WHEEL).stem}.manifest.json"
    path.write_bytes(files[MANIFEST])
    run.seal(dist)
    assert verify(dist).exit_code == 0
    path.write_bytes(files[MANIFEST].replace(b'"dirty": false', b'"dirty": true'))
    run.seal(dist)
    assert f"{path.name} is not the build manifest inside {WHEEL}" in verify(dist).output


def test_a_wheel_without_a_provenance_inside(dist: Path, files: dict[str, bytes]) -> None:
    pack(dist, {name: content for name, content in files.items() if name != INSIDE})
    run.seal(dist)
    assert f"{WHEEL}/{INSIDE} is missing" in verify(dist).output


def test_a_bill_of_materials_beside_that_is_not_the_one_inside(dist: Path, files: dict[str, bytes]) -> None:
    path = dist / "sm70_kernels-0.1.0.cdx.json"
    path.write_bytes(files[BILL])
    run.seal(dist)
    assert verify(dist).exit_code == 0
    path.write_bytes(b"[]\n")
    run.seal(dist)
    assert f"{path.name} is not the bill of materials inside {WHEEL}" in verify(dist).output


def test_a_member_that_is_not_as_recorded(dist: Path, files: dict[str, bytes]) -> None:
    with zipfile.ZipFile(dist / WHEEL) as archive:
        record = archive.read(RECORD)
    pack(dist, files | {"sm70_kernels/a.py": b"b\n", "sm70_kernels/b.py": b"", RECORD: record}, record=False)
    run.seal(dist)
    done = verify(dist)
    assert "sm70_kernels/a.py is not the file of the wheel's RECORD" in done.output
    assert "sm70_kernels/b.py is not in the wheel's RECORD" in done.output


def test_a_provenance_of_something_else(dist: Path) -> None:
    (dist / STATEMENT).write_bytes(statement({LIBRARY: "0" * 64, "other.whl": "0" * 64}))
    run.seal(dist)
    done = verify(dist)
    assert f"{LIBRARY} is not the subject of {STATEMENT}" in done.output
    assert "names other.whl, which is neither here nor in a wheel" in done.output
    assert f"{MODULE} is no subject of the provenance" in done.output
    (dist / STATEMENT).write_text('{"_type": "x", "subject": [], "predicateType": ""}')
    run.seal(dist)
    assert "is no in-toto Statement v1" in verify(dist).output
