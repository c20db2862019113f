"""What the ``statistics`` instrument reports of a kernel, and the totals that follow from it.

Names in brackets are Nsight Compute's metrics of the same quantity.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

WARP = 32


class InstructionStatistics(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """One SASS instruction: what it is, and what its executions came to, all launches together."""

    text: str
    opcode: str
    pipe: str
    pipe_cycles: int
    """Cycles that one warp instruction takes the pipe of a sub-core."""
    live_registers: int
    space: str = ""
    """``global``, ``shared``, ``local`` or ``generic``; empty if it accesses no memory."""
    access: str = ""
    """``load``, ``store`` or ``atomic``."""
    width: int = 0
    """Bytes that a lane accesses."""
    is_branch: bool = False
    source: list[tuple[str, int]] = []
    """File and line, then the places that it was inlined at."""
    warps: int = 0
    """Times that a warp issued it."""
    active: int = 0
    """Lanes at its program counter, those included that were predicated off."""
    threads: int = 0
    """Lanes that executed it."""
    divergent: int = 0
    """Executions of a branch after which lanes of the warp went different ways."""
    requests: int = 0
    bytes: int = 0
    sectors: int = 0
    ideal_sectors: int = 0
    wavefronts: int = 0
    ideal_wavefronts: int = 0

    @property
    def bank_conflicts(self) -> int:
        """Wavefronts of shared memory beyond those that the accesses needed at least."""
        return self.wavefronts - self.ideal_wavefronts

    @property
    def place(self) -> str:
        """``file:line`` of the innermost source line; empty where the cubin does not tell it."""
        return f"{self.source[0][0]}:{self.source[0][1]}" if self.source else ""

    @property
    def busy_cycles(self) -> int:
        """Cycles of its pipe that the executions took; those of shared memory with their bank conflicts."""
        if self.wavefronts:
            return self.pipe_cycles * self.requests * self.wavefronts // self.ideal_wavefronts
        return self.pipe_cycles * self.warps


@dataclass(frozen=True)
class Tally:
    """Instructions of one kind taken together."""

    warps: int
    threads: int
    busy_cycles: int


@dataclass(frozen=True)
class MemoryTotals:
    """Accesses of one kind taken together."""

    requests: int
    bytes: int
    sectors: int
    ideal_sectors: int
    wavefronts: int
    ideal_wavefronts: int

    @property
    def sectors_per_request(self) -> float:
        """32-byte sectors that a request touches on average [l1tex__average_t_sectors_per_request...]."""
        return self.sectors / self.requests if self.requests else 0.0

    @property
    def coalescing(self) -> float:
        """Fewest sectors that could hold the bytes / sectors touched: 1 is perfect."""
        return self.ideal_sectors / self.sectors if self.sectors else 1.0

    @property
    def bank_conflicts(self) -> int:
        """[l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum]."""
        return self.wavefronts - self.ideal_wavefronts


class KernelStatistics(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """A kernel: every instruction in order of its address, executed or not."""

    registers: int
    launches: int
    blocks: int
    """Blocks that ran: with ``max_blocks`` not the whole grid."""
    warps: int
    shapes: list[tuple[int, int, int]]
    """Threads of a block, bytes of dynamic shared memory, and how many launches had them."""
    instructions: list[InstructionStatistics]

    @property
    def issued(self) -> int:
        """Warp instructions [smsp__inst_executed.sum]."""
        return sum(i.warps for i in self.instructions)

    @property
    def thread_instructions(self) -> int:
        """Instructions that lanes executed [smsp__thread_inst_executed_pred_on.sum]."""
        return sum(i.threads for i in self.instructions)

    @property
    def active_lanes(self) -> float:
        """Lanes at the program counter of a warp instruction, on average."""
        return sum(i.active for i in self.instructions) / self.issued if self.issued else 0.0

    @property
    def executing_lanes(self) -> float:
        """Lanes that were not predicated off, on average."""
        return self.thread_instructions / self.issued if self.issued else 0.0

    @property
    def branches(self) -> int:
        """Branch instructions issued, unconditional ones, calls and returns included."""
        return sum(i.warps for i in self.instructions if i.is_branch)

    @property
    def divergent_branches(self) -> int:
        """[smsp__sass_branch_targets_threads_divergent.sum]."""
        return sum(i.divergent for i in self.instructions)

    @property
    def barriers(self) -> int:
        """Block barriers that warps arrived at."""
        return sum(i.warps for i in self.instructions if i.opcode == "BAR")

    @property
    def max_live_registers(self) -> int:
        """Most registers that hold a needed value at one instruction, executed or not."""
        return max((i.live_registers for i in self.instructions), default=0)

    def by_opcode(self) -> dict[str, Tally]:
        """Opcode without modifiers -> totals, the most issued first."""
        return _tallies(self.instructions, lambda i: i.opcode)

    def by_pipe(self) -> dict[str, Tally]:
        """Pipe -> totals, the busiest first."""
        found = _tallies(self.instructions, lambda i: i.pipe)
        return dict(sorted(found.items(), key=lambda item: -item[1].busy_cycles))

    def memory(self) -> dict[tuple[str, str, int], MemoryTotals]:
        """(space, access, bytes a lane) -> totals of those that were executed."""
        groups: dict[tuple[str, str, int], list[InstructionStatistics]] = {}
        for instruction in self.instructions:
            if instruction.requests:
                key = instruction.space, instruction.access, instruction.width
                groups.setdefault(key, []).append(instruction)
        fields = MemoryTotals.__dataclass_fields__
        return {
            key: MemoryTotals(**{name: sum(getattr(i, name) for i in group) for name in fields})
            for key, group in sorted(groups.items())
        }

    def by_line(self) -> dict[str, list[InstructionStatistics]]:
        """Source place -> its executed instructions, the most issued first; ``""`` where the cubin tells none."""
        lines: dict[str, list[InstructionStatistics]] = {}
        for instruction in self.instructions:
            if instruction.warps:
                lines.setdefault(instruction.place, []).append(instruction)
        return dict(sorted(lines.items(), key=lambda item: -sum(i.warps for i in item[1])))


def _tallies(
    instructions: Iterable[InstructionStatistics], key: Callable[[InstructionStatistics], str]
) -> dict[str, Tally]:
    groups: dict[str, list[InstructionStatistics]] = {}
    for instruction in instructions:
        if instruction.warps:
            groups.setdefault(key(instruction), []).append(instruction)
    found = {
        name: Tally(sum(i.warps for i in group), sum(i.threads for i in group), sum(i.busy_cycles for i in group))
        for name, group in groups.items()
    }
    return dict(sorted(found.items(), key=lambda item: (-item[1].warps, item[0])))
