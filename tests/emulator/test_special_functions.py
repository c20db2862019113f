"""MUFU against the exact function: errors in units in the last place, over whole ranges of arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from sm70_kernels import lab
from tests.random_programs.exact import multiply

SOURCE = """
#define FUNCTION(NAME, INSTRUCTION)                                                  \\
    extern "C" __global__ void NAME(const float* x, float* y) {                      \\
        const unsigned i = blockIdx.x * 256 + threadIdx.x;                           \\
        asm(INSTRUCTION " %0, %1;" : "=f"(y[i]) : "f"(x[i]));                        \\
    }
FUNCTION(rcp, "rcp.approx.ftz.f32")
FUNCTION(rsq, "rsqrt.approx.ftz.f32")
FUNCTION(sqrt_, "sqrt.approx.ftz.f32")
FUNCTION(ex2, "ex2.approx.ftz.f32")
FUNCTION(lg2, "lg2.approx.ftz.f32")
FUNCTION(sin_, "sin.approx.ftz.f32")
FUNCTION(cos_, "cos.approx.ftz.f32")
"""


@pytest.fixture(scope="module")
def program() -> lab.Module:
    return lab.compile_source(SOURCE)


def between(low: float, high: float, step: int = 1) -> np.ndarray:
    """Every so many-th single from low to below high, both positive, in whole blocks."""
    first, end = (int(np.float32(x).view(np.uint32)) for x in (low, high))
    bits = np.arange(first, end, step, dtype=np.uint32)
    return bits[: len(bits) // 256 * 256].view(np.float32)


@dataclass(frozen=True)
class Range:
    """Arguments of one sign or both, the exact function in double precision, and the largest error in units in the
    last place of the result. Half a unit is correct rounding; 2^-12 more is how far doubles are from exact here."""

    kernel: str
    opcode: str
    arguments: Callable[[], np.ndarray]
    exact: Callable[[np.ndarray], np.ndarray]
    units: float = 0.5 + 2.0**-12


RANGES = {
    # A binade (two for the square roots) stands for all: the others differ in the exponent alone. Of all singles in it
    # the largest errors are those of every so many-th, 0.5001 for the power of two and 0.5 otherwise.
    "reciprocal": Range("rcp", "MUFU.RCP", lambda: between(1, 2, 3), lambda x: 1 / x),
    "reciprocal square root": Range("rsq", "MUFU.RSQ", lambda: between(1, 4, 7), lambda x: 1 / np.sqrt(x)),
    "square root": Range("sqrt_", "MUFU.SQRT", lambda: between(1, 4, 7), np.sqrt),
    "power of two, to 1": Range("ex2", "MUFU.EX2", lambda: between(2.0**-3, 1, 11), np.exp2),
    "power of two, from -1": Range("ex2", "MUFU.EX2", lambda: -between(2.0**-3, 1, 11), np.exp2),
    "power of two, far": Range("ex2", "MUFU.EX2", lambda: -between(1, 126, 37), np.exp2),
    "logarithm, near one": Range("lg2", "MUFU.LG2", lambda: between(0.5, 2, 7), np.log2),
    "logarithm, far": Range("lg2", "MUFU.LG2", lambda: between(2.0**-126, 2.0**127, 2003), np.log2),
    "sine": Range("sin_", "MUFU.SIN", lambda: between(2.0**-10, 8, 37), lambda x: of_turns(x, 0)),
    "cosine": Range("cos_", "MUFU.COS", lambda: between(2.0**-10, 8, 37), lambda x: of_turns(x, 1)),
}


def of_turns(x: np.ndarray, quarter: int) -> np.ndarray:
    """Sine or cosine of what the unit is given, which is judged by that alone: PTX's argument times 1/2pi, cut to
    single precision. Whole quarters of a turn are taken off exactly, so that results near zero are exact too."""
    given = multiply(x.astype(np.float32), np.full(x.shape, 0.15915494, np.float32), "rz").astype(np.float64)
    quarters = np.rint(4 * given)
    rest = 2 * np.pi * (given - quarters / 4)
    quadrant = (quarters.astype(np.int64) + quarter) % 4
    return np.where(quadrant % 2, np.cos(rest), np.sin(rest)) * np.where(quadrant < 2, 1, -1)


def errors(program: lab.Module, what: Range) -> np.ndarray:
    """Of each result, in units of its last place."""
    x = what.arguments()
    y = np.zeros_like(x)
    program.kernel(what.kernel).launch(len(x) // 256, 256, [x, y], outputs=(1,))
    exact = what.exact(x.astype(np.float64))
    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    # Where rounding goes up to a power of two, the unit is that below it.
    return np.abs(y - exact) / np.minimum(unit, np.spacing(np.abs(y)).astype(np.float64))


@pytest.mark.parametrize("name", RANGES)
def test_correctly_rounded(program, name):
    what = RANGES[name]
    texts = [i["text"] for i in program.code.instructions(what.kernel)]
    assert any(text.startswith(what.opcode) for text in texts), texts
    found = errors(program, what)
    print(f"{what.opcode} {name}: {found.max():.6f} ulp over {found.size} arguments")
    assert found.max() <= what.units


def test_special_arguments(program):
    inf, nan, tiny = np.inf, np.nan, 1e-40  # flushed
    expected = {
        "rcp": ([0.0, -0.0, inf, -inf, tiny, -tiny, 2.0**127], [inf, -inf, 0.0, -0.0, inf, -inf, 0.0]),
        "rsq": ([0.0, -0.0, inf, -1.0, tiny, -inf], [inf, -inf, 0.0, nan, inf, nan]),
        "sqrt_": ([0.0, -0.0, inf, -1.0, tiny], [0.0, -0.0, inf, nan, 0.0]),
        "ex2": ([0.0, -0.0, inf, -inf, 128.0, -127.0, tiny], [1.0, 1.0, inf, 0.0, inf, 0.0, 1.0]),
        "lg2": ([0.0, -0.0, inf, 1.0, -1.0, tiny], [-inf, -inf, inf, 0.0, nan, -inf]),
        "sin_": ([0.0, -0.0, inf], [0.0, -0.0, nan]),
        "cos_": ([0.0, inf], [1.0, nan]),
    }
    for kernel, (arguments, results) in expected.items():
        x, y = np.ones(256, np.float32), np.zeros(256, np.float32)
        x[: len(arguments)] = arguments
        x[len(arguments)] = nan
        program.kernel(kernel).launch(1, 256, [x, y], outputs=(1,))
        want = np.array([*results, nan], np.float32)
        got = y[: len(want)]
        same = (got == want) & (np.signbit(got) == np.signbit(want)) | (np.isnan(got) & np.isnan(want))
        assert same.all(), (kernel, x[: len(want)][~same], got[~same])
