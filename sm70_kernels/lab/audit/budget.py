"""What an operator's kernels may cost: ``csrc/ops/<op>/budget.json``, checked on every test run.

A budget bounds what costs performance and is easily lost unseen: registers (so far as occupancy hangs on them), spills,
stack, shared memory, resident warps, 128-bit accesses, and the bound of every loop. It is written from what was
built, not by hand; getting worse is a change of the file, with a reason in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sm70_kernels.evidence.runs.schema import Record
from sm70_kernels.lab.audit.facts import KernelFacts, Launch
from sm70_kernels.lab.audit.occupancy import most_registers

SCHEMA_VERSION = 1
NAME = "budget.json"
HOW = (
    "Limits of 'sm70-kernels audit', written by 'sm70-kernels audit OPERATOR --write'. Launches are the block sizes "
    "and dynamic shared bytes that op.cpp uses: by hand, or with --launches. To raise a limit on purpose: "
    "--because 'REASON'"
)
#: A loop may take so much more than when its budget was written: schedules differ by an instruction or two.
LOOP_SLACK_PERCENT = 2


class BudgetError(RuntimeError):
    """A budget can't be read or written: the message says what to do."""


class KernelBudget(Record, kw_only=True, frozen=True):
    """Limits of one kernel."""

    launches: list[Launch]
    registers: int
    """At most: as many as keep the resident warps."""
    spill_bytes: int
    local_bytes: int
    static_shared_bytes: int
    resident_warps: list[int]
    """At least, on an SM, for each launch."""
    wide_global_percent: int
    """128-bit accesses of all to global memory, at least."""
    wide_shared_percent: int
    loop_cycles: list[int]
    """At most, a turn of each loop, in order of address."""


class Raise(Record, kw_only=True, frozen=True):
    """A limit that was raised on purpose."""

    kernel: str
    what: str
    because: str


class Budget(Record, kw_only=True, frozen=True):
    """Limits of an operator."""

    schema_version: int = SCHEMA_VERSION
    how: str = HOW
    kernels: dict[str, KernelBudget]
    raised: list[Raise] = msgspec.field(default_factory=list)


class Finding(Record, kw_only=True, frozen=True):
    """Something that got worse."""

    kernel: str
    what: str
    found: str
    limit: str

    def __str__(self) -> str:
        return f"{self.kernel}: {self.what}: found {self.found}, the budget is {self.limit}"


def write_command(operator: str, *, because: bool = True) -> str:
    """The command that writes an operator's budget."""
    reason = " --because 'REASON'" if because else ""
    return f"sm70-kernels audit {operator} --write{reason}"


def read(path: Path) -> Budget | None:
    """An operator's budget; None if it has none. Raises BudgetError for a file that is none."""
    if not path.is_file():
        return None
    try:
        return msgspec.json.decode(path.read_bytes(), type=Budget)
    except msgspec.MsgspecError as error:
        command = write_command(path.parent.name, because=False)
        raise BudgetError(f"{path.name} of {path.parent.name} is no budget ({error}). Write it: {command}") from error


def limits_of(facts: KernelFacts) -> KernelBudget:
    """The budget that a kernel as it is just keeps."""
    launches = [
        Launch(block=shape.threads, dynamic_shared_bytes=shape.dynamic_shared_bytes) for shape in facts.occupancy
    ]
    return KernelBudget(
        launches=launches,
        registers=min(
            most_registers(launch.block, facts.registers, facts.static_shared_bytes, launch.dynamic_shared_bytes)
            for launch in launches
        ),
        spill_bytes=facts.spill_bytes,
        local_bytes=facts.local_bytes,
        static_shared_bytes=facts.static_shared_bytes,
        resident_warps=[occupancy.warps for occupancy in facts.occupancy],
        wide_global_percent=facts.wide_global_percent,
        wide_shared_percent=facts.wide_shared_percent,
        loop_cycles=[_with_slack(loop.bound_cycles) for loop in facts.loops],
    )


