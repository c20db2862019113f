"""Machine code nobody here wrote: sm_70 kernels taken at test time from the installed torch wheel (BSD-3-Clause), run
in the emulator and compared with torch on the CPU. Nothing of the wheel is kept.

Where a kernel lies in the wheel, and what its parameters mean, holds for the locked torch version.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sm70_kernels import lab
from sm70_kernels.lab.checkers import Checks
from sm70_kernels.lab.toolchain import tool

from .torch_binaries import attention_parameters, symbols

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.__version__.startswith("2.10.0"), reason="kernels are located in torch 2.10.0"),
]

# image number in libtorch_cuda.so, and a part of the mangled name that no other kernel of the image has
GELU = (
    171,
    "vectorized_elementwise_kernelILi4EZZZNS0_18GeluCUDAKernelImplERNS_18TensorIteratorBaseENS0_8GeluTypeEENKUlvE0_clEvENKUlvE0_clEvEUlfE_",
)
SIGMOID_BACKWARD_HALF = (
    199,
    "vectorized_elementwise_kernelILi4EZZZNS0_28sigmoid_backward_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE0_clEvENKUlvE1_clEvEUlN3c104HalfES7_E_",
)
MAX_POOL = (219, "max_pool_forward_nchwIfiE")
SOFTMAX = (304, "softmax_warp_forwardIfffLi7ELb0ELb0E")
LOG_SOFTMAX_HALF = (304, "softmax_warp_forwardIN3c104HalfES2_fLi8ELb1ELb0E")
ROW_MOMENTS = (365, "RowwiseMomentsCUDAKernelIfE")
LAYER_NORM_HALF = (371, "vectorized_layer_norm_kernelIN3c104HalfEfLb0E")
ATTENTION = (449, "fmha_cutlassF_f16_aligned_64x64_rf_sm70")
ALL = [GELU, SIGMOID_BACKWARD_HALF, MAX_POOL, SOFTMAX, LOG_SOFTMAX_HALF, ROW_MOMENTS, LAYER_NORM_HALF, ATTENTION]


class Wheel:
    """The wheel's kernels, each disassembled on its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        images = ",".join(f"libtorch_cuda.{number}." for number in sorted({number for number, _ in ALL}))
        library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
        subprocess.run(
            [tool("cuobjdump"), "-arch", "sm_70", "-xelf", images, library], cwd=folder, check=True, capture_output=True
        )

    def kernel(self, place: tuple[int, str]) -> tuple[lab.Module, str]:
        number, part = place
        path = self.folder / f"libtorch_cuda.{number}.sm_70.cubin"
        names = symbols(path.read_bytes())
        found = [(i, n) for i, n in enumerate(names) if part in n and not n.startswith((".", "$")) and names[i]]
        index, name = found[0]
        assert len(found) == 1, [n for _, n in found]
        command = [tool("nvdisasm"), "-c", "-hex", "-fun", str(index), path]
        listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return lab.Module(path.read_bytes(), listing), name

    def run(
        self,
        place: tuple[int, str],
        grid: Any,
        block: Any,
        blob: bytes,
        tensors: dict[str, torch.Tensor],
        outputs: set[str],
        **options: Any,
    ) -> dict[str, Any]:
        program, name = self.kernel(place)
        buffers = [(key, (t.data_ptr(), t.numel() * t.element_size()), key in outputs) for key, t in tensors.items()]
        with Checks() as checks:  # the checkers are silent about code that is right
            options["instruments"] = checks.instruments.handle
            return program.code.launch(name, grid, block, blob, buffers, **options)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    return Wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(70)


