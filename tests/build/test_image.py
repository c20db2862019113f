"""The image's files and the workflow, and what the entry point starts. No image is built here."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from sm70_kernels import _variables

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "docker/Dockerfile").read_text()
#: Without comments and with continued lines joined, as the engines read it.
INSTRUCTIONS = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", DOCKERFILE, flags=re.MULTILINE))
WORKFLOW = ROOT / ".github/workflows/ci.yml"


def script() -> ModuleType:
    """scripts/image.py as a module."""
    spec = importlib.util.spec_from_file_location("image_script", ROOT / "scripts/image.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def image_environment() -> dict[str, str]:
    """Variables that the image sets."""
    (block,) = re.findall(r"^ENV (.*)$", INSTRUCTIONS, re.MULTILINE)
    return dict(pair.split("=", 1) for pair in block.split())


def test_image_takes_everything_by_hash_and_no_toolkit() -> None:
    assert "pip install" in INSTRUCTIONS and "--require-hashes" in INSTRUCTIONS
    assert re.search(r"uv sync [^&]*--locked", INSTRUCTIONS)
    assert not re.search(r"cuda-toolkit|nvidia/cuda|cuda-compiler", INSTRUCTIONS)
    assert not re.search(r"curl|wget|^ADD ", INSTRUCTIONS, re.MULTILINE)


def test_base_image_is_an_argument_and_the_same_in_the_script() -> None:
    (default,) = re.findall(r"^ARG BASE_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert default.endswith("python:3.12-slim-bookworm")
    assert default == script().BASE_IMAGE


def test_image_runs_as_a_numeric_user_other_than_root() -> None:
    users = re.findall(r"^USER (\S+)$", INSTRUCTIONS, re.MULTILINE)
    assert users and re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1])


def test_variables_of_the_image_are_known_and_the_environment_lies_outside_the_checkout() -> None:
    variables = image_environment()
    _variables.check(variables)
    assert variables["SM70_KERNELS_BAKED_ENVIRONMENT"] == "1"
    checkout = script().INSIDE
    assert f"WORKDIR {checkout}\n" in INSTRUCTIONS
    assert not variables["UV_PROJECT_ENVIRONMENT"].startswith(checkout)
    assert variables["PATH"].startswith(variables["UV_PROJECT_ENVIRONMENT"] + "/bin:")


@pytest.mark.parametrize("label", ["revision", "version", "source", "licenses", "base.name", "base.digest"])
def test_image_has_label(label: str) -> None:
    assert f"org.opencontainers.image.{label}=" in INSTRUCTIONS


def test_default_command_is_test_memcheck_bench() -> None:
    assert 'CMD ["test", "memcheck", "bench"]' in INSTRUCTIONS
    assert f'ENTRYPOINT ["{script().INSIDE}/docker/entrypoint.sh"]' in INSTRUCTIONS
    assert os.access(ROOT / "docker/entrypoint.sh", os.X_OK)


def test_dockerignore_names_no_tracked_file() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("needs a git checkout")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    for file in listed.stdout.splitlines():
        parts = file.split("/")
        parents = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        for pattern in patterns:
            plain = pattern.removeprefix("**/")
            names = parts if pattern != plain else [name for name in parents if name.count("/") == plain.count("/")]
            hit = any(fnmatch.fnmatchcase(name, plain) for name in names)
            assert not hit, f".dockerignore: {pattern} leaves out {file}"


def test_every_hadolint_exception_has_its_reason() -> None:
    lines = (ROOT / ".hadolint.yaml").read_text().splitlines()
    for number, line in enumerate(lines):
        if re.match(r"\s+- (DL|SC)\d+", line):
            assert lines[number - 1].lstrip().startswith("#"), line
    assert "hadolint ignore" not in DOCKERFILE


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A folder with the entry point and programs that print how they were started."""
    (tmp_path / "docker").mkdir()
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "docker/entrypoint.sh", tmp_path / "docker")
    listing = "printf '%s\\n' '* build -> B.' '* test -> T.' '- memcheck' '- bench -> M.'"
    program(tmp_path / "scripts/nox", f'if [[ $1 == --list ]]; then {listing}; else echo nox "$@"; fi')
    program(tmp_path / "environment/bin/sm70-kernels", 'echo sm70-kernels "$@"')
    return tmp_path


