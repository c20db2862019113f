"""A kernel's facts, read off its machine code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from sm70_kernels.evidence.runs.schema import Record
from sm70_kernels.lab.audit import machine
from sm70_kernels.lab.audit.loops import Loop, find_loops
from sm70_kernels.lab.audit.occupancy import Occupancy, occupancy

#: Loops that are shorter wait for something: ptxas's spins until lanes converge have 8 instructions.
LEAST_LOOP = 16
ISSUE, DRAM = "issue", "dram"


class Launch(Record, kw_only=True, frozen=True):
    """How an operator launches a kernel."""

    block: int
    """Threads."""
    dynamic_shared_bytes: int = 0


class LoopFacts(Record, kw_only=True, frozen=True):
    """A loop's body, each instruction taken once: those that a turn may skip, and those of loops inside, too."""

    offset: int
    """Of its first instruction, in bytes."""
    source: str
    """Source line of that instruction."""
    depth: int
    innermost: bool
    instructions: int
    """Issue slots of an iteration."""
    stall_cycles: int
    """What the control codes make a lone warp wait: a turn can't be shorter for it."""
    pipes: dict[str, int]
    """Cycles of each pipe of a sub-core, bank conflicts apart."""
    global_bytes: int
    """Bytes that a whole warp loads from and stores to global memory."""
    bound_cycles: int
    """Cycles of a sub-core that a warp's turn takes at least: the largest of issue slots, pipes and DRAM's share."""
    limiter: str
    """Which that is: ``issue``, a pipe, or ``dram``, taken that nothing is found in a cache."""


class KernelFacts(Record, kw_only=True, frozen=True):
    """A kernel."""

    registers: int
    max_live_registers: int
    static_shared_bytes: int
    local_bytes: int
    """Stack of a thread."""
    spill_bytes: int
    """Stores and loads, as ptxas counts them."""
    instructions: int
    pipes: dict[str, int]
    """Pipe -> instructions, the most first."""
    hmma: int
    global_accesses: dict[str, int]
    """Bits -> load and store instructions."""
    shared_accesses: dict[str, int]
    occupancy: list[Occupancy]
    """For each launch that was declared."""
    loops: list[LoopFacts]
    """In order of address; without waits."""

    @property
    def wide_global_percent(self) -> int:
        """128-bit loads and stores of global memory, of all of them."""
        return _wide(self.global_accesses)

    @property
    def wide_shared_percent(self) -> int:
        """128-bit loads and stores of shared memory, of all of them."""
        return _wide(self.shared_accesses)


def _wide(accesses: Mapping[str, int]) -> int:
    total = sum(accesses.values())
    return 100 * accesses.get("128", 0) // total if total else 100


def _bits(instruction: Mapping[str, Any]) -> int:
    """Bits of a load or store."""
    for modifier in instruction["modifiers"]:
        if modifier in ("64", "128"):
            return int(modifier)
        if modifier in ("U8", "S8", "U16", "S16"):
            return int(modifier[1:])
    return 32


def _accesses(code: Sequence[Mapping[str, Any]], opcodes: tuple[str, ...]) -> dict[str, int]:
    counts = Counter(_bits(i) for i in code if i["opcode"] in opcodes)
    return {str(bits): count for bits, count in sorted(counts.items())}


def _loop_facts(loop: Loop, code: Sequence[Mapping[str, Any]]) -> LoopFacts:
    body = [code[index] for index in sorted(loop.body)]
    pipes: Counter[str] = Counter()
    for instruction in body:
        if instruction["pipe"] != "none":
            pipes[instruction["pipe"]] += instruction["pipe_cycles"]
    moved = sum(_bits(i) // 8 * machine.WARP for i in body if i["opcode"] in ("LDG", "STG"))
    costs = {ISSUE: len(body), DRAM: round(moved / machine.DRAM_BYTES_PER_CYCLE), **pipes}
    limiter = max(costs, key=lambda name: costs[name])
    place = code[loop.header]["source"]
    return LoopFacts(
        offset=16 * loop.header,
        source=f"{place[0][0]}:{place[0][1]}" if place else "",
        depth=loop.depth,
        innermost=loop.innermost,
        instructions=len(body),
        stall_cycles=sum(max(1, i["stall"]) for i in body),
        pipes=dict(pipes.most_common()),
        global_bytes=moved,
        bound_cycles=costs[limiter],
        limiter=limiter,
    )


def kernel_facts(module: Any, kernel: str, launches: Sequence[Launch] = (), *, spill_bytes: int = 0) -> KernelFacts:
    """Facts of a kernel of an ``_emulator.Module``.

    Without launches, one of as many threads as the launch bound allows and no dynamic shared memory is taken.

    Raises:
        EmulatorError: the kernel has an instruction that the emulator does not know.
    """
    image = module.kernels()[kernel]
    code = module.analyse(kernel)
    unknown = sorted({i["opcode"] for i in code if not i["pipe_known"]})
    if unknown:
        raise ValueError(f"{kernel}: no pipe is known for {', '.join(unknown)}: add it to pipes.cpp")
    entries = [0, *(i["callee"] for i in code if i["callee"] >= 0)]
    loops = find_loops([i["successors"] for i in code], entries, least=LEAST_LOOP)
    shapes = launches or [Launch(block=image["max_threads"] or 1024)]
    return KernelFacts(
        registers=image["registers"],
        max_live_registers=max(i["live_registers"] for i in code),
        static_shared_bytes=image["static_shared_bytes"],
        local_bytes=image["local_bytes"],
        spill_bytes=spill_bytes,
        instructions=len(code),
        pipes=dict(Counter(i["pipe"] for i in code).most_common()),
        hmma=sum(i["opcode"] == "HMMA" for i in code),
        global_accesses=_accesses(code, ("LDG", "STG")),
        shared_accesses=_accesses(code, ("LDS", "STS")),
        occupancy=[
            occupancy(shape.block, image["registers"], image["static_shared_bytes"], shape.dynamic_shared_bytes)
            for shape in shapes
        ],
        loops=[_loop_facts(loop, code) for loop in loops],
    )
