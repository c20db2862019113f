"""The emulator gives what a GPU gave from the same PTX: the kernels of tests/emulator."""

from __future__ import annotations

import functools

import pytest

from sm70_kernels import lab
from tests.emulator import KERNELS
from tests.recorded import kernel_cases
from tests.recorded.ptx_text import kernel_hashes
from tests.recorded.recording import Recording

CASES = kernel_cases.all_cases()


@functools.cache
def recording() -> Recording:
    return Recording("kernels")


@pytest.fixture(scope="module")
def built():
    """Program and hashes of the PTX of each file of kernels."""

    @functools.cache
    def build(source: str) -> tuple[lab.Module, dict[str, str]]:
        program = lab.compile(KERNELS / f"{source}.cu")
        return program, kernel_hashes(program.ptx)

    return build


@pytest.mark.parametrize("name", CASES)
def test_emulator_agrees_with_the_gpu(built, name):
    case = CASES[name]
    program, hashes = built(case.source)
    recorded = recording().case(name, ptx=hashes[case.kernel], inputs=case.inputs())
    arguments = tuple(argument.copy() for argument in case.arguments)
    program.kernel(case.kernel).launch(
        case.grid, case.block, arguments, outputs=case.written, dynamic_shared_bytes=case.dynamic_shared_bytes
    )
    problems = recording().problems(name, recorded, case.outputs(arguments), case.rules())
    assert not problems, f"{recording().facts['device']}, {recording().facts['date']}:\n{problems}"


def test_nothing_is_recorded_that_no_test_looks_at():
    assert recording().facts["cases"].keys() == CASES.keys()
