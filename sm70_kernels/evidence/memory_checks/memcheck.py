"""When a memory check counts: pure functions from exit code and text to a verdict.

A silent tool is the danger: an exit code that nobody asked for, a summary that was never printed, no test that ran, a
tool that sees nothing. So a sweep passes only on positive evidence of each.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sm70_kernels.lab import checkers as checks

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
EMULATOR_CHECKS = "emulator: bounds, alignment, write permission, " + ", ".join(
    name.replace("_", " ") for name in checks.CHECKERS
)
EMULATOR_LIMITS = (
    "blocks that read what others write are not checked by it, nor allocations that the launch does not name"
)

#: What the canary says of a kernel that came to its end, and of a report.
RIGHT_RESULT, REPORTED = "ran to its end with the right result", "reported: "
_GLOBAL = r"global address 0x[0-9a-f]+: buffer 'out' at its offset \d+"
#: The words of each fault's report: the checker, what is wrong, and where in memory.
EMULATED_FAULTS = {
    "out_of_bounds": r"write of 4 bytes at 0x[0-9a-f]+: out of bounds; nearest buffer 'out'",
    "misaligned": r"misaligned 8-byte access to global memory at 0x[0-9a-f]+",
    "undeclared_write": r"write of 4 bytes at 0x[0-9a-f]+: buffer 'in' \(offset \d+\) is read-only",
    "uninitialised": rf"uninitialised: bytes that nothing has written are stored, {_GLOBAL}",
    "taint": rf"taint: bytes that must not matter are stored, {_GLOBAL}",
    "shared_race": r"shared_race: no barrier between this read and the access by warp \d+, lane \d+ at \+0x[0-9a-f]+ "
    r"STS .*, shared address 0x[0-9a-f]+",
    "divergent_barrier": r"barrier: lanes 0xffff of the warp arrive without lanes 0xffff0000",
    "global_race": rf"global_race: block \d+ of the grid wrote the same 4 bytes, .*, {_GLOBAL}",
    "stack": r"stack: access below the stack pointer, .*, stack address 0x[0-9a-f]+",
}


def _reported(fault: str) -> re.Pattern[str]:
    """A report names the kernel, offset and text of the instruction, then what is wrong, block, warp and lane."""
    place = rf"\bcanary_{fault}\+0x[0-9a-f]+: "
    lane = r" \[block \(\d+,\d+,\d+\), warp \d+, lane \d+"
    return re.compile(rf"^canary: {fault}: {REPORTED}.*{place}.*: {EMULATED_FAULTS[fault]}.*{lane}", re.MULTILINE)


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
    """Why the canary does not count as caught by the emulator; None when each of its faults was, by its checker."""
    if exit_code is None:
        return "the canary did not end in time"
    if exit_code != 0:
        return f"the canary's exit code is {exit_code}, want 0"
    if f"canary: none: {RIGHT_RESULT}\n" not in log:
        return "the canary without a fault did not run to its end with the right result"
    missed = [fault for fault in EMULATED_FAULTS if not _reported(fault).search(log)]
    if missed:
        return f"the canary's fault {missed[0]!r} was not reported with kernel, instruction, place and lane"
    return None