@pytest.mark.parametrize("n", [1, 511, 512, 5000])
def test_elementwise_gelu(wheel, n):
    x, y = torch.randn(n) * 3, torch.full((n,), torch.nan)
    blob = struct.pack("<i4xQQ", n, y.data_ptr(), x.data_ptr())
    wheel.run(GELU, -(-n // 1024), 128, blob, {"x": x, "y": y}, {"y"})
    torch.testing.assert_close(y, torch.nn.functional.gelu(x), rtol=2e-6, atol=1e-6)


def test_elementwise_sigmoid_backward_in_half(wheel):
    n = 3000
    grad, y, out = torch.randn(n).half(), torch.rand(n).half(), torch.full((n,), torch.nan).half()
    blob = struct.pack("<i4xQQQ", n, out.data_ptr(), grad.data_ptr(), y.data_ptr())
    wheel.run(SIGMOID_BACKWARD_HALF, -(-n // 1024), 128, blob, {"grad": grad, "y": y, "out": out}, {"out"})
    expected = grad.double() * (1 - y.double()) * y.double()
    # each of up to three half roundings
    assert ((out.double() - expected).abs() <= 3 * 2.0**-11 * expected.abs() + 2.0**-24).all()


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (7, 100), (16, 128), (33, 65)])
def test_softmax(wheel, rows, columns):
    x, y = torch.randn(rows, columns) * 5, torch.full((rows, columns), torch.nan)
    blob = struct.pack("<QQiii4xQi?", y.data_ptr(), x.data_ptr(), rows, columns, columns, 0, -1, False)
    wheel.run(SOFTMAX, -(-rows // 8), (32, 4), blob, {"x": x, "y": y}, {"y"})
    torch.testing.assert_close(y, x.softmax(-1), rtol=3e-6, atol=1e-8)


def test_log_softmax_in_half(wheel):
    rows, columns = 9, 200
    x, y = (torch.randn(rows, columns) * 4).half(), torch.full((rows, columns), torch.nan).half()
    blob = struct.pack("<QQiii4xQi?", y.data_ptr(), x.data_ptr(), rows, columns, columns, 0, -1, False)
    wheel.run(LOG_SOFTMAX_HALF, -(-rows // 4), (32, 4), blob, {"x": x, "y": y}, {"y"})
    torch.testing.assert_close(y, x.float().log_softmax(-1).half(), rtol=2.0**-10, atol=1e-4)


@pytest.mark.parametrize(("columns", "threads"), [(40, 32), (500, 32), (3000, 512)])
def test_reduction_to_mean_and_deviation(wheel, columns, threads):
    rows = 5
    x = torch.randn(rows, columns) * 2 + 3
    mean, rstd = torch.full((rows,), torch.nan), torch.full((rows,), torch.nan)
    blob = struct.pack("<qf4xQQQ", columns, 1e-5, x.data_ptr(), mean.data_ptr(), rstd.data_ptr())
    wheel.run(ROW_MOMENTS, rows, threads, blob, {"x": x, "mean": mean, "rstd": rstd}, {"mean", "rstd"})
    torch.testing.assert_close(mean, x.mean(-1), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(rstd, (x.double().var(-1, correction=0) + 1e-5).rsqrt().float(), rtol=1e-5, atol=1e-6)


def test_layer_norm_in_half(wheel):
    rows, columns = 6, 256
    x, gamma, beta = torch.randn(rows, columns).half(), torch.randn(columns).half(), torch.randn(columns).half()
    y, mean, rstd = torch.full((rows, columns), torch.nan).half(), torch.zeros(rows), torch.zeros(rows)
    blob = struct.pack("<if", columns, 1e-5) + struct.pack(
        "<6Q", *(t.data_ptr() for t in (x, gamma, beta, mean, rstd, y))
    )
    tensors = {"x": x, "gamma": gamma, "beta": beta, "mean": mean, "rstd": rstd, "y": y}
    wheel.run(LAYER_NORM_HALF, rows, (32, 4), blob, tensors, {"mean", "rstd", "y"}, dynamic_shared_bytes=24)
    expected = torch.nn.functional.layer_norm(x.float(), (columns,), gamma.float(), beta.float()).half()
    torch.testing.assert_close(y, expected, rtol=2.0**-10, atol=2.0**-10)


def test_max_pooling(wheel):
    x = torch.randn(2, 3, 17, 13)
    expected, indices = torch.nn.functional.max_pool2d(x, 3, 2, 1, return_indices=True)
    y, where = torch.full_like(expected, torch.nan), torch.zeros_like(indices)
    n = y.numel()
    blob = struct.pack("<i4xQqqq", n, x.data_ptr(), 3, 17, 13)
    blob += struct.pack("<10i", *expected.shape[2:], 3, 3, 2, 2, 1, 1, 1, 1) + struct.pack(
        "<QQ", y.data_ptr(), where.data_ptr()
    )
    wheel.run(MAX_POOL, -(-n // 128), 128, blob, {"x": x, "y": y, "where": where}, {"y", "where"})
    assert torch.equal(y, expected) and torch.equal(where, indices)


@pytest.mark.parametrize(("queries", "keys", "causal"), [(64, 64, False), (100, 150, False), (70, 70, True)])
def test_attention_on_the_tensor_core(wheel, queries, keys, causal):
    batches, heads, dim = 2, 2, 64
    q, k, v = (torch.randn(batches, n, heads, dim).half() for n in (queries, keys, keys))
    o = torch.full((batches, queries, heads, dim), torch.nan).half()
    program, name = wheel.kernel(ATTENTION)
    blob = attention_parameters(q, k, v, o, dim**-0.5, causal)
    blob += b"\0" * (program.code.kernels()[name]["parameter_bytes"] - len(blob))  # dropout fields: off
    buffers = [(n, (t.data_ptr(), t.numel() * 2), n == "o") for n, t in zip("qkvo", (q, k, v, o), strict=True)]
    options: dict[str, Any] = {"dynamic_shared_bytes": 49152}
    with Checks() as checks:
        options["instruments"] = checks.instruments.handle
        program.code.launch(name, (-(-queries // 64), heads, batches), (32, 4), blob, buffers, **options)
    exact = torch.nn.functional.scaled_dot_product_attention(
        *(t.double().transpose(1, 2) for t in (q, k, v)), is_causal=causal
    ).transpose(1, 2)
    error = (o.double() - exact).norm() / exact.norm()
    # halves for P and O: a few roundings of 2^-11
    assert error < 2.0**-10, error
    assert np.isfinite(o.numpy()).all()
