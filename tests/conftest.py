"""Loads the evidence plugin, so that a plain ``pytest`` checks and reports as the sessions do; options of tests."""

import pytest

pytest_plugins = ["sm70_kernels.evidence.sessions.pytest_plugin"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many random programs are tried, and from which seed on."""
    group = parser.getgroup("random programs")
    group.addoption("--random-programs", type=int, default=48, metavar="N", help="how many are tried (default: 48)")
    group.addoption("--random-programs-from", type=int, default=0, metavar="SEED", help="the first seed (default: 0)")
