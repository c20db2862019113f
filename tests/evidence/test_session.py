"""Sessions from the command line, in a small checkout."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys

import pytest
from canary_reports import CANARY_REPORTS
from small_checkout import LIBRARY, Tree

from sm70_kernels.evidence.binaries import built
from sm70_kernels.evidence.runs import schema
from sm70_kernels.evidence.sessions.benchmarks import EMULATOR_LABEL

LOADS = "import ctypes\nctypes.CDLL('sm70_kernels/lib/libsm70_fake.so', mode=ctypes.RTLD_LOCAL | 1)\n"
PASSES = "def test_passes(): pass\n"
NEEDS_GPU = "import pytest\ndef test_kernel(): pytest.skip('needs sm_70, found no CUDA device')\n"
BENCH_INI = "[pytest]\npython_files = bench_*.py\naddopts = -p pytest_benchmark.plugin\n"
OTHER_SKIP = "import pytest\ndef test_other(): pytest.skip('no reason at all')\n"


def test_a_passing_run_is_complete(tree: Tree) -> None:
    tree.write("tests/test_inner.py", LOADS + PASSES + NEEDS_GPU)
    done = tree.session("test")
    assert done.returncode == 0, done.stdout + done.stderr
    folder, manifest = tree.run_folder(), tree.manifest()
    assert re.fullmatch(r"\d{8}T\d{6}Z-0123456-test", folder.name)
    assert {path.name for path in folder.iterdir()} == {
        "manifest.json",
        "environment.json",
        "junit.xml",
        "skips.json",
        "SHA256SUMS",
    }
    subprocess.run(["sha256sum", "-c", "--strict", "SHA256SUMS"], cwd=folder, check=True, capture_output=True)
    assert manifest.status == "pass"
    assert manifest.counts == schema.Counts(executed=1, passed=1, skipped=1)
    assert not manifest.narrowed
    (library,) = manifest.libraries
    assert library.mapped
    assert library.sha256 == built.read(tree.root).operators["fake"].sha256
    assert schema.read(folder / schema.SKIPS, list[schema.Skip]) == [
        schema.Skip(test="tests/test_inner.py::test_kernel", reason="needs sm_70, found no CUDA device")
    ]
    environment = schema.read(folder / schema.ENVIRONMENT, schema.Environment)
    assert LIBRARY in {file.path for file in environment.loaded}
    text = "".join(path.read_text() for path in folder.iterdir())
    assert str(tree.root) not in text
    assert "hostname" not in text


def test_require_gpu_makes_that_skip_a_failure_and_no_other(tree: Tree) -> None:
    tree.write("tests/test_gpu.py", NEEDS_GPU)
    tree.write("tests/test_other.py", OTHER_SKIP + PASSES)
    done = tree.session("test", "--require-gpu")
    assert done.returncode == 1
    assert "with --require-gpu that is a failure" in done.stdout
    manifest = tree.manifest()
    assert manifest.status == "fail"
    assert manifest.counts == schema.Counts(executed=2, passed=1, failed=1, skipped=1)
    assert [skip.reason for skip in schema.read(tree.run_folder() / schema.SKIPS, list[schema.Skip])] == [
        "no reason at all"
    ]


def test_a_mapped_file_that_is_not_the_built_one_fails_the_session(tree: Tree) -> None:
    # Rebuilt while the tests run: what passed is not what is installed.
    swap = f"""
def test_swap():
    import os, shutil
    shutil.copy({LIBRARY!r}, "new.so")
    os.replace("new.so", {LIBRARY!r})
