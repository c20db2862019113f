"""Records on a GPU what tests/recorded compares the emulator with: outputs of the same PTX that the sm_70 cubin is of.

On the machine that builds, compile the PTX of the kernels of tests/emulator, of the random programs and the corpus:

    python scripts/record_on_gpu.py prepare build/recorded_ptx

On a machine with a GPU, which needs numpy, torch, the built package and that folder, but no compiler:

    SM70_KERNELS_ALLOW_JIT=1 python scripts/record_on_gpu.py record --ptx build/recorded_ptx --out tests/recorded

`record --group random_programs` records but one group. Every case runs twice. One that fails is reported and left out,
and the others are recorded all the same, in a fresh process where the failure has spoilt the CUDA context.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import functools
import hashlib
import json
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.recorded import corpus_cases, kernel_cases, random_program_cases, recording  # noqa: E402 - found through the line above
from tests.recorded.inputs import canonical, digest  # noqa: E402
from tests.recorded.ptx_text import kernel_hashes  # noqa: E402

#: A worker ends with this to be started anew for the cases that are left: its CUDA context is of no use any more.
START_ANEW = 3
WORKER_SECONDS = 120
MOST_RESTARTS = 8

_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BYTES = 5, 6  # CUjit_option
_STACK_BYTES = 16384  # of a thread: a recursive kernel's need is not known to the driver


class CudaError(RuntimeError):
    """A CUDA driver call failed."""


class Driver:
    """The few functions of the CUDA driver that running a kernel takes."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self("cuInit", 0)
        self._device = ctypes.c_int()
        self("cuDeviceGet", ctypes.byref(self._device), 0)

    def __call__(self, function: str, *arguments: Any) -> None:
        result = getattr(self._library, function)(*arguments)
        if result != 0:
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(result, ctypes.byref(text))
            raise CudaError(f"{function}: {text.value.decode() if text.value else result}")

    def facts(self) -> dict[str, str]:
        """Name and compute capability of the device, version of the driver."""
        name = ctypes.create_string_buffer(100)
        self("cuDeviceGetName", name, len(name), self._device)
        numbers = []
        for attribute in (_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR):
            number = ctypes.c_int()
            self("cuDeviceGetAttribute", ctypes.byref(number), attribute, self._device)
            numbers.append(number.value)
        nvml, version = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.create_string_buffer(100)
        if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(version, len(version)):
            raise CudaError("NVML does not report the driver's version")
        capability = ".".join(map(str, numbers))
        return {"device": name.value.decode(), "capability": capability, "driver": version.value.decode()}

    def open(self) -> None:
        """Make the device's context current."""
        context = ctypes.c_void_p()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self("cuCtxSetCurrent", context)
        self("cuCtxSetLimit", 0, ctypes.c_size_t(_STACK_BYTES))

    def module(self, ptx: bytes) -> ctypes.c_void_p:
        """Compile PTX for the device."""
        module, log = ctypes.c_void_p(), ctypes.create_string_buffer(8192)
        options = (ctypes.c_int * 2)(_JIT_ERROR_LOG_BUFFER, _JIT_ERROR_LOG_BYTES)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            self("cuModuleLoadDataEx", ctypes.byref(module), ctypes.c_char_p(ptx), 2, options, values)
        except CudaError as error:
            raise CudaError(f"{error}\n{log.value.decode()}") from None
        return module

    def launch(self, module: ctypes.c_void_p, case: kernel_cases.Case) -> tuple[Any, ...]:
        """Run a case; its arguments afterwards."""
        function = ctypes.c_void_p()
        self("cuModuleGetFunction", ctypes.byref(function), module, case.kernel.encode())
        values: list[Any] = []
        for argument in case.arguments:
            if isinstance(argument, np.ndarray):
                address = ctypes.c_uint64()
                self("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(argument.nbytes))
                self(
                    "cuMemcpyHtoD_v2", address, ctypes.c_void_p(argument.ctypes.data), ctypes.c_size_t(argument.nbytes)
                )
                values.append(address)
            else:
                values.append(ctypes.create_string_buffer(argument.tobytes(), argument.nbytes))
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        grid, block = (
            (*size, 1, 1)[:3] if isinstance(size, tuple) else (int(size), 1, 1) for size in (case.grid, case.block)
        )
        self("cuLaunchKernel", function, *grid, *block, case.dynamic_shared_bytes, None, pointers, None)
        self("cuCtxSynchronize")
        after = []
        for argument, value in zip(case.arguments, values, strict=True):
            if isinstance(argument, np.ndarray):
                result = np.empty_like(argument)
                self("cuMemcpyDtoH_v2", ctypes.c_void_p(result.ctypes.data), value, ctypes.c_size_t(result.nbytes))
                self("cuMemFree_v2", value)
                after.append(result)
            else:
                after.append(argument)
        return tuple(after)


# What a group's worker makes of a case: its entry, with the outputs as arrays, and the names of those to keep whole.
# And what fails when the CUDA context is of no use any more.
Recorder = tuple[Callable[[str], dict[str, Any]], Callable[[], None]]


#: Groups of launches of PTX files: their cases, and the names of the files.
LAUNCHES: dict[str, tuple[Callable[[], dict[str, kernel_cases.Case]], list[str]]] = {
    "kernels": (kernel_cases.all_cases, list(kernel_cases.SOURCES)),
    "random_programs": (random_program_cases.all_cases, list(random_program_cases.units())),
    "corpus": (corpus_cases.all_cases, corpus_cases.SOURCES),
}


def launch_recorder(group: str, ptx_folder: Path) -> Recorder:
    """Launches the kernels of PTX files."""
    driver = Driver()
    driver.open()
    cases = LAUNCHES[group][0]()

    @functools.cache
    def loaded(source: str) -> tuple[ctypes.c_void_p, dict[str, str]]:
        ptx = (ptx_folder / f"{source}.ptx").read_bytes()
        return driver.module(ptx), kernel_hashes(ptx.decode())

    def record(name: str) -> dict[str, Any]:
        case = cases[name]
        module, hashes = loaded(case.source)
        first, second = (case.outputs(driver.launch(module, case)) for _ in range(2))
        raw = case.raw()
        require_repeatable(first, second, raw)
        entry = {"kernel": case.kernel, "ptx": hashes[case.kernel], "inputs": case.inputs()}
        return entry | {"outputs": first, "raw": raw}

    return record, lambda: driver("cuCtxSynchronize")


def kv_cache_recorder(_group: str, _ptx_folder: Path) -> Recorder:
    """Calls the kv_cache operators; their DSO holds the PTX."""
    import torch

    from sm70_kernels.ops import kv_cache
    from tests.recorded import kv_cache_cases

    cases = kv_cache_cases.all_cases()
    hashes = kernel_hashes(kv_cache.library.ptx().decode())

    def record(name: str) -> dict[str, Any]:
        first, second = (cases[name].run("cuda") for _ in range(2))
        require_repeatable(first.outputs, second.outputs, set())
        entry = {"kernel": first.kernel, "ptx": hashes[first.kernel], "inputs": first.inputs}
        return entry | {"outputs": first.outputs, "raw": set(first.outputs) if cases[name].keep else set()}

    return record, torch.cuda.synchronize


RECORDERS: dict[str, Callable[[str, Path], Recorder]] = {
    **dict.fromkeys(LAUNCHES, launch_recorder), "kv_cache": kv_cache_recorder,
}  # fmt: skip


def require_repeatable(first: dict[str, np.ndarray], second: dict[str, np.ndarray], within_bounds: set[str]) -> None:
    """Refuse exact outputs that two runs do not agree on: no recording could be compared with them."""
    for name in first.keys() - within_bounds:
        if digest([canonical(first[name])]) != digest([canonical(second[name])]):
            raise RuntimeError(f"two runs differ in {name}")


def case_names(group: str) -> list[str]:
    """Names of a group's cases, in order."""
    if group in LAUNCHES:
        return list(LAUNCHES[group][0]())
    from tests.recorded import kv_cache_cases

    return list(kv_cache_cases.all_cases())


def ptx_files(group: str, ptx_folder: Path) -> dict[str, str]:
    """SHA-256 of a group's whole PTX files."""
    if group in LAUNCHES:
        files = {name: (ptx_folder / f"{name}.ptx").read_bytes() for name in LAUNCHES[group][1]}
    else:
        from sm70_kernels.ops import kv_cache

        files = {"kv_cache": kv_cache.library.ptx()}
    return {name: hashlib.sha256(ptx).hexdigest() for name, ptx in files.items()}


def work(group: str, ptx_folder: Path, folder: Path, names: list[str]) -> int:
    """Run cases in this process, and leave a file for each."""
    record, synchronise = RECORDERS[group](group, ptx_folder)
    for name in names:
        try:
            case = record(name)
        except Exception as error:
            traceback.print_exc()
            (folder / f"{name}.json").write_text(json.dumps({"error": f"{type(error).__name__}: {error}"}))
            try:
                synchronise()
            except Exception:  # torch and the driver functions here raise errors of their own
                return START_ANEW
            continue
        np.savez(folder / f"{name}.npz", **case.pop("outputs"))
        (folder / f"{name}.json").write_text(json.dumps(case | {"raw": sorted(case["raw"])}))
    return 0


def run_group(group: str, ptx_folder: Path, folder: Path) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Recorded cases of a group, and what went wrong with the others."""
    names = case_names(group)
    waiting, failed = list(names), {}
    for _ in range(MOST_RESTARTS):
        command = [sys.executable, __file__, "work", group, "--ptx", ptx_folder, "--out", folder, *waiting]
        try:
            status = subprocess.run(command, timeout=WORKER_SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            status = f"no end after {WORKER_SECONDS} s"
        waiting = [name for name in waiting if not (folder / f"{name}.json").exists()]
        if not waiting:
            break
        if status != START_ANEW:  # it died of the case that it was at
            failed[waiting.pop(0)] = f"the process ended: {status}"
    failed |= dict.fromkeys(waiting, "not run, after too many failures")
    cases = {}
    for name in names:
        if name in failed:
            continue
        case = json.loads((folder / f"{name}.json").read_text())
        if "error" in case:
            failed[name] = case["error"]
            continue
        with np.load(folder / f"{name}.npz") as outputs:
            cases[name] = case | {"outputs": dict(outputs)}
    return cases, failed


def record(ptx_folder: Path, out: Path, raw: Path | None, groups: list[str]) -> int:
    """Record the groups."""
    facts = Driver().facts() | {"date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    print(facts)
    everything, problems = {}, 0
    for group in groups:
        with tempfile.TemporaryDirectory() as folder:
            cases, failed = run_group(group, ptx_folder, Path(folder))
        recording.write(group, out, facts | {"ptx_files": ptx_files(group, ptx_folder)}, cases)
        print(f"{group}: {len(cases)} cases recorded, {len(failed)} failed")
        for name, problem in failed.items():
            print(f"  {name}: {problem}")
        problems += len(failed)
        for name, case in cases.items():
            everything |= {f"{group}/{name}/{output}": array for output, array in case["outputs"].items()}
    if raw:
        np.savez_compressed(raw, **everything)
    return 1 if problems else 0


def prepare(folder: Path) -> int:
    """Compile the PTX of the kernels of tests/emulator, of the random programs and of the corpus."""
    from sm70_kernels.build.ptx import relocate
    from sm70_kernels.lab.toolchain import compile_to_ptx, cuda_include
    from tests.corpus import runs
    from tests.emulator import KERNELS
    from tests.random_programs import cuda

    folder.mkdir(parents=True, exist_ok=True)
    sources = {name: (KERNELS / f"{name}.cu").read_text() for name in kernel_cases.SOURCES}
    sources |= {name: cuda.source(programs) for name, programs in random_program_cases.units().items()}
    texts = {name: compile_to_ptx(source)[0] for name, source in sources.items()}
    texts |= {name: runs.ptx(name) for name in corpus_cases.SOURCES}
    for name, ptx in texts.items():
        (folder / f"{name}.ptx").write_text(relocate(ptx, {str(cuda_include()): "cuda", str(Path.cwd()): ""}))
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("prepare", help="compile PTX into a folder").add_argument("folder", type=Path)
    recorder = commands.add_parser("record", help="run all cases on this machine's GPU")
    recorder.add_argument("--raw", type=Path, help="npz file for every output, to look into a difference")
    recorder.add_argument("--group", choices=RECORDERS, action="append", help="only this one; may be given again")
    worker = commands.add_parser("work", help="run some cases in this process (record does so)")
    worker.add_argument("group", choices=RECORDERS)
    worker.add_argument("names", nargs="+")
    for command in (recorder, worker):
        command.add_argument("--ptx", type=Path, required=True, help="folder of 'prepare'")
        command.add_argument("--out", type=Path, required=True, help="folder for results")
    options = parser.parse_args()
    if options.command == "prepare":
        return prepare(options.folder)
    if options.command == "work":
        return work(options.group, options.ptx, options.out, options.names)
    return record(options.ptx, options.out, options.raw, options.group or list(RECORDERS))


if __name__ == "__main__":
    sys.exit(main())
