"""``sm70-kernels check-results``: every tampering is found and named."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import PACKAGE, ROOT
from sm70_kernels.cli import main
from sm70_kernels.evidence.binaries import built, embedded
from sm70_kernels.evidence.binaries.installation import record_digest
from sm70_kernels.evidence.integrity import sums
from sm70_kernels.evidence.runs import run, schema, tables

TEST, BENCH, MEMCHECK = (tables.latest(ROOT, session).folder.name for session in ("test", "bench", "memcheck"))
LOG = sorted(path.name for path in (ROOT / "results" / MEMCHECK).glob("*.log"))[-1]
LIBRARY = "sm70_kernels/lib/libsm70_kv_cache.so"


def invoke(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A copy of committed runs, listed in an index."""
    folder = tmp_path / "results"
    for name in (TEST, BENCH, MEMCHECK):
        shutil.copytree(ROOT / "results" / name, folder / name)
    sums.write_index(folder, lambda: [folder / name for name in (TEST, BENCH, MEMCHECK)])
    return folder


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """An installation with a copy of a real library, and a manifest that names its bytes."""
    root = tmp_path / "installed"
    library = root / LIBRARY
    library.parent.mkdir(parents=True)
    shutil.copyfile(PACKAGE.parent / LIBRARY, library)
    module = root / "sm70_kernels" / "_emulator.so"
    module.write_bytes(b"module")
    hashes = embedded.hashes(library.read_bytes())
    operator = {
        "path": LIBRARY,
        "sha256": sha256(library),
        "cubin_sha256": hashes["cubin"],
        "ptx_sha256": hashes["ptx"],
        "capability_revision": 1,
        "kernels": {},
    }
    manifest: dict[str, Any] = {
        "commit": "0" * 40,
        "dirty": False,
        "operators": {"kv_cache": operator},
        "interpreter_module": {"path": "sm70_kernels/_emulator.so", "sha256": sha256(module)},
        "sources": {},
        "versions": {},
    }
    built.manifest_path(root).write_text(json.dumps(manifest))
    return root


def flip(path: Path, place: int | None = None, bit: int = 1) -> None:
    """Change one bit of one byte, by default the one in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if place is None else place] ^= bit
    path.write_bytes(content)


def test_committed_runs_are_intact_and_indexed() -> None:
    done = invoke("check-results", ROOT / "results", "--json")
    found = json.loads(done.output)
    committed = [report for report in found["runs"] if report["indexed"]]
    assert [report["findings"] for report in committed] == [[] for _ in committed]
    assert set(sums.read_index(ROOT / "results")[0]) == {report["name"] for report in committed}


def test_a_copy_is_intact(results: Path, installed: Path) -> None:
    done = invoke("check-results", results, installed, installed / LIBRARY, results / BENCH)
    assert done.exit_code == 0, done.output
    assert "\nintact (3 runs of results; installed libraries; library libsm70_kv_cache.so; run" in done.output


def swap(results: Path) -> None:
    """The files of two runs change places, sums included."""
    (results / TEST).rename(results / "x")
    (results / BENCH).rename(results / TEST)
    (results / "x").rename(results / BENCH)


def swap_junit(results: Path) -> None:
    first, second = (results / name / schema.JUNIT for name in (TEST, BENCH))
    text = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(text)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def line_of_test(results: Path) -> int:
    """Where the test run's line begins in INDEX."""
    return (results / "INDEX").read_text().index(f"  {TEST}/") - 64


