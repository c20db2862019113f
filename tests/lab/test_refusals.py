"""What the laboratory refuses, in sentences, before anything runs."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sm70_kernels import lab

X = np.zeros(32, np.float32)
GOOD: dict[str, Any] = {"grid": 1, "block": 32, "args": [np.float32(1), X, X, np.int32(32)]}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": 0}, r"argument 'grid': got 0, want one to three whole numbers from 1 to 2147483647, 65535, 65535"),
        ({"grid": (1, 65536)}, r"argument 'grid': got \(1, 65536\)"),
        ({"grid": (1, 1, 1, 1)}, r"argument 'grid': got \(1, 1, 1, 1\)"),
        ({"grid": "4"}, r"argument 'grid': got '4'"),
        ({"grid": 1.5}, r"argument 'grid': got 1.5"),
        ({"block": (64, 32)}, r"argument 'block': got \(64, 32, 1\), which is 2048 threads, want at most 1024"),
        ({"block": (1, 1, 65)}, "argument 'block'"),
        ({"dynamic_shared_bytes": 98305}, "argument 'dynamic_shared_bytes': got 98305, want 0 to 98304"),
        (
            {"args": GOOD["args"][:3]},
            "argument 'args': got 3 of them, want 4: saxpy has parameters of 4, 8, 8, 4 bytes",
        ),
        ({"args": [np.float64(1), X, X, np.int32(1)]}, "argument 0: got float64 of 8 bytes, want 4 bytes, as saxpy"),
        ({"args": [X, X, X, np.int32(1)]}, "argument 0: got a pointer of 8 bytes, want 4 bytes"),
        ({"args": [2.0, X, X, np.int32(1)]}, r"argument 0: got the Python number 2.0, .* Pass numpy.float32\(2.0\)"),
        ({"args": [np.float32(1), X, X, 5]}, r"argument 3: got the Python number 5, .* Pass numpy.int32\(5\)"),
        ({"args": [np.float32(1), X, [1.0], np.int32(1)]}, "argument 2: got list, want a numpy array, a torch tensor"),
        (
            {"args": [np.float32(1), X[::2], X, np.int32(1)]},
            r"argument 1: got an array with strides \(8,\), want a con",
        ),
        (
            {"args": [np.float32(1), torch.zeros(4, 4).T, X, np.int32(1)]},
            r"argument 1: got a tensor with strides \(1, ",
        ),
        ({"args": [np.float32(1), torch.zeros(4, device="meta"), X, np.int32(1)]}, r"a tensor on meta.*Pass x.cpu\(\)"),
        ({"outputs": [0]}, "argument 'outputs': got 0, want arrays of 'args'.*: argument 1, argument 2"),
        ({"outputs": ["y"]}, "argument 'outputs': got 'y'"),
        ({"seed": -1}, r"launch: argument 'seed': got -1, want a whole number from 0 to"),
        ({"threads": 0}, r"launch: argument 'threads': got 0"),
        ({"tensor_rounding": "up"}, r"argument 'tensor_rounding': got 'up', want 'truncate' or 'nearest'"),
        ({"checkers": ["luck"]}, "argument 'checkers': got 'luck', want some of uninitialised, taint"),
        ({"undefined": [2]}, "argument 'undefined': .* without checkers. Pass checkers=lab.ALL"),
        ({"tainted": [7], "checkers": lab.ALL}, "argument 'tainted': got 7"),
    ],
)
def test_launches(module: lab.Module, change: dict[str, Any], words: str) -> None:
    with pytest.raises(lab.LabError, match=words):
        module.kernel("saxpy").launch(**{**GOOD, **change})


def test_a_read_only_output(module: lab.Module) -> None:
    frozen = np.zeros(32, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(lab.LabError, match=r"argument 2: got a read-only array.*Pass x.copy\(\)"):
        module.kernel("saxpy").launch(1, 32, [np.float32(1), X, frozen, np.int32(32)], outputs=[2])


def test_a_launch_bound_and_static_shared_memory(module: lab.Module) -> None:
    with pytest.raises(lab.LabError, match=r"which is 128 threads, want at most 64, the kernel's launch bound"):
        module.kernel("bounded").launch(1, 128, [np.zeros(128, np.int32)])
    with pytest.raises(lab.LabError, match=r"nothing has no parameters"):
        module.kernel("nothing").launch(1, 1, [X])
    source = 'extern "C" __global__ void k(int* x) { __shared__ int t[1024]; t[threadIdx.x] = *x; *x = t[1]; }'
    with pytest.raises(lab.LabError, match=r"got 98304, want 0 to 94208.*declares 4096 of them itself"):
        lab.compile_source(source).kernel("k").launch(1, 1, [X], dynamic_shared_bytes=98304)


def test_an_unknown_variable(module: lab.Module) -> None:
    with pytest.raises(lab.LabError, match=r"got 'nobody', want one of .*counter"):
        module.variable("nobody")


def test_an_instruction_that_is_not_implemented() -> None:
    source = """
    extern "C" __global__ void timer(unsigned long long* t) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(*t));
    }"""
    kernel = lab.compile_source(source).kernel("timer")
    assert kernel.unsupported
    t = np.full(1, 5, np.uint64)
    with pytest.raises(lab.EmulatorError, match=r"timer\+0x[0-9a-f]+: "):
        kernel.launch(1, 1, [t], checkers=lab.ALL)
    assert t[0] == 5


def test_sources_that_do_not_compile(tmp_path: Path) -> None:
    bad = tmp_path / "bad.cu"
    bad.write_text("__global__ void k() { undeclared = 1; }")
    with pytest.raises(lab.CompileError, match=r'bad.cu\(1\): error: identifier "undeclared" is undefined'):
        lab.compile(bad)
    with pytest.raises(lab.CompileError, match=r"ptxas did not take its input:(.|\n)*"):
        lab.from_ptx(".version 8.7\n.target sm_70\n.address_size 64\nnonsense")
    with pytest.raises(lab.LabError, match=r"argument 'path': got .*none.cu.*No such file"):
        lab.compile(tmp_path / "none.cu")
    with pytest.raises(lab.LabError, match=r"got machine code without a kernel"):
        lab.compile_source("__device__ int x;")


def with_architecture(cubin: bytes, number: int) -> bytes:
    (flags,) = struct.unpack_from("<I", cubin, 48)
    return cubin[:48] + struct.pack("<I", flags & ~0xFF | number) + cubin[52:]


def test_cubins_that_are_none(module: lab.Module, tmp_path: Path) -> None:
    for data, words in (
        (b"", "a file that is no ELF file, want an sm_70 cubin"),
        (b"junk" * 100, "a file that is no ELF file"),
        (struct.pack("<I", 0xBA55ED50) + bytes(60), "a fatbin.*cuobjdump -xelf"),
        (module.cubin[:40], "a file cut short"),
        (Path("/proc/self/exe").read_bytes()[:4096], "a program or library for the host"),
        (with_architecture(module.cubin, 80), "machine code of sm_80, want sm_70"),
    ):
        with pytest.raises(lab.LabError, match=words):
            lab.load(data)
    with pytest.raises(lab.LabError, match=r"none.cubin' \(No such file or directory\)"):
        lab.load(tmp_path / "none.cubin")
    with pytest.raises((lab.CompileError, lab.EmulatorError)):
        lab.load(module.cubin[: len(module.cubin) // 2])


def test_a_missing_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    from sm70_kernels.build import toolchain as build_toolchain
    from sm70_kernels.build.settings import BuildError

    def missing(module: str, distribution: str) -> Path:
        raise BuildError(f"no {module}")

    monkeypatch.setattr(build_toolchain, "package_folder", missing)
    with pytest.raises(lab.LabError, match=r"got no Python package 'triton'.*Run 'pip install triton'"):
        lab.from_ptx("")
