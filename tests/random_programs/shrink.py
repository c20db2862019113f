"""Cuts a program that fails down to a smaller one that still does, and finds the first statement that differs."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator

import numpy as np

from sm70_kernels import lab
from tests.random_programs import cuda, harness, inputs, interpret
from tests.random_programs.program import (
    Assign,
    Collective,
    If,
    Loop,
    Program,
    Statement,
    lists_of,
    numbered,
)

Fails = Callable[[Program], bool]


def cuts(program: Program) -> Iterator[Callable[[Program], None]]:
    """Ways to make a program smaller, the boldest first. Each acts on a copy."""

    def cut(place: int, start: int, count: int) -> Callable[[Program], None]:
        def act(copied: Program) -> None:
            del list(lists_of(copied))[place][start : start + count]

        return act

    def unwrap(place: int, start: int) -> Callable[[Program], None]:
        def act(copied: Program) -> None:
            statements = list(lists_of(copied))[place]
            statement = statements[start]
            assert isinstance(statement, If)
            statements[start : start + 1] = statement.then + statement.otherwise

        return act

    def one_turn(place: int, start: int) -> Callable[[Program], None]:
        def act(copied: Program) -> None:
            loop = list(lists_of(copied))[place][start]
            assert isinstance(loop, Loop)
            loop.most = 1

        return act

    lists = list(lists_of(program))
    size = max((len(statements) for statements in lists), default=0)
    while size:
        for place, statements in enumerate(lists):
            for start in range(0, len(statements) - size + 1, size):
                yield cut(place, start, size)
        size //= 2
    for place, statements in enumerate(lists):
        for start, statement in enumerate(statements):
            if isinstance(statement, If) and not statement.mask:
                yield unwrap(place, start)
            if isinstance(statement, Loop) and statement.most > 1:
                yield one_turn(place, start)
            if isinstance(statement, Assign | Collective):
                yield from simpler_values(place, start, statement)


def simpler_values(place: int, start: int, statement: Assign | Collective) -> Iterator[Callable[[Program], None]]:
    """The statement with an operand of the right type in place of its value."""
    operands = getattr(statement.value, "operands", ())

    def act(copied: Program, which: int) -> None:
        found = list(lists_of(copied))[place][start]
        assert isinstance(found, Assign | Collective)
        found.value = found.value.operands[which]  # type: ignore[union-attr]

    for which, operand in enumerate(operands):
        if operand.type is statement.value.type:
            yield lambda copied, which=which: act(copied, which)  # type: ignore[misc]


def shrink(program: Program, fails: Fails, seconds: float) -> Program:
    """The smallest failing program that is found in the time. A cut that breaks CUDA's rules is no cut."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller and time.monotonic() < end:
        smaller = False
        for act in cuts(program):
            if time.monotonic() > end:
                break
            candidate = copy.deepcopy(program)
            act(candidate)
            try:
                interpret.run(candidate)
            except interpret.RuleBrokenError:
                continue
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def first_difference(program: Program) -> str:
    """The first statement whose result, in the traced program, is not what numpy says."""
    unit = harness.compile_unit([program], trace=True)
    n = program.threads * program.blocks
    trace = np.zeros((n, cuda.TRACE_RECORDS, cuda.TRACE_WORDS), np.uint32)
    stopped = ""
    try:
        harness.emulate(unit.loaded, program, trace)
    except lab.EmulatorError as error:
        stopped = f"; the emulator stopped: {error}"
    statements = numbered(program)
    _, _, records = interpret.run(program)
    at = np.zeros(n, np.int64)
    for record in records:
        threads = np.flatnonzero(record.active)
        threads = threads[at[threads] < cuda.TRACE_RECORDS]
        got = trace[threads, at[threads]]
        at[threads] += 1
        expected = np.zeros_like(got)
        expected[:, 0] = record.number
        for place, word in enumerate(record.words):
            expected[:, 1 + place] = word[threads]
        wrong = np.flatnonzero((got != expected).any(1))
        if wrong.size:
            which = wrong[0]
            return (
                f"first differing statement: {text_of(program, statements[record.number])}\n"
                f"of {wrong.size} threads, the first {threads[which]}: "
                f"{shown(got[which, 1:])}, expected {shown(expected[which, 1:])}{stopped}"
            )
    return "no statement differs when each result is also written to memory" + stopped


def shown(values: np.ndarray) -> str:
    """Upper and lower word."""
    return f"{values[1]:#x} {values[0]:#010x}" if values[1] else f"{values[0]:#010x}"


def text_of(program: Program, statement: Statement) -> str:
    """The lines that a statement is written as."""
    writer = cuda.Writer(program, trace=False)
    writer.statement(statement)
    return " ".join(line.strip() for line in writer.lines)


def report(program: Program, problem: str, seconds: float = 60.0) -> str:
    """Everything that somebody who looks into a failure needs."""

    def fails(candidate: Program) -> bool:
        return harness.any_problem(harness.compile_unit([candidate]).loaded, candidate) is not None

    small = shrink(program, fails, seconds)
    return (
        f"{problem}\n{inputs.describe(program)}\n\nshrunk to\n{cuda.kernel(small)}\n"
        f"{harness.any_problem(harness.compile_unit([small]).loaded, small)}\n{first_difference(small)}"
    )
