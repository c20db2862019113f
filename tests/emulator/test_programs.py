"""Small whole programs of the kinds the package is made of, under shuffled schedules."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.mark.parametrize("seed", range(4))
def test_softmax_with_divergent_rows(compiled, seed):
    rng = np.random.default_rng(5)
    lengths = np.array([0, 1, 2, 31, 32, 33, 64, 100, 127, 128, 3, 77], np.int32)
    x = (rng.standard_normal((12, 128)) * 6).astype(np.float32)
    y = np.full_like(x, np.nan)
    compiled("programs").kernel("softmax").launch(3, 128, [x, lengths, y, np.int32(128)], outputs=(2,), seed=seed)
    for row, n in enumerate(lengths):
        e = np.exp(x[row, :n].astype(np.float64) - (x[row, :n].max() if n else 0))
        np.testing.assert_allclose(y[row, :n], e / e.sum() if n else e, rtol=5e-6)
        assert not y[row, n:].any()


def test_softmax_is_the_same_under_every_schedule(compiled):
    rng = np.random.default_rng(6)
    lengths = rng.integers(0, 129, 64).astype(np.int32)
    x = rng.standard_normal((64, 128)).astype(np.float32)
    results = []
    for seed in range(8):
        y = np.full_like(x, np.nan)
        compiled("programs").kernel("softmax").launch(16, 128, [x, lengths, y, np.int32(128)], outputs=(2,), seed=seed)
        results.append(y)
    assert all(np.array_equal(results[0], y) for y in results[1:])


@pytest.mark.parametrize("seed", range(6))
def test_split_reduction(compiled, seed):
    n = 50_000
    x = np.random.default_rng(9).standard_normal(n).astype(np.float32)
    partial, finished, total = np.zeros(20, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    compiled("programs").kernel("split_reduction").launch(
        20, 256, [x, partial, finished, total, np.int32(n)], outputs=(1, 2, 3), seed=seed, threads=2
    )
    assert finished[0] == 0
    ordered = np.float32(0)
    for p in partial:
        ordered = np.float32(ordered + p)
    assert total[0] == ordered
    assert abs(total[0] - x.astype(np.float64).sum()) < 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_split_atomics(compiled, seed):
    n = 20_000
    x = np.random.default_rng(10).integers(-(2**20), 2**20, n).astype(np.int32)
    totals, float_total = np.zeros(16, np.int32), np.zeros(1, np.float32)
    totals[1:3] = 2**31 - 1, -(2**31)
    compiled("programs").kernel("split_atomics").launch(
        12, 128, [x, totals, float_total, np.int32(n)], outputs=(1, 2), seed=seed, threads=2
    )
    assert totals[0] == int(x.sum(dtype=np.int64)) - 2**32 * round(int(x.sum(dtype=np.int64)) / 2**32)
    assert totals[1] == x.min() and totals[2] == x.max()
    parts = [np.concatenate([x[i : i + 32] for i in range(w, n, 12 * 128)]).sum() for w in range(0, 12 * 128, 32)]
    assert totals[3] == np.bitwise_xor.reduce(np.array(parts).astype(np.int32))
    assert np.array_equal(totals[8:], np.bincount(x & 7, minlength=8))
    # A thread adds 14 terms, a warp 5 times its sums, the atomics 48: each addition rounds what has come together.
    exact, largest = x.sum(dtype=np.int64), np.abs(x.astype(np.int64)).sum()
    assert abs(float(float_total[0]) - exact) <= (14 + 5 + 48) * 2.0**-24 * largest


@pytest.mark.parametrize("seed", range(3))
def test_trip_counts_that_differ_between_and_within_warps(compiled, seed):
    rng = np.random.default_rng(11)
    start = rng.integers(1, 1000, 256).astype(np.uint32)
    start[32:64], start[64:96] = 1, 27  # a warp that takes no turn, one of equal lanes
    x = rng.standard_normal(256).astype(np.float32)
    steps, turns, mixed = (np.full(256, 7, np.uint32) for _ in range(3))
    sums = np.zeros(256, np.float32)
    compiled("programs").kernel("warp_trips").launch(
        2, 128, [start, x, steps, turns, mixed, sums], outputs=(2, 3, 4, 5), seed=seed
    )
    for warp in range(0, 256, 32):
        lanes, n, turn = np.arange(32), start[warp : warp + 32].astype(np.int64), 0
        count, mix = np.zeros(32, np.int64), np.zeros(32, np.uint32)
        while (n != 1).any():
            live = n != 1
            n = np.where(live, np.where(n & 1, 3 * n + 1, n // 2), n)
            count += live
            mix = mix * np.uint32(31) + n[lanes ^ (1 + (turn & 15))].astype(np.uint32)
            turn += 1
        assert np.array_equal(steps[warp : warp + 32], count) and (turns[warp : warp + 32] == turn).all()
        assert np.array_equal(mixed[warp : warp + 32], mix)
    assert not steps[32:64].any() and (steps[64:96] == 111).all()
    for t in range(256):
        total = np.float32(0)
        for i in range(steps[t]):
            total = np.float32(total + x[(t + 7 * i) & 255])
        assert sums[t] == total


def test_gemm_by_tiles_through_shared_memory(compiled):
    m, n, k = 128, 192, 128
    rng = np.random.default_rng(12)
    a, b = (rng.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    c, straight = np.zeros((m, n), np.float32), np.zeros((m, n), np.float32)
    compiled("tensor").kernel("gemm_tiled").launch(
        (n // 64, m // 64), 128, [a, b, c, np.int32(n), np.int32(k)], outputs=(2,)
    )
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    # Each of k/4 steps truncates five terms to 23 bits below the largest of them, and its sum.
    largest = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    assert (np.abs(c - exact) <= (k / 4) * 6 * 2.0**-23 * largest).all()
    compiled("tensor").kernel("gemm").launch(
        (n // 16, m // 64), 128, [a, b, straight, np.int32(m), np.int32(n), np.int32(k)], outputs=(2,)
    )
    assert np.array_equal(c, straight)  # the same steps in the same order