def _with_slack(cycles: int) -> int:
    return -(-cycles * (100 + LOOP_SLACK_PERCENT) // 100)


def check_kernel(name: str, facts: KernelFacts, budget: KernelBudget) -> list[Finding]:
    """What of a kernel is beyond its budget."""
    findings = []

    def expect(good: bool, what: str, found: object, limit: object) -> None:
        if not good:
            findings.append(Finding(kernel=name, what=what, found=str(found), limit=str(limit)))

    for field in ("registers", "spill_bytes", "local_bytes", "static_shared_bytes"):
        found, most = getattr(facts, field), getattr(budget, field)
        expect(found <= most, field.replace("_", " "), found, f"at most {most}")
    for launch, occupancy, least in zip(budget.launches, facts.occupancy, budget.resident_warps, strict=True):
        shape = f"resident warps of {launch.block} threads with {launch.dynamic_shared_bytes} bytes of shared memory"
        found_warps = f"{occupancy.warps} ({occupancy.limiter})"
        expect(occupancy.warps >= least, shape, found_warps, f"at least {least}")
    for field, memory in (("wide_global_percent", "global"), ("wide_shared_percent", "shared")):
        found, least = getattr(facts, field), getattr(budget, field)
        expect(found >= least, f"128-bit accesses to {memory} memory", f"{found} %", f"at least {least} %")
    loops = facts.loops
    # Fewer loops, by unrolling say, are no loss; then the longest is compared with the longest.
    expect(len(loops) <= len(budget.loop_cycles), "loops", len(loops), f"at most {len(budget.loop_cycles)}")
    if len(loops) == len(budget.loop_cycles):
        for loop, most in zip(loops, budget.loop_cycles, strict=True):
            where = f"cycles a turn of the loop at {loop.offset:#06x} ({loop.source or 'no source line'})"
            expect(loop.bound_cycles <= most, where, f"{loop.bound_cycles} ({loop.limiter})", f"at most {most}")
    elif loops and max(loop.bound_cycles for loop in loops) > max(budget.loop_cycles, default=0):
        worst = max(loop.bound_cycles for loop in loops)
        expect(False, "cycles a turn of the longest loop", worst, f"at most {max(budget.loop_cycles, default=0)}")
    return findings


def check(facts: Mapping[str, KernelFacts], budget: Budget) -> list[Finding]:
    """What of an operator is beyond its budget. A kernel or a budget without the other is a finding too."""
    findings = []
    for name, kernel in facts.items():
        if name in budget.kernels:
            findings += check_kernel(name, kernel, budget.kernels[name])
        else:
            findings.append(Finding(kernel=name, what="budget", found="a new kernel", limit="not written"))
    findings += [
        Finding(kernel=name, what="kernel", found="none of this name", limit="written for one")
        for name in budget.kernels
        if name not in facts
    ]
    return findings


def renew(
    facts: Mapping[str, KernelFacts],
    old: Budget | None,
    because: str | None,
    now: Mapping[str, KernelFacts] | None = None,
) -> Budget:
    """The budget of what was built; limits that get worse need a reason.

    Args:
        facts: for the launches of the old budget, which they are compared with.
        old: the budget so far, if there is one.
        because: why limits are raised.
        now: facts for other launches, which the new budget declares.

    Raises:
        BudgetError: a limit gets worse and no reason was given.
    """
    raised = list(old.raised) if old else []
    if old is not None:
        worse = [finding for finding in check(facts, old) if finding.kernel in old.kernels and finding.kernel in facts]
        if worse and not because:
            listed = "\n".join(f"  {finding}" for finding in worse)
            raise BudgetError(f"these limits get worse, which needs a reason (--because 'REASON'):\n{listed}")
        raised += [
            Raise(kernel=finding.kernel, what=f"{finding.what}: {finding.found}, was {finding.limit}", because=because)
            for finding in worse
            if because
        ]
    kernels = {name: limits_of(kernel) for name, kernel in sorted((now or facts).items())}
    for name, limits in kernels.items():
        before = old.kernels.get(name) if old else None
        if (
            before
            and not check_kernel(name, facts[name], before)
            and len(before.loop_cycles) == len(limits.loop_cycles)
        ):
            # The slack is not given anew each time, or limits would creep.
            cycles = [min(pair) for pair in zip(before.loop_cycles, limits.loop_cycles, strict=True)]
            kernels[name] = msgspec.structs.replace(limits, loop_cycles=cycles)
    return Budget(kernels=kernels, raised=raised)


def write(path: Path, budget: Budget) -> None:
    """Write a budget, a field a line, so that a change of a limit is a line in a diff."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(budget), indent=1) + b"\n")
