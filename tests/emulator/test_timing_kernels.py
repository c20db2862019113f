"""The timing model against whole kernels whose V100 times are published. docs/cycle-model.md has the table."""

from __future__ import annotations

import re

import pytest
import torch

from sm70_kernels.build.settings import ROOT

from .timing_cases import ATTENTION, Wheel, gemm

pytestmark = pytest.mark.slow

PAGE = ROOT / "docs" / "cycle-model.md"
#: Relative error that is accepted, and of the one case that misses it, for the reason in docs/cycle-model.md.
TOLERANCE = 0.20
KNOWN = {(160, 4096, 128): 0.27}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Wheel:
    if not torch.__version__.startswith("2.10.0"):
        pytest.skip("kernels are located in torch 2.10.0")
    return Wheel(tmp_path_factory.mktemp("wheel"))


def documented(row: str) -> list[float]:
    """The numbers of a row of the document's tables, by the row's first cell."""
    (line,) = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {row} |")]
    cells = [re.match(r"[*]*([-+\d.]+)", cell.strip()) for cell in line.split("|")[2:-1]]
    return [float(cell[1]) for cell in cells if cell]


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: f"B{case.batch}-M{case.length}-K{case.head_size}")
def test_attention_of_the_wheel(wheel, case):
    found = [at.ms * 1e3 for at in wheel.estimate(case, clocks="1380,1530").at]
    errors = [us / case.measured_us - 1 for us in found]
    assert abs(errors[0]) <= KNOWN.get((case.batch, case.length, case.head_size), TOLERANCE), f"{errors[0]:+.1%}"
    measured, *rest = documented(f"{case.batch}, {case.length}, {case.head_size}")
    assert measured == case.measured_us
    assert rest[0::2] == pytest.approx(found, rel=0.01)
    assert rest[1::2] == pytest.approx([100 * error for error in errors], abs=1)


@pytest.mark.parametrize(
    ("n", "least", "most"),
    [
        # cuBLAS reaches 95.7 TFLOP/s at 4096 and 78.2 at 2048, where the last wave is short (issue 140 of
        # zzc0721/torch-performance-test-data, V100-SXM2-16GB): 85 and 69 % of the peak at 1380 MHz.
        (4096, 0.78, 0.92),
        (2048, 0.60, 0.75),
    ],
)
def test_a_plain_gemm(compiled, n, least, most):
    result = gemm(compiled("gemm"), n, clocks="1380,1530", launch_us=2)
    share = 2 * n**3 / (result.at[0].cycles * 80 * 1024)
    rates = [2 * n**3 / at.ms / 1e9 for at in result.at]
    assert documented(str(n))[:3] == pytest.approx([rates[0], 100 * share, rates[1]], rel=0.01)
    assert least < share < most, share
    assert result.bound == "tensor"


def test_a_plain_gemm_is_right(compiled):
    import numpy as np

    generator = np.random.default_rng(70)
    a, b = (generator.standard_normal((rows, 96)).astype(np.float16) for rows in (128, 256))
    c = np.full((128, 256), np.nan, np.float32)
    compiled("gemm").kernel("gemm_128x128x32").launch((2, 1), 128, [a, b, c, np.int32(256), np.int32(96)], outputs=(2,))
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    assert np.abs(c - exact).max() < 1e-4