"""
    tree.write("tests/test_inner.py", LOADS + swap)
    done = tree.session("test")
    assert done.returncode == 1
    assert "replaced or removed after it was loaded" in done.stdout
    assert tree.manifest().status == "fail"


@pytest.mark.parametrize("session", ["test", "memcheck", "bench"])
def test_nothing_built_is_refused(tree: Tree, session: str) -> None:
    built.manifest_path(tree.root).unlink()
    done = tree.session(session)
    assert done.returncode == 2
    assert "nothing is built" in done.stderr
    assert "scripts/nox -s build" in done.stderr
    assert not tree.results.exists()


@pytest.mark.parametrize(
    "name,text,sentence",
    [
        ("csrc/ops/fake/kernel.cu", "// another kernel\n", "older than its sources: csrc/ops/fake/kernel.cu"),
        ("csrc/ops/fake/new.cuh", "// new\n", "older than its sources: csrc/ops/fake/new.cuh"),
        (LIBRARY, "not a library", "has SHA-256"),
    ],
)
def test_a_stale_build_is_refused(tree: Tree, name: str, text: str, sentence: str) -> None:
    tree.write(name, text)
    done = tree.session("test")
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not tree.results.exists()


def test_a_misspelt_variable_is_refused(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = tree.environment() | {"SM70_KERNELS_ALOW_JIT": "1"}
    done = subprocess.run(tree.command("test"), cwd=tree.root, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "SM70_KERNELS_ALOW_JIT" in done.stderr


@pytest.mark.parametrize("session", ["build", "test", "bench"])
def test_a_results_folder_that_can_not_be_written_is_refused(tree: Tree, session: str) -> None:
    tree.write("file", "")
    for folder, reason in ((tree.root / "file", "File exists"), (tree.root / "file" / "below", "Not a directory")):
        done = tree.session(session, "--results", str(folder))
        assert done.returncode == 2
        sentence = f"{session}: --results: got {folder}, want a folder that can be written ({reason})"
        assert done.stderr.startswith(sentence)
        assert "name another one with --results" in done.stderr and "Traceback" not in done.stderr


def test_no_executed_test_is_no_pass(tree: Tree) -> None:
    tree.write("tests/test_inner.py", OTHER_SKIP)
    assert tree.session("test").returncode == 1
    assert tree.manifest().reason.startswith("no test was executed")


def test_a_module_that_can_not_be_imported_is_an_error(tree: Tree) -> None:
    tree.write("tests/test_inner.py", "import no_such_module\n")
    tree.write("tests/test_other.py", PASSES)
    assert tree.session("test").returncode == 1
    assert tree.manifest().reason == "pytest exit code 2: 0 failed, 1 errors"


def test_a_pytest_that_dies_is_a_failure(tree: Tree) -> None:
    tree.write("tests/test_inner.py", "import os\ndef test_dies(): os._exit(0)\n")
    assert tree.session("test").returncode == 1
    assert tree.manifest().reason == "pytest ended with exit code 0 and left no observation"


def test_arguments_go_to_pytest_and_narrow_the_run(tree: Tree) -> None:
    tree.write("tests/test_inner.py", PASSES + "def test_fails(): assert False\n")
    done = tree.session("test", "--results", str(tree.results), "--", "-k", "passes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert tree.manifest().narrowed


def test_benchmarks_without_a_gpu_are_not_run(tree: Tree) -> None:
    tree.write("pytest.ini", BENCH_INI)
    tree.write("benchmarks/bench_fake.py", NEEDS_GPU.replace("()", "(benchmark)", 1))
    assert tree.session("bench").returncode == 0
    manifest = tree.manifest()
    assert (manifest.status, manifest.reason) == ("not_run", "needs sm_70, found no CUDA device")
    assert manifest.validation["fake"].label == "unvalidated"
    assert not (tree.run_folder() / schema.BENCHMARK).exists()


def test_benchmark_rows_are_labelled_and_carry_no_host(tree: Tree) -> None:
    tree.write("pytest.ini", BENCH_INI)
    tree.write("benchmarks/bench_fake.py", "def test_row(benchmark): benchmark.pedantic(int, rounds=1)\n")
    done = tree.session("bench")
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tree.run_folder() / schema.BENCHMARK).read_text())
    assert results["machine_info"]["node"] == ""
    assert [row["extra_info"]["validation"] for row in results["benchmarks"]] == ["unvalidated"]


def test_require_validated_refuses(tree: Tree) -> None:
    done = tree.session("bench", "--require-validated")
    assert done.returncode == 2
    assert "operator 'fake' is unvalidated" in done.stderr
    assert not tree.results.exists()


EMULATOR_ROW = f"""
def test_emulated(benchmark):
    benchmark.pedantic(int, rounds=1)
    benchmark.extra_info["label"] = {EMULATOR_LABEL!r}
