"""``doctor`` on recorded machines (tests/evidence/environments): what it finds, and what it says to do.

``v100``, ``h200`` and ``no-gpu`` must yield nothing. ``driver``, ``board``, ``power``, ... are names of checks.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sm70_kernels.cli import doctor, doctor_machine

RECORDS = Path(__file__).with_name("environments")

#: Record -> status and name of each check, with words of the finding and of the remedy.
WANTED: dict[str, list[tuple[str, str, str, str]]] = {
    "v100": [],
    "h200": [],
    "no-gpu": [],
    "driver-without-volta": [
        ("problem", "driver", "590.48.01", "R580 is the last branch"),
        ("problem", "gpu access", "590.48.01 is loaded", "Install"),
    ],
    "driver-before-cuda-12": [("problem", "driver", "older than CUDA 12", "R525 is the first")],
    "driver-before-the-ptx": [("problem", "driver", "PTX", "R570 or later")],
    "driver-before-the-ptx-on-v100": [],
    "board-of-72-sms": [("note", "board", "72 SMs, a full V100 has 80", "own roofs")],
    "power-cap": [("note", "power", "capped at 250 W, its default is 300 W", "nvidia-smi -pl 300")],
    "container-without-gpus": [("problem", "gpu access", "no access to its GPUs", "--gpus all")],
    "container-on-a-host-without-gpus": [("note", "gpu access", "there is none", "--gpus all")],
    "container-with-hidden-gpus": [("note", "gpu access", "'void' hides the GPUs", "Unset it")],
    "hidden-gpus": [("note", "gpu access", "CUDA_VISIBLE_DEVICES hides", "Unset it")],
    "driver-half-installed": [("problem", "gpu access", "no GPU can be used", "libcuda.so.1")],
    "driver-mismatch": [("problem", "gpu access", "803", "different versions: restart")],
    "compat-library": [("problem", "gpu access", "804", "LD_LIBRARY_PATH")],
    "uvm-not-loaded": [("problem", "gpu access", "999", "nvidia-modprobe -u")],
    "two-installations": [("problem", "installations", "2 times: /home/ada/checkout is used", "Keep one")],
    "two-distributions": [("problem", "installations", "metadata is installed 2 times", "pip uninstall")],
}


def record(name: str) -> doctor_machine.Machine:
    return msgspec.json.decode((RECORDS / f"{name}.json").read_bytes(), type=doctor_machine.Machine)


@pytest.mark.parametrize("name", sorted(path.stem for path in RECORDS.glob("*.json")))
def test_recorded_machine(name: str) -> None:
    found = list(doctor_machine.check(record(name)))
    assert [(check.status, check.name) for check in found] == [wanted[:2] for wanted in WANTED[name]]
    for check, (_, _, words, remedy) in zip(found, WANTED[name], strict=True):
        assert words in check.found
        assert check.remedy is not None and remedy in check.remedy


def test_this_machine_is_described_without_an_exception() -> None:
    found = doctor_machine.collect()
    assert len(found.installations) == 1
    assert len(found.distributions) <= 1


def test_installations_in_the_order_of_the_path(tmp_path: Path) -> None:
    for name in ("first", "second"):
        package = tmp_path / name / "sm70_kernels"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "second")
    path = [str(tmp_path / name) for name in ("empty", "second", "link", "missing", "first")]
    assert doctor_machine.installations(path) == [str(tmp_path / "second"), str(tmp_path / "first")]


@pytest.mark.parametrize(
    "version,cuda,volta,status",
    [
        ("2.10.0", "12.8", True, "ok"),
        ("2.10.0+cpu", None, True, "problem"),
        ("2.11.0+cu130", "13.0", True, "problem"),
        ("2.10.0+cu130", "13.0", True, "problem"),
        ("2.11.0+cu128", "12.8", True, "problem"),
        ("2.9.1+cu128", "12.8", True, "note"),
        ("2.11.0+cu130", "13.0", False, "note"),
        (None, None, True, "problem"),
    ],
)
def test_torch_builds(version: str | None, cuda: str | None, volta: bool, status: str) -> None:
    (check,) = doctor.check_torch(version, cuda, volta=volta)
    assert check.status == status
    if status == "problem":
        assert check.remedy is not None and "2.10.0" in check.remedy
