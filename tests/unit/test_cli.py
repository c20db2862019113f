"""The command line: documents, exit codes, and a quick start."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sm70_kernels import __version__
from sm70_kernels.build.manifest import sha256
from sm70_kernels.build.settings import PACKAGE
from sm70_kernels.cli import doctor, libraries, listing, main
from sm70_kernels.cli.diagnosis import Check, ok, problem
from sm70_kernels.evidence.machine import gpu
from sm70_kernels.evidence.runs import schema

LIBRARY = "sm70_kernels/lib/libsm70_fake.so"
EMULATOR = "sm70_kernels/lib/libsm70_emulator.so"
REVISION_MARK = b"sm70_kernels capability revision %d\0"

V100 = gpu.Survey((gpu.Device(0, "Tesla V100-PCIE-32GB", (7, 0), 80, "0000:00:1e.0"),), None)
NEWER = gpu.Survey((gpu.Device(0, "NVIDIA H200", (9, 0), 132, "0000:00:1e.0"),), None)
NONE = gpu.Survey((), "no NVIDIA driver: libcuda.so.1 was not found")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An installation with one operator of revision 1."""
    library = tmp_path / LIBRARY
    library.parent.mkdir(parents=True)
    library.write_bytes(REVISION_MARK % 1)
    (tmp_path / EMULATOR).write_bytes(b"the emulator")
    module = tmp_path / "sm70_kernels" / "ops" / "fake.py"
    module.parent.mkdir()
    module.write_text("CAPABILITY_REVISION = 1\n")
    (tmp_path / "csrc").mkdir()
    write_manifest(tmp_path)
    return tmp_path


def write_manifest(root: Path, **fields: Any) -> None:
    manifest = {
        "commit": "0123456789abcdef",
        "dirty": False,
        "operators": {
            "fake": {
                "path": LIBRARY,
                "sha256": sha256(root / LIBRARY),
                "cubin_sha256": "c" * 64,
                "ptx_sha256": "d" * 64,
                "capability_revision": 1,
                "kernels": {"fake_copy": {"registers": 32, "shared_bytes": 0, "spill_store_bytes": 0}},
            }
        },
        "interpreter_module": {"path": "sm70_kernels/_emulator.so", "sha256": "e" * 64},
        "emulator": {"path": EMULATOR, "sha256": sha256(root / EMULATOR) if (root / EMULATOR).is_file() else "e" * 64},
        "sources": {},
        "versions": {},
    }
    (root / "sm70_kernels" / "lib" / "manifest.json").write_text(json.dumps(manifest | fields))


def problems(checks: Any) -> list[Check]:
    return [check for check in checks if check.status == "problem"]


def test_starting_needs_neither_torch_nor_rich() -> None:
    code = "import sys; import sm70_kernels.cli; assert not {'torch', 'rich', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_version_help_and_usage() -> None:
    assert __version__ in invoke("--version").output
    assert "Exit codes" in invoke("--help").output
    assert invoke("undo").exit_code == 2


@pytest.mark.parametrize("checks,code", [([ok("a", "b")], 0), ([ok("a", "b"), problem("c", "broken", "repair it")], 1)])
def test_doctor_exit_codes(monkeypatch: pytest.MonkeyPatch, checks: list[Check], code: int) -> None:
    report = doctor.Report(usable=not problems(checks), checks=checks)
    monkeypatch.setattr(doctor, "examine", lambda: report)
    plain = invoke("doctor")
    assert plain.exit_code == code
    assert "\x1b" not in plain.output
    document = invoke("doctor", "--json")
    assert document.exit_code == code
    assert json.loads(document.output) == {
        "schema_version": 1,
        "usable": code == 0,
        "checks": [
            {"name": check.name, "status": check.status, "found": check.found, "remedy": check.remedy}
            for check in checks
        ],
    }


def test_doctor_where_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "torch_build", lambda: (None, None))
    found = problems(doctor.examine(tmp_path, {}).checks)
    assert [check.name for check in found if check.name != "gpu"] == ["torch", "build"]
    assert all(check.remedy for check in found)


