"""Every line and kernel of the corpus gives what numpy says."""

from __future__ import annotations

import pytest

from tests.corpus import kernels, runs


@pytest.mark.parametrize("name", runs.line_lists())
def test_lines(name):
    assert not runs.run_lines(name)


@pytest.mark.parametrize("name", kernels.CORPUS.launches)
def test_kernels(name):
    assert not runs.run_kernel(name)
    if not kernels.launch(name).fails:
        assert not runs.run_kernel(name, seed=3)


@pytest.mark.parametrize("name", runs.patched_lines())
def test_patched(name):
    assert not runs.run_patched(name)
