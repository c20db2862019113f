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
    compiled("programs").run("softmax", 3, 128, x, lengths, y, np.int32(128), outputs=(2,), seed=seed)
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
        compiled("programs").run("softmax", 16, 128, x, lengths, y, np.int32(128), outputs=(2,), seed=seed)
        results.append(y)
    assert all(np.array_equal(results[0], y) for y in results[1:])


@pytest.mark.parametrize("seed", range(6))
def test_split_reduction(compiled, seed):
    n = 50_000
    x = np.random.default_rng(9).standard_normal(n).astype(np.float32)
    partial, finished, total = np.zeros(20, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)
    compiled("programs").run(
        "split_reduction", 20, 256, x, partial, finished, total, np.int32(n), outputs=(1, 2, 3), seed=seed, threads=2
    )
    assert finished[0] == 0
    ordered = np.float32(0)
    for p in partial:
        ordered = np.float32(ordered + p)
    assert total[0] == ordered
    assert abs(total[0] - x.astype(np.float64).sum()) < 1e-3