"""


def test_benchmarks_without_a_gpu_measure_the_emulator(tree: Tree) -> None:
    tree.write("pytest.ini", BENCH_INI)
    tree.write("benchmarks/bench_fake.py", NEEDS_GPU.replace("()", "(benchmark)", 1))
    tree.write("benchmarks/bench_emulator.py", EMULATOR_ROW)
    done = tree.session("bench")
    assert done.returncode == 0, done.stdout + done.stderr
    manifest = tree.manifest()
    assert manifest.status == "pass"
    assert manifest.reason == "1 emulator row; 1 row needs a GPU: needs sm_70, found no CUDA device"


def test_benchmarks_with_require_gpu_fail_without_one(tree: Tree) -> None:
    tree.write("pytest.ini", BENCH_INI)
    tree.write("benchmarks/bench_fake.py", NEEDS_GPU.replace("()", "(benchmark)", 1) + EMULATOR_ROW)
    assert tree.session("bench", "--require-gpu").returncode == 1
    assert tree.manifest().status == "fail"


def test_benchmarks_that_measure_nothing_fail(tree: Tree) -> None:
    tree.write("pytest.ini", BENCH_INI)
    tree.write("benchmarks/bench_fake.py", PASSES)
    assert tree.session("bench").returncode == 1
    assert tree.manifest().reason == "no row was measured (1 passed, 0 skipped)"


def test_memcheck_with_require_gpu_fails_without_one(tree: Tree) -> None:
    assert tree.session("memcheck", "--require-gpu").returncode == 1
    manifest = tree.manifest()
    assert manifest.status == "fail"
    assert manifest.reason.startswith("needs sm_70, found no GPU")
    assert (tree.run_folder() / schema.ENVIRONMENT).is_file()


MARKED = """
import pytest
@pytest.mark.memcheck
@pytest.mark.parametrize("device", ["V100", "emulated V100"])
def test_operator(device): assert device != "V100"
@pytest.mark.parametrize("device", ["emulated V100"])
def test_too_slow_for_a_sanitizer(device): pass
@pytest.mark.memcheck
def test_without_device(): assert False
"""
#: An operator whose library ran a kernel on the emulator.
LOADED = """
from types import SimpleNamespace
from sm70_kernels import _native
_native._loaded["fake"] = SimpleNamespace(
    cubin=lambda: b"cubin", ptx=lambda: b"ptx", capability_revision=1,
    launch_counts=lambda: {"fake_copy": {"emulated": 2}},
)
"""
#: The reports of the real canary, or all but one.
CANARY = f"""
from sm70_kernels.evidence.memory_checks import memcheck
EMULATED = "--emulated"
REPORTS = {CANARY_REPORTS!r}
if __name__ == "__main__":
    for line in REPORTS.splitlines():
        if not line.startswith(f"canary: {{MISSED}}:"):
            print(line)
"""
CAUGHT, MISSED = "MISSED = ''\n", "MISSED = 'taint'\n"


def emulated_tree(tree: Tree, loaded: str, canary: str) -> Tree:
    """A checkout with marked tests, an operator that ran on the emulator, or did not, and a canary that says this."""
    tree.write("tests/ops/test_inner.py", MARKED)
    tree.write("tests/ops/conftest.py", loaded)
    tree.write("sm70_kernels/evidence/memory_checks/canary.py", canary)
    path = built.manifest_path(tree.root)
    manifest = json.loads(path.read_text())
    for image in ("cubin", "ptx"):
        manifest["operators"]["fake"][f"{image}_sha256"] = hashlib.sha256(image.encode()).hexdigest()
    path.write_text(json.dumps(manifest))
    return tree


def test_memcheck_without_a_gpu_runs_on_the_emulator(tree: Tree) -> None:
    done = emulated_tree(tree, LOADED, CAUGHT + CANARY).session("memcheck")
    assert done.returncode == 0, done.stdout + done.stderr
    manifest, folder = tree.manifest(), tree.run_folder()
    assert manifest.status == "pass"
    checkers = (
        "emulator: bounds, alignment, write permission, uninitialised, taint, shared race, barrier, global race, stack"
    )
    assert manifest.reason.startswith(
        f"2 tests clean, 2 launches checked, 9 canaries caught ({checkers}); blocks that read what others write are "
        "not checked by it, nor allocations that the launch does not name; compute-sanitizer did not run: "
        "needs sm_70, found no GPU"
    )
    assert manifest.sanitizer == checkers
    assert [(sweep.tool, sweep.passed, sweep.executed) for sweep in manifest.sweeps] == [("emulator", True, 2)]
    assert manifest.libraries[0].images() == ["emulated"]
    assert "2 passed, 2 deselected" in (folder / "memcheck-emulator.log").read_text()
    assert "canary_out_of_bounds" in (folder / "memcheck-emulator-canary.log").read_text()
    assert str(tree.root) not in "".join(path.read_text() for path in folder.iterdir())


@pytest.mark.parametrize(
    "loaded,canary,reason",
    [
        ("", CAUGHT + CANARY, "emulator: no kernel ran on the emulator"),
        (LOADED, MISSED + CANARY, "emulator: the canary's fault 'taint' was not reported"),
    ],
    ids=["nothing ran", "not caught"],
)
def test_memcheck_on_the_emulator_needs_evidence(tree: Tree, loaded: str, canary: str, reason: str) -> None:
    assert emulated_tree(tree, loaded, canary).session("memcheck").returncode == 1
    assert tree.manifest().status == "fail"
    assert tree.manifest().reason.startswith(reason)


def test_the_gpu_sweep_selects_only_the_gpus_tests(tree: Tree) -> None:
    tree.write("tests/ops/test_inner.py", MARKED)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "sm70_kernels.evidence.sessions.pytest_plugin",
        "--evidence-target=gpu",
    ]
    done = subprocess.run(
        [*command, "--collect-only", "-q"], cwd=tree.root, env=tree.environment(), capture_output=True, text=True
    )
    assert [line for line in done.stdout.splitlines() if "::" in line] == [
        "tests/ops/test_inner.py::test_operator[V100]"
    ]
