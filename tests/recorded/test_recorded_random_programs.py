"""Random programs give in the emulator, and say numpy, what a GPU gave from the same PTX."""

from __future__ import annotations

import functools

import pytest

from tests.random_programs import harness, inputs, interpret
from tests.recorded import random_program_cases
from tests.recorded.kernel_cases import Case
from tests.recorded.ptx_text import kernel_hashes
from tests.recorded.recording import AGAIN, FOLDER, Recording


@functools.cache
def cases() -> dict[str, Case]:
    return random_program_cases.all_cases()


@functools.cache
def recording() -> Recording:
    assert (FOLDER / "random_programs.json").exists(), f"nothing is recorded of random programs yet: {AGAIN}"
    return Recording("random_programs")


@pytest.fixture(scope="module")
def built():
    """A file's programs and the hashes of their PTX."""

    @functools.cache
    def build(source: str) -> tuple[harness.Unit, dict[str, str]]:
        unit = harness.compile_unit(random_program_cases.units()[source])
        return unit, kernel_hashes(unit.ptx)

    return build


@pytest.mark.parametrize("name", random_program_cases.names())
def test_gpu_emulator_and_numpy_agree(built, name):
    case, program = cases()[name], random_program_cases.all_programs()[name]
    unit, hashes = built(case.source)
    recorded = recording().case(name, ptx=hashes[case.kernel], inputs=case.inputs())
    for who, (results, bins) in (
        ("the emulator", harness.emulate(unit.loaded, program)), ("numpy", interpret.run(program)[:2]),
    ):  # fmt: skip
        arguments = list(case.arguments)
        arguments[inputs.RESULTS], arguments[inputs.ALL_BINS] = results, bins
        problems = recording().problems(name, recorded, case.outputs(tuple(arguments)), case.rules())
        assert not problems, f"{recording().facts['device']}, {recording().facts['date']}, against {who}:\n{problems}"


def test_nothing_is_recorded_that_no_test_looks_at():
    assert recording().facts["cases"].keys() == cases().keys()
