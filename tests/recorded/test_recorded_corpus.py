"""The conformance corpus gives in the emulator, and says numpy, what a GPU gave from the same PTX.

A line or kernel that is added later is compared with numpy alone (tests/corpus) until the next recording.
"""

from __future__ import annotations

import functools

import pytest

from tests.corpus import kernels, lines, runs
from tests.recorded import corpus_cases
from tests.recorded.kernel_cases import Case
from tests.recorded.ptx_text import kernel_hashes
from tests.recorded.recording import AGAIN, FOLDER, Recording


@functools.cache
def recording() -> Recording:
    assert (FOLDER / "corpus.json").exists(), f"nothing is recorded of the corpus yet: {AGAIN}"
    return Recording("corpus")


@functools.cache
def cases() -> dict[str, Case]:
    return corpus_cases.all_cases()


def recorded_sources() -> list[str]:
    """Files of PTX that the recording has; without one, all of them, which then fail."""
    if not (FOLDER / "corpus.json").exists():
        return corpus_cases.SOURCES
    return list(recording().facts["ptx_files"])


@pytest.mark.parametrize("source", recorded_sources())
def test_gpu_emulator_and_numpy_agree(source):
    program, hashes = runs.load(source), kernel_hashes(runs.ptx(source))
    recorded = recording().facts["cases"]
    of_source = [case for case in cases().values() if case.source == source and case.name in recorded]
    assert of_source, f"{source} is not what was recorded: {AGAIN}"
    for case in of_source:
        outputs = recording().case(case.name, ptx=hashes[case.kernel], inputs=case.inputs())
        emulated = tuple(argument.copy() for argument in case.arguments)
        program.kernel(case.kernel).launch(case.grid, case.block, emulated, outputs=case.written)
        for who, arguments in (("the emulator", emulated), ("numpy", computed(case))):
            problems = recording().problems(case.name, outputs, case.outputs(arguments), case.rules())
            assert not problems, (
                f"{recording().facts['device']}, {recording().facts['date']}, against {who}:\n{problems}"
            )


def computed(case: Case) -> tuple[object, ...]:
    """The arguments with what numpy says in place of the outputs."""
    arguments = list(case.arguments)
    if case.source == runs.KERNELS:
        arguments[case.written[0] : case.written[-1] + 1] = kernels.launch(case.name).expected
    else:
        arguments[1] = lines.expected(lines.kernels(runs.line_lists()[case.source])[case.name])
    return tuple(arguments)


def test_nothing_is_recorded_that_no_test_looks_at():
    assert recording().facts["cases"].keys() <= cases().keys()
