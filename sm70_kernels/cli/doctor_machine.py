"""``doctor`` on the machine: driver branch, board, power cap, container, installations that hide each other.

``collect`` asks the machine once; everything else judges the record, so that a record of any machine can be judged.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from sm70_kernels.build.settings import PACKAGE
from sm70_kernels.cli.diagnosis import Check, note, problem
from sm70_kernels.evidence.runs.schema import Record

#: NVIDIA's last driver branch for Volta; R525 is the first for CUDA 12, R570 the first that compiles PTX of CUDA 12.8.
LAST_BRANCH, FIRST_BRANCH, PTX_BRANCH = 580, 525, 570
_LAST = f"R{LAST_BRANCH} is the last branch for V100"
FULL_SMS = 80
VOLTA = "7.0"
#: A cap set in whole watts may read back a fraction lower.
_POWER_TOLERANCE_W = 1.0

#: Codes of cuInit and what they mean here (CUDA driver API, CUresult).
_INIT_REMEDIES = {
    "802": "Start the fabric manager (nvidia-fabricmanager), or wait until the system has come up",
    "803": (
        "libcuda and the kernel's driver are of different versions: restart after a driver upgrade; in a container, "
        "start it again, and remove libcuda of a cuda-compat package from LD_LIBRARY_PATH"
    ),
    "804": (
        "A cuda-compat package's libcuda is loaded, which this GPU does not support: remove it, or its folder from "
        "LD_LIBRARY_PATH"
    ),
    "999": "Load the kernel module with 'nvidia-modprobe -u'; in a container, start it again with '--gpus all'",
}


class Board(Record, kw_only=True, frozen=True):
    """A visible GPU."""

    name: str
    capability: str
    sm_count: int
    power_limit_w: float | None = None
    default_power_limit_w: float | None = None


class Machine(Record, kw_only=True, frozen=True):
    """What doctor knows of a machine before it loads anything."""

    driver: str | None = None
    """The version that NVML reports."""
    kernel_driver: str | None = None
    """Version of the kernel module, which a container sees even without access to the GPUs."""
    boards: list[Board] = msgspec.field(default_factory=list)
    gpu_reason: str | None = None
    container: bool = False
    variables: dict[str, str] = msgspec.field(default_factory=dict)
    installations: list[str] = msgspec.field(default_factory=list)
    """Folders on the path with this package, the one that is imported first."""
    distributions: list[str] = msgspec.field(default_factory=list)
    """Places of the package's installed metadata."""


def check(machine: Machine) -> Iterator[Check]:
    """Everything that is off. A machine as it should be yields nothing."""
    yield from check_driver(machine)
    yield from check_access(machine)
    for board in machine.boards:
        yield from check_board(board)
    yield from check_installations(machine)


def _branch(version: str | None) -> int | None:
    match = re.match(r"(\d+)\.", version or "")
    return int(match.group(1)) if match else None


def _has_volta(machine: Machine) -> bool:
    return any(board.capability == VOLTA for board in machine.boards)


def check_driver(machine: Machine) -> Iterator[Check]:
    """The driver's branch against what Volta and CUDA 12 need."""
    version = machine.driver or machine.kernel_driver
    branch = _branch(version)
    if branch is None:
        return
    if branch > LAST_BRANCH and not machine.boards:
        yield problem(
            "driver",
            f"driver {version} is installed and shows no GPU; it does not know V100",
            f"Where the GPU is a V100, install a driver of branch R{LAST_BRANCH}: {_LAST}",
        )
    elif branch > LAST_BRANCH and _has_volta(machine):
        yield note("driver", f"driver {version} with a V100", f"Use a driver of branch R{LAST_BRANCH}: {_LAST}")
    elif branch < FIRST_BRANCH:
        wanted = f"Install a driver of branch R{LAST_BRANCH} (R{FIRST_BRANCH} is the first for CUDA 12; {_LAST})"
        yield problem("driver", f"driver {version} is older than CUDA 12", wanted)
    elif branch < PTX_BRANCH and machine.boards and not _has_volta(machine):
        wanted = f"Install R{PTX_BRANCH} or later: only from there on does the JIT take PTX of CUDA 12.8"
        yield problem("driver", f"driver {version} can't compile this package's PTX", wanted)


