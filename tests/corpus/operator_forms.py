"""pytest plugin: which opcode forms each operator test executes in the emulator.

`python -m pytest tests/ops -p tests.corpus.operator_forms --forms-file FILE` writes JSON: tests by form.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sm70_kernels.lab import emulator
from sm70_kernels.lab.instruments import InstrumentError, Instruments
from tests.corpus.forms import form

_tests: dict[str, set[str]] = defaultdict(set)
_enabled = emulator.enabled


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the result goes."""
    parser.addoption("--forms-file", type=Path, required=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch every launch, beside what a test watches it with."""
    test = item.nodeid.removeprefix("tests/")

    @contextlib.contextmanager
    def counted(*arguments: Any, instruments: Instruments | None = None, **options: Any) -> Iterator[Any]:
        with contextlib.ExitStack() as stack:
            watching = instruments or stack.enter_context(Instruments())
            with contextlib.suppress(InstrumentError):  # it counts already, in an outer context
                watching.add("execution_counts")
            try:
                with _enabled(*arguments, instruments=watching, **options) as emulation:
                    yield emulation
            finally:
                for kernel in watching.report("execution_counts").values():
                    for text, _, lanes in kernel:
                        if lanes:
                            _tests[form(text)].add(test)

    with mock.patch.object(emulator, "enabled", counted):
        return (yield)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write what was seen."""
    found = {name: sorted(tests) for name, tests in sorted(_tests.items())}
    session.config.getoption("forms_file").write_text(json.dumps(found, indent=1) + "\n")