def enter(container: Path, *arguments: str, path: str = os.environ["PATH"]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(container / "docker/entrypoint.sh"), *arguments],
        env={"PATH": path, "UV_PROJECT_ENVIRONMENT": str(container / "environment")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "started"),
    [
        (["test", "memcheck", "bench"], "nox -s test memcheck bench"),
        (["build", "test", "--", "--require-gpu"], "nox -s build test -- --require-gpu"),
        (["memcheck"], "nox -s memcheck"),
        (["-l"], "nox -l"),
        (["doctor", "--json"], "sm70-kernels doctor --json"),
        (["tes"], "sm70-kernels tes"),
    ],
)
def test_entry_point_starts(container: Path, arguments: list[str], started: str) -> None:
    done = enter(container, *arguments)
    assert (done.returncode, done.stdout.strip()) == (0, started), done.stderr


def test_entry_point_names_a_user_that_has_no_name(container: Path) -> None:
    program(container / "environment/bin/sm70-kernels", 'echo "$USER $LOGNAME"')
    program(container / "bin/id", "echo 12345; [[ $1 == -u ]]")  # as the real one: the number, and exit code 1
    done = enter(container, "doctor", path=f"{container}/bin:{os.environ['PATH']}")
    assert done.stdout == "user12345 user12345\n"


def test_entry_point_brings_the_recorded_runs_into_a_mounted_folder_without_them(container: Path) -> None:
    recorded = container / "build/recorded-results"
    recorded.mkdir(parents=True)
    (recorded / "INDEX").write_text("image\n")
    enter(container, "test")
    assert (container / "results/INDEX").read_text() == "image\n"
    (container / "results/INDEX").write_text("host\n")
    enter(container, "test")
    assert (container / "results/INDEX").read_text() == "host\n"


def test_entry_point_refuses_no_argument(container: Path) -> None:
    done = enter(container)
    assert done.returncode == 2
    assert "got no argument, want nox sessions" in done.stderr


def test_entry_point_names_the_remedy_for_results_it_cannot_write(container: Path) -> None:
    (container / "results").rmdir()
    (container / "results").symlink_to("/proc/sys")
    if os.access("/proc/sys", os.W_OK):
        (container / "results").unlink()  # root may write anywhere, not into a folder that is not there
    done = enter(container, "test")
    assert done.returncode == 2
    assert "--user" in done.stderr


def test_without_an_engine_the_session_refuses_with_a_sentence(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/image.py")], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "no container engine: tried docker (not installed), podman (not installed), buildah" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_does_not_answer_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "docker", "echo Cannot connect to the daemon >&2; exit 1")
    program(tmp_path / "buildah", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=None)
    image = script()
    assert image.find_engine(None) == "buildah"
    with pytest.raises(image.ImageError, match="installed, but: Cannot connect to the daemon"):
        image.find_engine("docker")


@pytest.mark.parametrize("engine", ["docker", "podman", "buildah"])
def test_build_command(engine: str, tmp_path: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    options = SimpleNamespace(base_image="base:1", tag="tag:1", ca_bundle="/certificates")
    command = script().build_command(engine, options, tmp_path, "c0ffee", "sha256:1")
    assert command[:2] == [engine, "build"] and command[-1] == str(tmp_path)
    assert {"BASE_IMAGE=base:1", "BASE_DIGEST=sha256:1", "COMMIT=c0ffee"} <= set(command)
    assert "id=ca-bundle,src=/certificates" in command
    declared = set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    assert {part.partition("=")[0] for part in command if re.match(r"[A-Z_]+=", part)} <= declared


def test_workflow_pins_actions_and_keeps_no_credentials() -> None:
    text = WORKFLOW.read_text()
    used = re.findall(r"uses: (.*)", text)
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert re.search(r"^permissions: \{\}$", text, re.MULTILINE)


def test_workflow_runs_the_script_of_every_machine_and_sessions_that_exist() -> None:
    text = WORKFLOW.read_text()
    assert "run: .ci/run" in text
    sessions = set(re.findall(r"^@nox\.session.*\ndef (\w+)", (ROOT / "noxfile.py").read_text(), re.MULTILINE))
    for line in re.findall(r"nox -s ([a-z_ ]+)", text):
        assert set(line.split()) <= sessions, line


def test_v100_job_waits_for_a_runner_and_takes_no_pull_request() -> None:
    job = WORKFLOW.read_text().partition("\n  v100:\n")[2]
    assert "if: vars.V100_RUNNER == 'true' && github.event_name != 'pull_request'" in job
    assert "self-hosted" in job and "--require-gpu" in job
