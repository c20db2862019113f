"""Launches through the laboratory's door: what they compute, and what their reports say."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sm70_kernels import lab
from sm70_kernels.lab import toolchain
from tests.emulator import trace_reader


def test_arrays_and_tensors_are_written_in_place(module: lab.Module) -> None:
    x = np.arange(1000, dtype=np.float32)
    y = torch.ones(1000)
    report = module.kernel("saxpy").launch(4, 256, [np.float32(2), x, y, np.int32(1000)], checkers=lab.ALL)
    assert torch.equal(y, torch.from_numpy(2 * x + 1))
    assert (report.findings, report.stopped, report.blocks_run, report.blocks_total) == ((), None, 4, 4)
    assert report.warp_instructions > 0
    report.raise_if_found()


def test_looks_run_the_launch_again_and_leave_its_results(module: lab.Module, tmp_path: Path) -> None:
    x, y = np.ones(256, np.float32), np.ones(256, np.float32)
    report = module.kernel("saxpy").launch((1,), (256, 1), (np.float32(2), x, y, np.int32(256)), outputs=[2])
    assert report.statistics.issued == report.warp_instructions and report.statistics.launches == 1
    (busiest, *_) = report.hot_spots(2)
    assert busiest.place.startswith("kernel.cu:") and 0 < busiest.share <= 1 and busiest.instructions
    estimate = report.estimate(clocks_mhz=[1380], dram_gbps=425)
    assert estimate.ms > 0 and estimate.machine["changed"] == {"dram_gbps": 425}
    (trace,) = report.export_accel_sim(tmp_path / "traces", registers="first")
    assert trace_reader.read(trace).header["kernel name"] == "saxpy"
    assert (y == 3).all()  # once 2 * 1 + 1, however often it ran again


def test_looks_see_variables_as_they_were(module: lab.Module) -> None:
    counter = module.variable("counter").view(np.int32)
    counter[0] = 10
    out = np.zeros(1, np.int32)
    report = module.kernel("count").launch(1, 32, [out])
    assert (out[0], counter[0]) == (10, 11)
    assert report.statistics.issued and report.statistics.issued
    assert (out[0], counter[0]) == (10, 11)
    with report.inputs.restored():  # type: ignore[union-attr]
        assert (out[0], counter[0]) == (0, 10)


def test_without_its_inputs_a_launch_can_t_run_again(module: lab.Module) -> None:
    report = module.kernel("count").launch(1, 32, [np.zeros(1, np.int32)], keep_inputs=False)
    with pytest.raises(lab.LabError, match=r"keep_inputs=True"):
        report.estimate()


def test_constants_and_shared_memory(module: lab.Module) -> None:
    module.variable("weights").view(np.float32)[:] = [1, 2, 3, 4]
    y, values = np.zeros(32, np.float32), np.arange(64, dtype=np.int32)
    module.kernel("weigh").launch(1, 32, [y])
    assert y.tolist() == [1, 2, 3, 4] * 8
    module.kernel("reverse").launch(1, 64, [values], dynamic_shared_bytes=256)
    assert values.tolist() == list(range(63, -1, -1))


def test_a_structure_with_a_pointer(module: lab.Module) -> None:
    class View(ctypes.Structure):
        _fields_ = (("data", ctypes.c_void_p), ("offset", ctypes.c_int))

    data, y = np.arange(40, dtype=np.float32), np.zeros(32, np.float32)
    view = View(data.ctypes.data, 8)
    module.kernel("through").launch(1, 32, [view, y], reachable=[data], outputs=[1])
    assert np.array_equal(y, data[8:])
    with pytest.raises(lab.EmulatorError, match=r"out of bounds"):
        module.kernel("through").launch(1, 32, [bytes(view), y])


def test_findings_are_collected_and_name_the_arrays(module: lab.Module) -> None:
    saxpy = module.kernel("saxpy")
    args = {"a": np.float32(1), "x": np.zeros(32, np.float32), "y": np.zeros(32, np.float32), "n": np.int32(33)}
    report = saxpy.launch(2, 32, args, checkers=lab.ALL, undefined=["y"], outputs=["y"], threads=1)
    assert [finding.checker for finding in report.findings] == ["uninitialised", "bounds"]
    first, last = map(str, report.findings)
    assert first.startswith("saxpy+0x") and "'y' at its offset" in first and "kernel.cu:7]" in first
    assert last == report.stopped and "nearest buffer 'x' has 128 bytes" in last
    with pytest.raises(lab.EmulatorError, match=r"uninitialised"):
        report.raise_if_found()
    with pytest.raises(lab.EmulatorError, match=r"nearest buffer 'x'"):  # without checkers
        saxpy.launch(2, 32, args)


def test_what_is_no_output_can_t_be_written(module: lab.Module) -> None:
    args = [np.float32(1), np.zeros(32, np.float32), np.zeros(32, np.float32), np.int32(32)]
    with pytest.raises(lab.EmulatorError, match=r"'argument 2'.*read-only|read-only.*'argument 2'"):
        module.kernel("saxpy").launch(1, 32, args, outputs=[1])
    frozen = np.zeros(32, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(lab.EmulatorError, match=r"read-only"):
        module.kernel("saxpy").launch(1, 32, [*args[:2], frozen, args[3]])


def test_an_estimate_without_a_launch(module: lab.Module) -> None:
    n = 1 << 24
    x, y = torch.empty(n), torch.empty(n)
    estimate = module.kernel("saxpy").estimate(n // 256, 256, [np.float32(2), x, y, np.int32(n)])
    assert 0.1 < estimate.ms < 1 and estimate.dram_gbps > 400


def test_names(module: lab.Module) -> None:
    assert module.kernel("fill").signature == "lib::fill(int*)"
    assert module.kernel("lib::fill(int*)").name == module.kernel("fill").name == "_ZN3lib4fillEPi"
    assert module.kernel("scale<float>").signature == "void lib::scale<float>(float*, float)"
    with pytest.raises(lab.LabError, match=r"fits .*scale<double>.*scale<float>.*Write more of the signature"):
        module.kernel("scale")
    with pytest.raises(lab.LabError, match=r"got 'sale', want one of .*saxpy"):
        module.kernel("sale")
    values = np.ones(32)
    module.kernel("scale<double>").launch(1, 32, [values, np.float64(3)])
    assert (values == 3).all()


def test_a_cubin_of_this_package_and_one_of_torch(module: lab.Module, tmp_path: Path) -> None:
    from sm70_kernels.ops import kv_cache

    assert len(lab.load(kv_cache.library.cubin()).kernels) > 8
    path = tmp_path / "foreign.cubin"
    path.write_bytes(module.cubin)
    assert lab.load(path).kernels == module.kernels


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.10.0"), reason="the kernel is located in torch 2.10.0")
def test_a_kernel_that_nobody_here_wrote(tmp_path: Path) -> None:
    """torch's softmax, by its signature and with its C++ parameters, under all checkers."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    command = [toolchain.tool("cuobjdump"), "-arch", "sm_70", "-xelf", "libtorch_cuda.304.", library]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    (cubin,) = tmp_path.iterdir()
    softmax = lab.load(cubin).kernel("softmax_warp_forward<float, float, float, 7, false, false>")
    x, y = torch.randn(20, 100), torch.full((20, 100), torch.nan)
    sizes = [np.int32(size) for size in (20, 100, 100)]
    args = [y, x, *sizes, None, np.int32(-1), np.bool_(False)]
    report = softmax.launch(3, (32, 4), args, outputs=[0], undefined=[0], checkers=lab.ALL)
    report.raise_if_found()
    assert torch.allclose(y, torch.softmax(x, 1), atol=1e-6)


def test_an_aligned_copy() -> None:
    x = np.arange(7, dtype=np.float16)[1:]
    copied = lab.aligned(x)
    assert np.array_equal(copied, x) and copied.ctypes.data % 512 == 0


def test_importing_the_laboratory_loads_no_torch() -> None:
    code = "import sys; from sm70_kernels import lab; lab.compile, lab.ALL; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
