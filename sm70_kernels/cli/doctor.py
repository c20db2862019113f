"""``sm70-kernels doctor``: everything that has to be right before an operator runs, each with its remedy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

from sm70_kernels import _variables
from sm70_kernels.build.settings import ROOT
from sm70_kernels.cli import doctor_machine, libraries, output
from sm70_kernels.cli.diagnosis import Check, note, ok, problem
from sm70_kernels.evidence.machine import gpu
from sm70_kernels.evidence.runs.schema import SCHEMA_VERSION, Record

#: The torch that the lock file pins; later ones load the same DSOs, but have no kernels for Volta of their own.
WANTED_TORCH, WANTED_TORCH_CUDA = "2.10.0", "12.8"

_LOAD_SECONDS = 120.0


class Report(Record, kw_only=True, frozen=True):
    """All checks. ``usable`` is false when one of them is a problem."""

    schema_version: int = SCHEMA_VERSION
    usable: bool
    checks: list[Check]


def check_variables(variables: Mapping[str, str]) -> Iterator[Check]:
    """Variables of this package and those that change which device is seen."""
    try:
        _variables.check(variables)
        allow_jit, emulate = (_variables.flag(name, variables) for name in ("ALLOW_JIT", "EMULATE"))
    except _variables.VariableError as error:
        yield problem("variables", str(error), "Correct or unset the variable")
        return
    shown = [f"{name}={value}" for name, value in sorted(variables.items()) if name.startswith(_variables.PREFIX)]
    yield ok("variables", ", ".join(shown) or f"no {_variables.PREFIX}* variable is set")
    if "CUDA_VISIBLE_DEVICES" in variables:
        yield note("variables", f"CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']!r} limits the GPUs", None)
    yield ok(
        "jit", "allowed: newer GPUs run the PTX" if allow_jit else "not allowed: of GPUs only a V100 runs the operators"
    )
    yield ok(
        "emulate",
        f"{_variables.PREFIX}EMULATE=1: CPU tensors run on the emulated V100"
        if emulate
        else "off: CPU tensors are refused outside sm70_kernels.lab.emulator.enabled()",
    )


def check_gpus(survey: gpu.Survey, driver: str | None, variables: Mapping[str, str]) -> Iterator[Check]:
    """Driver and visible GPUs. A machine without a GPU is fit to build and to run what needs none."""
    if not survey.devices:
        yield note(
            "gpu",
            survey.reason or "no GPU",
            "To run operators at speed, use a V100 host with an NVIDIA driver (R580 is the last branch for V100); in a "
            "container, start it with '--gpus all'. CPU tensors run on the emulated V100 (docs/emulator.md)",
        )
        return
    yield ok("driver", driver or "loaded, its version is unknown")
    try:
        allow_jit = _variables.flag("ALLOW_JIT", variables)
    except _variables.VariableError:
        allow_jit = False
    for device in survey.devices:
        found = f"{device.index}: {device.name}, {device.sm()}, {device.sm_count} SMs"
        reason = gpu.unusable(gpu.Survey((device,), None), allow_jit)
        if reason is None:
            yield ok("gpu", found if device.capability == gpu.VOLTA else f"{found}, runs the PTX through its JIT")
        elif device.capability > gpu.VOLTA:
            yield problem("gpu", found, f"Use a V100, or set {_variables.PREFIX}ALLOW_JIT=1 to check numerics here")
        else:
            yield problem("gpu", found, "Use a V100: this GPU is older than sm_70 and runs neither cubin nor PTX")


def check_torch(version: str | None, cuda: str | None, *, volta: bool = False) -> Iterator[Check]:
    """The installed torch, without importing it. ``volta``: its own kernels must run on a V100 here."""
    if version is None:
        yield problem("torch", "torch is not installed", f"Install torch=={WANTED_TORCH}: 'scripts/nox -s build'")
    elif cuda is None:
        yield problem(
            "torch",
            f"torch {version} is a build without CUDA",
            f"Install PyPI's torch=={WANTED_TORCH}, which is the CUDA {WANTED_TORCH_CUDA} build",
        )
    elif volta and (_release(version) > _release(WANTED_TORCH) or _release(cuda) >= (13,)):
        yield problem(
            "torch",
            f"torch {version} for CUDA {cuda} has no sm_70 kernels: torch's own operations fail on this V100",
            f"Install PyPI's torch=={WANTED_TORCH}, which is the CUDA {WANTED_TORCH_CUDA} build",
        )
    elif version.split("+")[0] != WANTED_TORCH or cuda != WANTED_TORCH_CUDA:
        yield note(
            "torch",
            f"torch {version} for CUDA {cuda}",
            f"The lock file pins torch {WANTED_TORCH} for CUDA {WANTED_TORCH_CUDA}, the last release for V100",
        )
    else:
        yield ok("torch", f"{version} for CUDA {cuda}")


def _release(version: str) -> tuple[int, ...]:
    """``2.10.0+cu128`` as (2, 10, 0), up to the first part that is no number."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match.group().split("."))) if match else ()


def check_loading(root: Path) -> Iterator[Check]:
    """Load every operator in a process of its own, which may crash."""
    code = "import sm70_kernels.ops; from sm70_kernels import _native; print(', '.join(sorted(_native.loaded())))"
    command = [sys.executable, "-c", code]
    path = os.pathsep.join(part for part in (str(root), os.environ.get("PYTHONPATH")) if part)
    try:
        done = subprocess.run(
            command,
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_LOAD_SECONDS,
            check=False,
            env={**os.environ, "PYTHONPATH": path},
        )
    except subprocess.TimeoutExpired:
        yield problem("loading", f"the operators did not load in {_LOAD_SECONDS:.0f} s", "Check driver and file system")
        return
    if done.returncode == 0:
        yield ok("loading", f"loaded: {done.stdout.strip()}")
    else:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        yield problem("loading", words[-1], "Rebuild with 'scripts/nox -s build', or reinstall the wheel")


def examine(root: Path = ROOT, variables: Mapping[str, str] = os.environ) -> Report:
    """Run all checks."""
    here = doctor_machine.collect(variables)
    survey = gpu.survey()
    version, cuda = libraries.torch_build()
    checks = [
        ok("python", f"{sys.version.split()[0]}, {sys.implementation.name}"),
        *check_variables(variables),
        *check_gpus(survey, here.driver, variables),
        *doctor_machine.check(here),
        *check_torch(version, cuda, volta=any(device.capability == gpu.VOLTA for device in survey.devices)),
        *libraries.check(root),
    ]
    if version is not None:
        checks += check_loading(root)
    return Report(usable=all(check.status != "problem" for check in checks), checks=checks)


def show(report: Report, *, as_json: bool) -> None:
    """Print the report."""
    if as_json:
        output.json(report)
        return
    rows = [(check.status, check.name, check.found, check.remedy or "") for check in report.checks]
    output.table("sm70-kernels doctor", ("state", "what", "found", "remedy"), rows)
    count = sum(check.status == "problem" for check in report.checks)
    state: Literal["usable", "not usable"] = "usable" if report.usable else "not usable"
    print(f"{state}: {count} {'problem' if count == 1 else 'problems'}")
