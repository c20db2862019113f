"""Votes, shuffles, divergence and convergence."""

from __future__ import annotations

import numpy as np
import pytest

LANES = np.arange(32)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def test_exchange(compiled, rng):
    a = rng.integers(0, 50, 32).astype(np.int32)
    d = np.zeros((11, 32), np.int32)
    compiled("lanes").kernel("shuffles").launch(1, 32, [a, d], outputs=(1,))
    assert np.array_equal(d[0], a[LANES ^ 5])
    assert np.array_equal(d[1], np.where(LANES >= 3, a[LANES - 3], a))
    assert np.array_equal(d[2], np.where(LANES % 16 + 7 < 16, a[(LANES + 7) % 32], a))
    assert np.array_equal(d[3], a[a & 31])
    assert np.array_equal(d[4], a[LANES // 8 * 8 + 3])
    # 9 leaves a segment of 8 when it goes up
    from_lane = LANES ^ 9
    assert np.array_equal(d[5], np.where(from_lane <= (LANES | 7), a[from_lane], a))
    odd = sum(1 << i for i in range(32) if a[i] & 1)
    assert (d[6].view(np.uint32) == odd).all()
    assert (d[7] == bool((a == 7).any()) + 2 * bool((a >= 0).all())).all()
    for lane in range(32):
        assert d[8].view(np.uint32)[lane] == sum(1 << i for i in range(32) if a[i] & 3 == a[lane] & 3)
    assert (d[9] == 0xFFFFFFFF - 2**32 + 1).all()
    assert (d[10] == 32).all()


@pytest.mark.parametrize("threads", [1, 20, 32, 33, 100, 256])
def test_nested_divergence(compiled, rng, threads):
    a = rng.integers(0, 64, threads).astype(np.int32)
    d = np.zeros(2 * threads, np.int32)
    compiled("lanes").kernel("nested").launch(1, threads, [a, d], outputs=(1,))
    for t in range(threads):
        if a[t] & 1:
            warp = a[t // 32 * 32 : t // 32 * 32 + 32]
            expected = 1000 + (3 * t if a[t] & 2 else int((warp & 3 == 1).sum()))
        else:
            expected = sum(i for i in range(min(a[t] & 15, 9)) if (i + t) % 3)
        assert d[t] == expected, t
        if t ^ 1 < threads:
            assert d[threads + (t ^ 1)] == expected


def test_variant_trip_counts_with_exchange(compiled, rng):
    trips = rng.integers(0, 40, 64).astype(np.int32)
    x = rng.standard_normal((40, 32)).astype(np.float32)
    d, lanes = np.zeros(64, np.float32), np.zeros(64, np.int32)
    compiled("lanes").kernel("variant_trips").launch(1, 64, [trips, x, d, lanes], outputs=(2, 3))
    for t in range(64):
        sum_ = np.float32(0)
        for i in range(trips[t]):
            sum_ = np.float32(sum_ + x[i, t % 32] * np.float32(0.5))
        assert d[t] == sum_
        # Lanes still in the loop go together: the spin merges them again in each turn.
        warp = trips[t // 32 * 32 :][:32]
        assert lanes[t] == sum(int((warp > i).sum()) for i in range(trips[t]))


@pytest.mark.parametrize("seed", range(4))
def test_early_exit(compiled, rng, seed):
    a = rng.integers(-10, 110, 96).astype(np.int32)
    d = np.full(96, -777, np.int32)
    compiled("lanes").kernel("early_exit").launch(1, 96, [a, d], outputs=(1,), seed=seed)
    for t in range(96):
        turns = int(a[t]) if a[t] < 100 else 100
        r = sum(i ^ t for i in range(turns)) if a[t] >= 0 else 0
        assert d[t] == (-777 if a[t] < 0 else r if a[t] < 100 else -r)


@pytest.mark.parametrize("seed", range(4))
def test_a_lock_taken_by_every_lane(compiled, seed):
    lock, counter = np.zeros(1, np.int32), np.zeros(1, np.int32)
    compiled("lanes").kernel("spin_lock").launch(3, 64, [lock, counter], outputs=(0, 1), seed=seed, threads=2)
    assert counter[0] == 192 and lock[0] == 0


def test_switch(compiled):
    a = (np.arange(64) * 5 % 9).astype(np.int32)
    d = np.zeros(64, np.int32)
    compiled("lanes").kernel("switch_case").launch(1, 64, [a, d], outputs=(1,))
    for t in range(64):
        cases = [t, t * t, -t, t // 3, t ^ 21, 1 << (t & 7), t % 5]
        assert d[t] == (cases[a[t]] if a[t] < 7 else 77)


def test_recursion(compiled):
    a = np.arange(1, 33, dtype=np.int32)
    d = np.zeros(32, np.int32)
    compiled("lanes").kernel("recursion").launch(1, 32, [a, d], outputs=(1,))
    for start, got in zip(a, d, strict=True):
        depth, n = 0, int(start)
        while n != 1 and depth <= 60:
            n, depth = (3 * n + 1 if n & 1 else n // 2), depth + 1
        assert got == depth


def test_call_through_pointers(compiled):
    a = np.arange(32, dtype=np.int32)
    d = np.zeros(32, np.int32)
    compiled("lanes").kernel("pointer_call").launch(1, 32, [a, d], outputs=(1,))
    assert np.array_equal(d, np.where(a & 1, 2 * a, a * a))