def check_access(machine: Machine) -> Iterator[Check]:
    """Why no GPU is visible although the machine seems to have one."""
    if machine.boards:
        return
    code = re.search(r"cuInit returned (\d+)", machine.gpu_reason or "")
    if code:
        remedy = _INIT_REMEDIES.get(code.group(1), "Look up the code in the CUDA driver API (CUresult), and in dmesg")
        yield problem("gpu access", machine.gpu_reason or "", remedy)
        return
    visible = machine.variables.get("NVIDIA_VISIBLE_DEVICES")
    start = (
        "Start the container with '--gpus all' (docker, podman with CDI) and the NVIDIA container toolkit on the host"
    )
    if visible in ("none", "void", ""):
        yield note("gpu access", f"NVIDIA_VISIBLE_DEVICES={visible!r} hides the GPUs", f"Unset it. {start}")
    elif machine.variables.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        yield note("gpu access", "CUDA_VISIBLE_DEVICES hides the GPUs", "Unset it")
    elif machine.kernel_driver and machine.container:
        found = f"the host has NVIDIA driver {machine.kernel_driver}, this container has no access to its GPUs"
        yield problem("gpu access", found, start)
    elif machine.kernel_driver:
        found = f"kernel driver {machine.kernel_driver} is loaded, and no GPU can be used ({machine.gpu_reason})"
        yield problem("gpu access", found, "Install the user part of the same driver (libcuda.so.1), then restart")
    elif visible:
        yield note("gpu access", f"NVIDIA_VISIBLE_DEVICES={visible!r} asks for GPUs, and there is none", start)


def check_board(board: Board) -> Iterator[Check]:
    """What makes a board slower than the one that figures are about."""
    if board.capability == VOLTA and board.sm_count != FULL_SMS:
        yield note(
            "board",
            f"{board.name} has {board.sm_count} SMs, a full V100 has {FULL_SMS}",
            "Operators run; compare shares of this card's own roofs, which 'bench' measures, not times of other cards",
        )
    limit, default = board.power_limit_w, board.default_power_limit_w
    if limit is not None and default is not None and limit < default - _POWER_TOLERANCE_W:
        yield note(
            "power",
            f"{board.name} is capped at {limit:.0f} W, its default is {default:.0f} W",
            f"For times that others can compare: 'sudo nvidia-smi -pl {default:.0f}'",
        )


def check_installations(machine: Machine) -> Iterator[Check]:
    """More than one copy of the package: the first on the path hides the others."""
    copies, records = machine.installations, machine.distributions
    if len(copies) > 1:
        used, *others = copies
        yield problem(
            "installations",
            f"the package is on the path {len(copies)} times: {used} is used, {', '.join(others)} is not",
            "Keep one: 'pip uninstall sm70-kernels' in the environment, or take the checkout out of PYTHONPATH",
        )
    elif len(records) > 1:
        yield problem(
            "installations",
            f"the package's metadata is installed {len(records)} times: {', '.join(records)}",
            "Run 'pip uninstall sm70-kernels' until it finds nothing, then install once",
        )


def installations(path: Sequence[str]) -> list[str]:
    """Folders of a module path that hold this package, in the order in which Python looks."""
    folders = [Path(entry or ".").resolve() for entry in path]
    found = [str(folder) for folder in folders if (folder / PACKAGE.name / "__init__.py").is_file()]
    return list(dict.fromkeys(found))


def _distributions() -> list[str]:
    found = importlib.metadata.distributions(name="sm70-kernels")
    return list(dict.fromkeys(str(Path(str(entry.locate_file("."))).resolve()) for entry in found))


def _kernel_driver() -> str | None:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    match = re.search(r"\s(\d{3}\.\d+(?:\.\d+)?)\s", text)
    return match.group(1) if match else "of an unknown version"


def _default_power_w(bus: str) -> float | None:
    """The power cap that the board comes with; None where NVML does not report it. NVML must be initialised."""
    import pynvml

    try:
        handle = pynvml.nvmlDeviceGetHandleByPciBusId(bus.encode())
        return float(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(handle)) / 1000
    except pynvml.NVMLError:
        return None


def _default_powers(buses: Sequence[str]) -> list[float | None]:
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # no package, or one of NVML's own classes: no driver
        return [None for _ in buses]
    try:
        return [_default_power_w(bus) for bus in buses]
    finally:
        pynvml.nvmlShutdown()


def _in_container(variables: Mapping[str, str]) -> bool:
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))
    return "container" in variables or any(mark.exists() for mark in marks)


def collect(variables: Mapping[str, str] = os.environ) -> Machine:
    """Ask this machine. Never raises."""
    from sm70_kernels.evidence.machine import environment, gpu

    survey = gpu.survey()
    driver, gpus, reason = environment.devices()
    defaults = _default_powers([device.pci_bus_id for device in survey.devices])
    boards = [
        Board(
            name=found.name,
            capability=found.capability,
            sm_count=found.sm_count,
            power_limit_w=found.power_limit_w,
            default_power_limit_w=default,
        )
        for found, default in zip(gpus, defaults, strict=True)
    ]
    return Machine(
        driver=driver,
        kernel_driver=_kernel_driver(),
        boards=boards,
        gpu_reason=reason,
        container=_in_container(variables),
        variables={
            name: variables[name] for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES") if name in variables
        },
        installations=installations(sys.path),
        distributions=_distributions(),
    )
