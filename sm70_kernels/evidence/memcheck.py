"""When a memory check counts: pure functions from exit code and text to a verdict.

A silent tool is the danger: an exit code that nobody asked for, a summary that was never printed, no test that ran, a
tool that sees nothing. So a sweep passes only on positive evidence of each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: compute-sanitizer's own exit code for "the program succeeded, but I found errors". No Python or pytest code.
ERROR_EXIT_CODE = 86
#: pytest's exit code when it collected no test.
_NO_TESTS = 5

_SUMMARIES = {
    "racecheck": re.compile(r"^=+ RACECHECK SUMMARY: (\d+) hazards?\b", re.MULTILINE),
}
_ERROR_SUMMARY = re.compile(r"^=+ ERROR SUMMARY: (\d+) errors?\b", re.MULTILINE)


@dataclass(frozen=True)
class Tool:
    """A compute-sanitizer tool, its options, and the canary's fault that it must catch."""

    name: str
    options: tuple[str, ...]
    fault: str

    def findings(self, log: str) -> list[int]:
        """Errors or hazards of each summary line in the log; one line for each process."""
        return [int(count) for count in _SUMMARIES.get(self.name, _ERROR_SUMMARY).findall(log)]

    def summary(self) -> str:
        """Name of the summary line, for messages."""
        return "RACECHECK SUMMARY" if self.name in _SUMMARIES else "ERROR SUMMARY"


#: Bytes of guard that memcheck puts behind each allocation, so that a small overrun meets no neighbour.
_PADDING_BYTES = 256

TOOLS = (
    Tool("memcheck", ("--padding", str(_PADDING_BYTES)), "out_of_bounds"),
    Tool("racecheck", (), "shared_race"),
    Tool("initcheck", (), "uninitialised"),
    Tool("synccheck", (), "divergent_barrier"),
)


def judge_sweep(tool: Tool, exit_code: int | None, log: str, executed: int) -> str | None:
    """Why the tests under a tool do not count as clean; None when they do. ``exit_code`` is None after a time-out."""
    if exit_code is None:
        return "the tests did not end in time"
    found = tool.findings(log)
    if any(found):
        return f"{tool.summary()}: {sum(found)} found"
    if exit_code != 0:
        return f"exit code {exit_code}, want 0"
    if not found:
        return f"the log has no {tool.summary()!r} line: the tool did not watch the tests"
    if executed < 1:
        return "no test was executed"
    return None


def judge_canary(tool: Tool, exit_code: int | None, log: str) -> str | None:
    """Why the canary does not count as caught; None when it does."""
    if exit_code is None:
        return "the canary did not end in time"
    found = tool.findings(log)
    if not found:
        return f"the canary's log has no {tool.summary()!r} line (exit code {exit_code})"
    if not any(found):
        return f"the canary's fault {tool.fault!r} was not caught"
    if exit_code != ERROR_EXIT_CODE:
        return f"the canary was caught, but the exit code is {exit_code}, want {ERROR_EXIT_CODE}"
    return None


#: The emulator as a memory checker, for machines without a usable GPU.
EMULATOR = "emulator"
EMULATOR_CHECKS = "emulator: bounds, alignment, write permission"
EMULATOR_LIMITS = "races, barrier divergence and uninitialised data are not checked by it"

#: What the canary says of a kernel that came to its end, and of a report.
RIGHT_RESULT, REPORTED = "ran to its end with the right result", "reported: "
#: A report names the kernel, the address and the buffer.
_OUT_OF_BOUNDS = re.compile(
    rf"^canary: out_of_bounds: {REPORTED}.*\bcanary_out_of_bounds\+0x[0-9a-f]+: .* at 0x[0-9a-f]+: .*\bbuffer 'out'",
    re.MULTILINE,
)


def judge_emulated_sweep(exit_code: int | None, executed: int, launches: int) -> str | None:
    """Why the tests on the emulator do not count as clean; None when they do. ``launches`` are those it ran."""
    if exit_code is None:
        return "the tests did not end in time"
    if exit_code not in (0, _NO_TESTS):
        return f"exit code {exit_code}, want 0"
    if executed < 1:
        return "no test was executed"
    if launches < 1:
        return "no kernel ran on the emulator"
    return None


def judge_emulated_canary(exit_code: int | None, log: str) -> str | None:
    """Why the canary does not count as caught by the emulator; None when it does."""
    if exit_code is None:
        return "the canary did not end in time"
    if exit_code != 0:
        return f"the canary's exit code is {exit_code}, want 0"
    if f"canary: none: {RIGHT_RESULT}\n" not in log:
        return "the canary without a fault did not run to its end with the right result"
    if not _OUT_OF_BOUNDS.search(log):
        return "the canary's fault 'out_of_bounds' was not reported with kernel, address and buffer"
    return None