def test_doctor_on_libraries(root: Path) -> None:
    assert [check.name for check in problems(libraries.check(root))] == ["module"]  # none for this interpreter here


def test_doctor_on_a_library_that_was_swapped(root: Path) -> None:
    (root / LIBRARY).write_bytes(REVISION_MARK % 1 + b"other")
    assert "has SHA-256" in problems(libraries.check(root))[0].found


@pytest.mark.parametrize("swap", [Path.unlink, lambda path: path.write_bytes(b"another")])
def test_doctor_on_an_emulator_that_is_not_the_built_one(root: Path, swap: Any) -> None:
    swap(root / EMULATOR)
    found = problems(libraries.check(root))[0]
    assert found.found.startswith(f"emulator: {EMULATOR} ")
    assert (found.name, found.remedy is not None) == ("library", True)


def test_doctor_on_a_build_without_an_emulator(root: Path) -> None:
    write_manifest(root, emulator=None)
    assert "names no emulator" in problems(libraries.check(root))[0].found


@pytest.mark.parametrize("place,status", [("nvdisasm", "ok"), (None, "note")])
def test_doctor_on_nvdisasm(root: Path, monkeypatch: pytest.MonkeyPatch, place: str | None, status: str) -> None:
    monkeypatch.setattr(libraries, "nvdisasm", lambda: place and Path(place))
    found = [check for check in libraries.check(root) if check.name == "emulator"]
    assert [check.status for check in found] == ["ok", status]
    assert "as built" in found[0].found


def test_doctor_on_a_missing_library(root: Path) -> None:
    (root / LIBRARY).unlink()
    assert "is missing" in problems(libraries.check(root))[0].found


def test_doctor_on_a_stale_revision(root: Path) -> None:
    (root / LIBRARY).write_bytes(REVISION_MARK % 2)
    write_manifest(root)
    assert "revision 2, Python wants 1" in problems(libraries.check(root))[0].found


def test_doctor_on_a_stranger(root: Path) -> None:
    shutil.copy(root / LIBRARY, root / "sm70_kernels/lib/libsm70_gone.so")
    assert "libsm70_gone.so is not in the build manifest" in problems(libraries.check(root))[0].found


def test_doctor_on_newer_sources(root: Path) -> None:
    (root / "csrc" / "new.cuh").touch()
    assert "csrc/new.cuh" in problems(libraries.check(root))[0].found


@pytest.mark.parametrize(
    "survey,variables,states",
    [
        (NONE, {}, ["note"]),
        (V100, {}, ["ok", "ok"]),
        (NEWER, {}, ["ok", "problem"]),
        (NEWER, {"SM70_KERNELS_ALLOW_JIT": "1"}, ["ok", "ok"]),
    ],
)
def test_doctor_on_gpus(survey: gpu.Survey, variables: dict[str, str], states: list[str]) -> None:
    assert [check.status for check in doctor.check_gpus(survey, "580.1", variables)] == states


@pytest.mark.parametrize(
    "version,cuda,status",
    [
        ("2.10.0+cu128", "12.8", "ok"),
        ("2.11.0+cu130", "13.0", "note"),
        ("2.10.0+cpu", None, "problem"),
        (None, None, "problem"),
    ],
)
def test_doctor_on_torch(version: str | None, cuda: str | None, status: str) -> None:
    (check,) = doctor.check_torch(version, cuda)
    assert check.status == status


def test_doctor_on_a_misspelt_variable() -> None:
    (check,) = problems(doctor.check_variables({"SM70_KERNELS_ALOW_JIT": "1"}))
    assert "SM70_KERNELS_ALOW_JIT" in check.found


@pytest.mark.parametrize("value,words", [("1", "CPU tensors run"), ("0", "off: CPU tensors are refused")])
def test_doctor_on_the_switch(value: str, words: str) -> None:
    checks = {check.name: check for check in doctor.check_variables({"SM70_KERNELS_EMULATE": value})}
    assert words in checks["emulate"].found


