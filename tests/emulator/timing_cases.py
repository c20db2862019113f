"""Launches under the instrument ``timing``, and the published V100 figures that the model is held against."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sm70_kernels import lab
from sm70_kernels.lab.cycle_model import Estimate
from sm70_kernels.lab.cycle_model.model import from_report
from sm70_kernels.lab.instruments import Instruments
from sm70_kernels.lab.toolchain import tool

from .torch_binaries import attention_parameters, symbols


def aligned(shape: int | tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros that starts where CUDA's allocators would put it."""
    count = int(np.prod(shape))
    raw = np.zeros(count * np.dtype(dtype).itemsize + 512, np.uint8)
    first = -raw.ctypes.data % 512
    return raw[first : first + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def timed(
    program: lab.Module,
    kernel: str,
    grid: Any,
    block: Any,
    *arguments: Any,
    outputs: tuple[int, ...],
    launch: dict[str, Any] | None = None,
    **options: Any,
) -> Estimate:
    """Estimate of one launch, without the launch's fixed cost unless asked for."""
    with Instruments(timing={"launch_us": 0, **options}) as instruments:
        program.kernel(kernel).launch(grid, block, arguments, outputs=outputs, instruments=instruments, **launch or {})
        return from_report(instruments.report("timing"))


def cycles(estimate: Estimate) -> float:
    """Of the call's launches, at the first clock."""
    return estimate.at[0].cycles


def gemm(program: lab.Module, n: int, **options: Any) -> Estimate:
    """The own m8n8k4 GEMM on square matrices."""
    a, b = (aligned((n, n), np.float16) for _ in range(2))
    c = aligned((n, n), np.float32)
    grid = (n // 128, n // 128)
    return timed(program, "gemm_128x128x32", grid, 128, a, b, c, np.int32(n), np.int32(n), outputs=(2,), **options)


@dataclass(frozen=True)
class Attention:
    """A forward time of xformers' attention on a V100-SXM2-16GB in FP16, inputs [batch, length, head size]."""

    batch: int
    length: int
    head_size: int
    measured_us: float
    source: str

    @property
    def kernel(self) -> tuple[str, int]:
        """Part of the name, and queries a block, of the kernel that both xformers and torch choose."""
        return ("64x64_rf_sm70", 64) if self.head_size <= 64 else ("32x128_rf_sm70", 32)


#: Forward times. xformers' kernels of these pull requests are ancestors of those in the torch wheel.
ATTENTION = (
    Attention(16, 4096, 40, 2343.5, "xformers pull request 434"),
    Attention(16, 16384, 40, 33589.0, "xformers pull request 434"),
    Attention(160, 4096, 128, 38600.2, "xformers pull request 434"),
    Attention(1024, 1024, 32, 7151.7, "xformers pull request 439"),
    Attention(1024, 1024, 64, 8420.8, "xformers pull request 439"),
    Attention(1024, 1024, 128, 15232.6, "xformers pull request 439"),
    Attention(2400, 256, 64, 1387.4, "xformers pull request 439"),
)
#: Bytes of shared memory that the kernels touch, by the emulator's bounds check.
SHARED_BYTES = {"64x64_rf_sm70": 17920, "32x128_rf_sm70": 25600}


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Normal values that repeat after a million, which is quick to make."""
    count = int(np.prod(shape))
    period = torch.randn(min(count, 1_000_003), generator=generator).half()
    return period.repeat(-(-count // len(period)))[:count].reshape(shape)


class Wheel:
    """The attention kernels of the installed torch wheel, extracted at test time and never kept."""

    IMAGE = "libtorch_cuda.449."

    def __init__(self, folder: Path) -> None:
        library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
        command = [tool("cuobjdump"), "-arch", "sm_70", "-xelf", self.IMAGE, library]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        self.cubin = folder / f"{self.IMAGE}sm_70.cubin"
        self._programs: dict[str, tuple[lab.Module, str]] = {}

    def kernel(self, part: str) -> tuple[lab.Module, str]:
        """The loaded kernel with this part in its name, and the name."""
        if part not in self._programs:
            names = symbols(self.cubin.read_bytes())
            full = f"fmha_cutlassF_f16_aligned_{part}"
            ((index, name),) = [(i, n) for i, n in enumerate(names) if full in n and not n.startswith((".", "$"))]
            command = [tool("nvdisasm"), "-c", "-hex", "-fun", str(index), self.cubin]
            listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            self._programs[part] = lab.Module(self.cubin.read_bytes(), listing), name
        return self._programs[part]

    def estimate(self, case: Attention, **options: Any) -> Estimate:
        """The case through the model, the launch's fixed cost included."""
        part, queries = case.kernel
        program, name = self.kernel(part)
        shape = (case.batch, case.length, 1, case.head_size)
        # Normal values, as in xformers' benchmark: the kernels rescale their sums only where a maximum grows.
        generator = torch.Generator().manual_seed(70)
        q, k, v = (_normal(shape, generator) for _ in range(3))
        o = torch.empty(shape, dtype=torch.half)
        blob = attention_parameters(q, k, v, o, case.head_size**-0.5, False)
        blob += b"\0" * (program.code.kernels()[name]["parameter_bytes"] - len(blob))
        buffers = [(n, (t.data_ptr(), t.numel() * 2), n == "o") for n, t in zip("qkvo", (q, k, v, o), strict=True)]
        grid = (-(-case.length // queries), 1, case.batch)
        with Instruments(timing={"clocks": 1380, "whole_blocks": 2, **options}) as instruments:
            program.code.launch(
                name,
                grid,
                (32, 4),
                blob,
                buffers,
                dynamic_shared_bytes=SHARED_BYTES[part],
                instruments=instruments.handle,
            )
            return from_report(instruments.report("timing"))
