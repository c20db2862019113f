"""The emulator, running the sm_70 machine code, gives what a GPU gave from the same PTX: the kv_cache operators."""

from __future__ import annotations

import functools

import pytest

from sm70_kernels.lab import emulator
from sm70_kernels.ops import kv_cache
from tests.recorded import kv_cache_cases
from tests.recorded.ptx_text import kernel_hashes
from tests.recorded.recording import Recording

CASES = kv_cache_cases.all_cases()


@functools.cache
def recording() -> Recording:
    return Recording("kv_cache")


@functools.cache
def hashes() -> dict[str, str]:
    return kernel_hashes(kv_cache.library.ptx().decode())


@pytest.mark.parametrize("name", CASES)
def test_emulator_agrees_with_the_gpu(name):
    with emulator.enabled() as emulation:
        outcome = CASES[name].run("cpu")
    assert [launch.kernel for launch in emulation.launches] == [outcome.kernel]
    recorded = recording().case(name, ptx=hashes()[outcome.kernel], inputs=outcome.inputs)
    problems = recording().problems(name, recorded, outcome.outputs, {})
    assert not problems, f"{recording().facts['device']}, {recording().facts['date']}:\n{problems}"


def test_nothing_is_recorded_that_no_test_looks_at():
    assert recording().facts["cases"].keys() == CASES.keys()


def test_both_routes_of_every_format_are_recorded():
    assert {entry["kernel"] for entry in recording().facts["cases"].values()} == hashes().keys()