TAMPERINGS: dict[str, tuple[Callable[[Path], object], str]] = {
    "flip manifest": (lambda r: flip(r / TEST / "manifest.json"), f"{TEST}/manifest.json has SHA-256"),
    "flip environment": (lambda r: flip(r / BENCH / "environment.json"), f"{BENCH}/environment.json has SHA-256"),
    "flip benchmark": (lambda r: flip(r / BENCH / "benchmark.json"), f"{BENCH}/benchmark.json has SHA-256"),
    "flip junit": (lambda r: flip(r / TEST / "junit.xml"), f"{TEST}/junit.xml has SHA-256"),
    "flip skips": (lambda r: flip(r / TEST / "skips.json", 3), f"{TEST}/skips.json has SHA-256"),
    "flip log": (lambda r: flip(r / MEMCHECK / LOG), f"{MEMCHECK}/{LOG} has SHA"),
    "flip first byte": (lambda r: flip(r / TEST / "junit.xml", 0), f"{TEST}/junit.xml has SHA-256"),
    "flip last byte": (lambda r: flip(r / TEST / "junit.xml", -1), f"{TEST}/junit.xml has SHA-256"),
    "flip sum": (lambda r: flip(r / TEST / "SHA256SUMS", 10), f"{TEST}/SHA256SUMS is not the one that INDEX lists"),
    "flip index": (lambda r: flip(r / "INDEX", line_of_test(r)), f"{TEST}/SHA256SUMS is not the one that INDEX lists"),
    "truncate log": (
        lambda r: truncate(r / MEMCHECK / LOG),
        f"{MEMCHECK}/{LOG} has",
    ),
    "truncate sums": (lambda r: truncate(r / TEST / "SHA256SUMS"), f"{TEST}/SHA256SUMS the last line is cut off"),
    "rename file": (
        lambda r: (r / TEST / "junit.xml").rename(r / TEST / "junit-2.xml"),
        f"{TEST}/junit.xml is missing, SHA256SUMS names it",
    ),
    "rename run": (
        lambda r: (r / TEST).rename(r / TEST.replace(TEST[:8], "20200101")),
        f"holds the manifest of run {TEST}",
    ),
    "hide run": (lambda r: (r / TEST).rename(r / ".old"), f"{TEST} is missing, INDEX names it"),
    "delete file": (lambda r: (r / TEST / "skips.json").unlink(), f"{TEST}/skips.json is missing"),
    "delete sums": (lambda r: (r / TEST / "SHA256SUMS").unlink(), f"{TEST}/SHA256SUMS SHA256SUMS is missing"),
    "delete run": (lambda r: shutil.rmtree(r / TEST), f"{TEST} is missing, INDEX names it"),
    "add file": (lambda r: (r / TEST / "more.json").write_text("{}"), f"{TEST}/more.json is not in SHA256SUMS"),
    "add hidden file": (lambda r: (r / TEST / ".x").write_text(""), f"{TEST}/.x is not in SHA256SUMS"),
    "add beside": (lambda r: (r / "more.json").write_text("{}"), "more.json is no run folder"),
    "link": (
        lambda r: ((r / TEST / "skips.json").unlink(), (r / TEST / "skips.json").symlink_to(r / BENCH / "skips.json")),
        f"{TEST}/skips.json is no plain file",
    ),
    "swap runs": (swap, f"{TEST} holds the manifest of run {BENCH}"),
    "swap junit": (swap_junit, f"{TEST}/junit.xml has SHA-256"),
}


@pytest.mark.parametrize("name", TAMPERINGS)
def test_tampered_results(results: Path, name: str) -> None:
    tamper, sentence = TAMPERINGS[name]
    tamper(results)
    done = invoke("check-results", results)
    assert done.exit_code == 1, done.output
    assert sentence in done.output
    assert "\nnot intact: " in done.output


