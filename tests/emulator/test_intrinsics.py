"""Forms that ordinary kernels meet now and then: library functions, partial warps, 64-bit exchange and atomics."""

from __future__ import annotations

import math

import numpy as np
import pytest

LANES = np.arange(32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(17)


def test_stack_through_pointers(compiled):
    d = np.zeros(32, np.int32)
    compiled("intrinsics").kernel("stack_by_pointer").launch(1, 32, [d, np.int32(5)], outputs=(0,))
    assert np.array_equal(d, sum(i * 16 * (i + 1) for i in range(16)) + LANES * 6)


def test_half_functions(compiled, rng):
    x, y = rng.standard_normal(128).astype(np.float16), np.zeros((10, 64), np.float16)
    compiled("intrinsics").kernel("half_functions").launch(1, 32, [x, y], outputs=(1,))
    a, b = x[:64].astype(np.float64), x[64:].astype(np.float64)
    expected = [np.minimum(a, b), np.maximum(a, b), np.sqrt(np.abs(a)), np.exp(a), np.clip(a + b, 0, 1)]
    expected += [np.clip(a * b + b, 0, 1), 1 / b, -a, np.floor(a), a / b]
    for got, want in zip(y, expected, strict=True):
        assert (np.abs(got - want) <= 2.0**-11 * 1.01 * np.abs(want) + 2.0**-25).all()


@pytest.mark.parametrize("seed", range(4))
def test_parts_of_a_warp_synchronise_on_their_own(compiled, seed):
    d = np.zeros(32, np.int32)
    compiled("intrinsics").kernel("partial_warps").launch(1, 32, [d], outputs=(0,), seed=seed)
    r = (LANES ^ 1) + np.where(LANES < 8, LANES ^ 2, 0)
    below = np.where(LANES % 16 < 15, r[(LANES + 1) % 32], r)
    assert np.array_equal(d, np.where(LANES < 16, r + below, 8))


def test_wide_atomics(compiled):
    w, s = np.zeros(8, np.uint64), np.zeros(2, np.int64)
    w[2] = 2**64 - 1
    compiled("intrinsics").kernel("wide_atomics").launch(1, 32, [w, s], outputs=(0, 1))
    assert w.tolist()[:5] == [32, 5, 0xFFFFFFFF00000000, 0xFFFFFFFF00, 0x100000001]
    assert w.tolist()[5:7] == [sum(range(32)) << 33, 31] and s.tolist() == [-31, 31]


def test_wide_exchange(compiled, rng):
    x, y = rng.standard_normal(32), np.zeros(32)
    z = rng.integers(0, 2**40, 32, np.int64)
    key = z & 0x100000001
    compiled("intrinsics").kernel("wide_exchange").launch(1, 32, [x, y, z], outputs=(1, 2))
    assert np.array_equal(y, x[LANES ^ 3])
    assert z.tolist() == [sum(1 << j for j in range(32) if key[j] == key[i]) for i in range(32)]


def test_barrier_number_and_count_in_registers(compiled):
    d = np.zeros(128, np.int32)
    compiled("intrinsics").kernel("barrier_in_registers").launch(1, 128, [d, np.int32(3), np.int32(128)], outputs=(0,))
    assert np.array_equal(d, 127 - np.arange(128))


def test_library_functions(compiled, rng):
    x, y = (rng.standard_normal(64) * 3).astype(np.float32), np.zeros((11, 32), np.float32)
    compiled("intrinsics").kernel("library").launch(1, 32, [x, y], outputs=(1,))
    a, b = x[:32].astype(np.float64), x[32:].astype(np.float64)
    expected = [np.abs(a) ** b, np.fmod(a, b), np.vectorize(math.erf)(a), np.cbrt(a), np.arctan2(a, b), np.sinh(a)]
    expected += [np.log1p(np.abs(a)), np.expm1(a), np.sin((x[:32] * np.float32(1000)).astype(np.float64))]
    expected += [np.vectorize(math.remainder)(a, b), np.nextafter(x[:32], x[32:])]
    # the largest errors that the CUDA programming guide states are 4 ulp (pow) and 3 (sinh, atan2)
    for got, want in zip(y, expected, strict=True):
        assert (np.abs(got - want) <= 4 * 2.0**-23 * np.abs(want)).all()
