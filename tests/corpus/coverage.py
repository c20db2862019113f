"""Which opcode forms the shipped cubins have, and which conformance tests execute each of them.

What counts is execution, by a lane, in a launch whose results are compared with independently computed or recorded
ones: the corpus, the random programs that are always tried, and the recorded kernels. An instruction under `@!PT` is a
placeholder that nothing ever executes, and no form.
"""

from __future__ import annotations

import importlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from sm70_kernels import lab
from sm70_kernels.build import settings
from sm70_kernels.lab.instruments import Instruments
from sm70_kernels.lab.toolchain import disassemble
from tests.corpus import kernels, runs
from tests.corpus.forms import form, instructions
from tests.emulator import KERNELS
from tests.random_programs import generate, harness, one_each
from tests.recorded import kernel_cases

#: Random programs that count: the first of those that are always tried.
SEEDS = 48


@dataclass(frozen=True)
class Occurrence:
    """Where a form is in a shipped cubin."""

    operator: str
    kernel: str


def shipped() -> dict[str, Counter[Occurrence]]:
    """Forms of all operators that are built, with how often each kernel has them."""
    found: dict[str, Counter[Occurrence]] = defaultdict(Counter)
    for operator in settings.operators():
        cubin = importlib.import_module(f"sm70_kernels.ops.{operator}").library.cubin()
        for kernel, texts in instructions(disassemble(cubin)).items():
            for text in texts:
                if not text.startswith("@!PT "):
                    found[form(text)][Occurrence(operator, kernel)] += 1
    return found


def executed(run: Callable[[Instruments], object]) -> set[str]:
    """Forms that some lane executes in the launches of `run`, which takes instruments."""
    with Instruments("execution_counts") as instruments:
        run(instruments)
        counts = instruments.report("execution_counts")
    return {form(text) for kernel in counts.values() for text, _, lanes in kernel if lanes}


def conformance_runs() -> Iterator[tuple[str, Callable[[Instruments], object]]]:
    """Every launch of the conformance tests, with the test that compares its results."""
    for name in runs.line_lists():
        yield f"corpus/test_corpus.py::test_lines[{name}]", _with(runs.run_lines, name)
    for name in kernels.CORPUS.launches:
        yield f"corpus/test_corpus.py::test_kernels[{name}]", _with(runs.run_kernel, name)
    for name in runs.patched_lines():
        yield f"corpus/test_corpus.py::test_patched[{name}]", _with(runs.run_patched, name)
    programs = {"test_each_operation_alone": one_each.programs()}
    for start in range(0, SEEDS, 12):
        test = f"test_emulator_computes_what_numpy_says[{start}]"
        programs[test] = [generate.program(seed) for seed in range(start, start + 12)]
    for test, unit in programs.items():
        compiled = harness.compile_unit(unit)
        for program in unit:
            yield f"random_programs/test_random_programs.py::{test}", _with(harness.emulate, compiled.loaded, program)
    built: dict[str, lab.Module] = {}
    for name, case in kernel_cases.all_cases().items():
        if case.source not in built:
            built[case.source] = lab.compile(KERNELS / f"{case.source}.cu")
        yield (
            f"recorded/test_recorded_kernels.py::test_emulator_agrees_with_the_gpu[{name}]",
            _with(
                built[case.source].kernel(case.kernel).launch, case.grid, case.block,
                [argument.copy() for argument in case.arguments],
                outputs=case.written, dynamic_shared_bytes=case.dynamic_shared_bytes,
            ),
        )  # fmt: skip


def _with(function: Callable[..., object], *arguments: Any, **options: Any) -> Callable[[Instruments], object]:
    return lambda instruments: function(*arguments, **options, instruments=instruments)


def tests_by_form() -> dict[str, set[str]]:
    """The conformance tests that execute each form."""
    found: dict[str, set[str]] = defaultdict(set)
    for test, run in conformance_runs():
        for name in executed(run):
            found[name].add(test)
    return found


def report(
    forms: dict[str, Counter[Occurrence]], tests: dict[str, set[str]], operator_tests: dict[str, set[str]]
) -> str:
    """Markdown: every shipped form, where it is, and the tests that execute it."""
    uncovered = sorted(name for name in forms if not tests.get(name))
    text = [
        "# Opcode forms of the shipped cubins", "",
        f"{len(forms)} forms in {len({o.kernel for found in forms.values() for o in found})} kernels; "
        f"{len(forms) - len(uncovered)} executed by conformance tests, which execute {len(tests)} forms in all.", "",
    ]  # fmt: skip
    if uncovered:
        text += ["Executed by no conformance test:", ""]
        for name in uncovered:
            others = sorted(operator_tests.get(name, ()))
            text.append(
                f"- `{name}`: " + (f"only by {len(others)} operator tests, as {others[0]}" if others else "by none")
            )
        text.append("")
    text += ["| form | operators | instructions | conformance tests |", "| --- | --- | --- | --- |"]
    for name in sorted(forms):
        operators = ", ".join(sorted({occurrence.operator for occurrence in forms[name]}))
        found = sorted(tests.get(name, ()))
        more = f" and {len(found) - 2} more" if len(found) > 2 else ""
        shown = name.replace("|", "\\|")
        text.append(
            f"| `{shown}` | {operators} | {sum(forms[name].values())} | {', '.join(found[:2]) or '**none**'}{more} |"
        )
    return "\n".join([*text, ""])