def test_no_byte_of_the_sums_can_change_unseen(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for name in ("junit.xml", "manifest.json"):
        (folder / name).write_text(name)
    run.seal(folder)
    assert list(sums.check(folder)) == []
    path = folder / schema.SUMS
    content = path.read_bytes()
    for place in range(len(content)):
        for bit in (1, 32):
            flip(path, place, bit)
            assert list(sums.check(folder)), (place, bit)
            path.write_bytes(content)


def embedded_place(library: Path, image: str) -> int:
    content = library.read_bytes()
    return content.index(embedded.images(content)[image]) + 100


@pytest.mark.parametrize("image,sentence", [("cubin", "its embedded cubin has"), ("ptx", "its embedded PTX has")])
def test_a_library_with_other_device_code(installed: Path, image: str, sentence: str) -> None:
    library = installed / LIBRARY
    flip(library, embedded_place(library, image))
    for path in (installed, library):
        done = invoke("check-results", path)
        assert done.exit_code == 1
        assert f"{LIBRARY} {sentence}" in done.output
        assert f"{LIBRARY} has SHA-256" in done.output


def test_a_library_whose_hash_was_adapted_is_known_by_its_device_code(installed: Path) -> None:
    library, manifest = installed / LIBRARY, built.manifest_path(installed)
    before = sha256(library)
    flip(library, embedded_place(library, "ptx"))
    manifest.write_text(manifest.read_text().replace(before, sha256(library)))
    done = invoke("check-results", installed)
    assert done.exit_code == 1
    assert "its embedded PTX has" in done.output


@pytest.mark.parametrize(
    "tamper,sentence",
    [
        (lambda root: flip(root / LIBRARY, 0x6000), f"{LIBRARY} has SHA-256"),  # host code
        (lambda root: flip(root / LIBRARY, 0), "it is no 64-bit ELF file"),
        (lambda root: truncate(root / LIBRARY), f"{LIBRARY} has SHA-256"),
        (lambda root: (root / LIBRARY).write_bytes(b""), "it is no 64-bit ELF file"),
        (lambda root: (root / LIBRARY).unlink(), f"{LIBRARY} is missing"),
        (lambda root: (root / LIBRARY).rename((root / LIBRARY).with_name("libsm70_x.so")), f"{LIBRARY} is missing"),
        (
            lambda root: shutil.copy(root / LIBRARY, root / "sm70_kernels/lib/libsm70_x.so"),
            "libsm70_x.so is not in the",
        ),
        (lambda root: flip(root / "sm70_kernels/_emulator.so"), "_emulator.so has SHA-256"),
        (lambda root: truncate(built.manifest_path(root)), "is not this version's build manifest"),
    ],
)
def test_tampered_installation(installed: Path, tamper: Callable[[Path], object], sentence: str) -> None:
    tamper(installed)
    done = invoke("check-results", installed)
    assert done.exit_code == 1
    assert sentence in done.output


def test_an_installed_wheels_record_vouches_for_the_manifest_too(installed: Path) -> None:
    def digest(path: Path) -> str:
        return record_digest(bytes.fromhex(sha256(path)))

    manifest = built.manifest_path(installed)
    folder = installed / "sm70_kernels-0.1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: sm70-kernels\nVersion: 0.1.0\n")
    names = [LIBRARY, str(manifest.relative_to(installed))]
    record = "".join(f"{name},sha256={digest(installed / name)},1\n" for name in names)
    (folder / "RECORD").write_text(f"{record}sm70_kernels-0.1.0.dist-info/RECORD,,\n")
    assert invoke("check-results", installed).exit_code == 0
    before = sha256(installed / LIBRARY)
    flip(installed / LIBRARY, 0x6000)
    manifest.write_text(manifest.read_text().replace(before, sha256(installed / LIBRARY)))
    done = invoke("check-results", installed)
    assert done.exit_code == 1
    assert [line.split()[0] for line in done.output.splitlines() if "the wheel's RECORD" in line] == names


def edit(folder: Path, name: str, pattern: str, replacement: str) -> None:
    """A careful forger: the file and its sum fit together."""
    path = folder / name
    text, count = re.subn(pattern, replacement, path.read_text(), count=1)
    assert count == 1
    path.write_text(text)
    run.seal(folder)


FORGERIES = {
    "name": (TEST, "manifest.json", r'"commit": "\w{7}', '"commit": "0000000', "holds the manifest of run"),
    "junit": (TEST, "junit.xml", 'failures="0"', 'failures="2"', "2 failures, 0 errors, "),
    "skips": (TEST, "skips.json", r"(?s)\[.*\]", "[]", "has 0 skips, manifest.json counts"),
    "counts": (TEST, "manifest.json", r'"passed": \d+', '"passed": 99999', "manifest.json says 99999 passed"),
    "median": (
        BENCH,
        "benchmark.json",
        r'"median_ms": 0\.0',
        '"median_ms": 0.00',
        "the median is not that of its samples",
    ),
    "ratio": (
        BENCH,
        "benchmark.json",
        r'"ratio_to_copy": 0\.\d',
        '"ratio_to_copy": 0.9',
        "is not the median of its blocks",
    ),
    "library": (
        BENCH,
        "manifest.json",
        '"sha256": "344b',
        '"sha256": "344c',
        "has another SHA-256 there than in manifest",
    ),
    "field": (BENCH, "manifest.json", '"narrowed": false', '"narrow": false', "is no Manifest of schema version"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_with_fitting_sums_contradicts_other_records(results: Path, name: str) -> None:
    folder, file, pattern, replacement, sentence = FORGERIES[name]
    edit(results / folder, file, pattern, replacement)
    (results / sums.INDEX).unlink()
    done = invoke("check-results", results / folder)
    assert done.exit_code == 1, done.output
    assert sentence in done.output


def test_a_forgery_with_fitting_sums_and_records_is_not_the_indexed_run(results: Path) -> None:
    edit(results / TEST, "junit.xml", r'time="\d', 'time="123')
    done = invoke("check-results", results)
    assert done.exit_code == 1
    assert f"{TEST}/SHA256SUMS is not the one that INDEX lists" in done.output
    with pytest.raises(schema.EvidenceError, match="is not the run that INDEX lists"):
        sums.write_index(results, lambda: [results / TEST])


def test_a_path_that_is_nothing_is_a_usage_error(tmp_path: Path) -> None:
    assert invoke("check-results", tmp_path / "nothing").exit_code == 2
    done = invoke("check-results", tmp_path)
    assert done.exit_code == 2
    assert "--artifact" in done.output
