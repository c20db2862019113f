"""Every line and kernel of the corpus gives what numpy says."""

from __future__ import annotations

import pytest

from tests.corpus import kernels, runs


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> runs.Loader:
    return runs.Loader(tmp_path_factory.mktemp("corpus"))


@pytest.mark.parametrize("name", runs.line_lists())
def test_lines(loader, name):
    assert not runs.run_lines(loader, name)


@pytest.mark.parametrize("name", kernels.CORPUS.launches)
def test_kernels(loader, name):
    assert not runs.run_kernel(loader, name)
    if not kernels.launch(name).fails:
        assert not runs.run_kernel(loader, name, seed=3)


@pytest.mark.parametrize("name", runs.patched_lines())
def test_patched(loader, name):
    assert not runs.run_patched(loader, name)