def test_doctor_names_the_operators_that_load(root: Path) -> None:
    for name in ("__init__.py", "_elf.py", "_native.py", "_variables.py", "ops/__init__.py"):
        shutil.copyfile(PACKAGE / name, root / "sm70_kernels" / name)
    module = root / "sm70_kernels" / "ops" / "fake.py"
    module.write_text("from sm70_kernels import _native\n_native._loaded['fake'] = None\n")
    (check,) = doctor.check_loading(root)
    assert (check.status, check.found) == ("ok", "loaded: fake")


def test_doctor_shows_why_the_operators_do_not_load(root: Path) -> None:
    (root / "sm70_kernels" / "__init__.py").touch()
    (root / "sm70_kernels" / "ops" / "__init__.py").write_text("raise ImportError('no such library')\n")
    (check,) = doctor.check_loading(root)
    assert (check.status, check.found) == ("problem", "ImportError: no such library")


def test_list_document(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "nvdisasm", lambda: None)
    monkeypatch.setenv("SM70_KERNELS_EMULATE", "1")
    found = listing.collect(root=root)
    monkeypatch.setattr(listing, "collect", lambda results: found)
    result = invoke("list", "--json")
    assert result.exit_code == 0
    document = json.loads(result.output)
    assert document == {
        "schema_version": 1,
        "operators": [
            {
                "operator": "fake",
                "state": "current",
                "path": LIBRARY,
                "sha256": sha256(root / LIBRARY),
                "cubin_sha256": "c" * 64,
                "ptx_sha256": "d" * 64,
                "capability_revision": 1,
                "kernels": {"fake_copy": {"registers": 32, "shared_bytes": 0, "spill_store_bytes": 0}},
            }
        ],
        "emulator": {
            "state": "current",
            "path": EMULATOR,
            "sha256": sha256(root / EMULATOR),
            "nvdisasm": False,
            "switched_on": True,
        },
        "runs": [],
        "problems": [],
    }
    plain = invoke("list").output
    assert "fake_copy  32" in plain
    assert f"current  {sha256(root / EMULATOR)[:12]}  missing   on" in plain


def test_list_shows_runs_the_latest_first(root: Path) -> None:
    for second, end in (("05", "2026-01-02T03:04:06Z"), ("07", None)):
        folder = root / "results" / f"20260102T0304{second}Z-0123456-test"
        folder.mkdir(parents=True)
        manifest = schema.Manifest(
            session="test",
            status="fail",
            reason="",
            commit="0123456",
            dirty=False,
            build_commit=None,
            command=[],
            start="2026-01-02T03:04:05Z",
            end=end,
        )
        schema.write(folder / schema.MANIFEST, manifest)
    runs = listing.collect(root=root).runs
    assert [run.name[:16] for run in runs] == ["20260102T030407Z", "20260102T030405Z"]
    assert not runs[0].complete


def test_list_refuses_a_named_results_folder_that_can_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path, reason in ((tmp_path / "nothing", "No such file or directory"), (tmp_path / "file", "Not a directory")):
        done = invoke("list", "--results", str(path))
        assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
        text = " ".join(done.output.split())
        assert f"--results: got {path}, want a folder of run folders that can be read ({reason})" in text
        assert "leave the option out" in text


def test_list_without_any_run_is_fine(root: Path) -> None:
    assert listing.collect(root=root).runs == []
    (root / "results").mkdir()
    assert listing.collect(root / "results", root).runs == []


def test_list_with_problems_exits_1(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / LIBRARY).unlink()
    broken = root / "results" / "20260102T030405Z-0123456-test"
    broken.mkdir(parents=True)
    (broken / schema.MANIFEST).write_text("{}")
    found = listing.collect(root=root)
    assert [entry.state for entry in found.operators] == ["missing"]
    assert found.emulator is not None and found.emulator.state == "current"
    assert len(found.problems) == 2
    monkeypatch.setattr(listing, "collect", lambda results: found)
    assert invoke("list").exit_code == 1


def test_the_old_name_of_check_results_still_works() -> None:
    done = CliRunner().invoke(main, ["verify", "--help"])
    assert done.exit_code == 0
    assert done.output.count("check-results [OPTIONS]") == 1
    assert "sm70-kernels sm70-kernels" not in done.output
