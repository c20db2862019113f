"""Random programs give in the emulator what numpy says, under every schedule and on every machine.

`pytest tests/random_programs --random-programs 1000 --random-programs-from 48` tries others.
"""

from __future__ import annotations

import pytest

from tests.random_programs import generate, harness, one_each, shrink
from tests.random_programs import program as parts
from tests.random_programs.operations import table

#: Programs that are compiled together: most of the time goes into compiling, some of it once for all of them.
UNIT = 12


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each unit of programs that was asked for."""
    if "first_seed" in metafunc.fixturenames:
        start = metafunc.config.getoption("random_programs_from")
        end = start + metafunc.config.getoption("random_programs")
        metafunc.parametrize("first_seed", range(start, end, UNIT))


def assert_as_expected(unit: harness.Unit) -> None:
    for program in unit.programs:
        problem = harness.any_problem(unit.loaded, program)
        assert not problem, shrink.report(program, problem)


def test_emulator_computes_what_numpy_says(first_seed, pytestconfig):
    end = pytestconfig.getoption("random_programs_from") + pytestconfig.getoption("random_programs")
    programs = [generate.program(seed) for seed in range(first_seed, min(first_seed + UNIT, end))]
    assert_as_expected(harness.compile_unit(programs))


#: Seeds that found something once, in the emulator or in the generator.
FINDERS = (71, 281, 325, 365, 368, 593, 705, 972)


def test_programs_that_found_something():
    assert_as_expected(harness.compile_unit([generate.program(seed) for seed in FINDERS]))


def test_each_operation_alone():
    assert_as_expected(harness.compile_unit(one_each.programs()))


def test_programs_have_everything_that_can_be_drawn():
    """Every kind of statement, and nearly every operation, is in the programs that are always tried."""
    statements, operations = set(), set()

    def expression(value: parts.Expression) -> None:
        if isinstance(value, parts.Apply):
            operations.add(value.operation.name)
            for operand in value.operands:
                expression(operand)

    for seed in range(48):
        for statement in parts.numbered(generate.program(seed)).values():
            statements.add(type(statement))
            for value in vars(statement).values():
                if isinstance(value, parts.Apply):
                    expression(value)
    assert statements == {
        parts.Assign, parts.If, parts.Loop, parts.Leave, parts.Switch, parts.Collective, parts.Exchange,
        parts.BarrierVote, parts.Gather, parts.StackStore, parts.StackLoad, parts.Return,
    }  # fmt: skip
    assert len(operations) > 0.9 * len(table())
