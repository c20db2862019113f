"""How many blocks of a kernel an SM holds at a time, and what keeps it from holding more."""

from __future__ import annotations

from typing import Literal

from sm70_kernels.evidence.runs.schema import Record
from sm70_kernels.lab.audit import machine

Limiter = Literal["registers", "shared memory", "warps", "blocks"]


class Occupancy(Record, kw_only=True, frozen=True):
    """Of one block size and one amount of dynamic shared memory."""

    threads: int
    dynamic_shared_bytes: int
    blocks: int
    """On an SM at a time; 0: a block does not fit."""
    warps: int
    """On an SM at a time, of 64."""
    limiter: Limiter
    """What runs out first; of several, the first of registers, shared memory, warps, blocks."""

    @property
    def share(self) -> float:
        """Theoretical occupancy: resident warps / 64."""
        return self.warps / machine.MAX_WARPS


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(threads: int, registers: int, static_shared_bytes: int, dynamic_shared_bytes: int) -> Occupancy:
    """Occupancy on an SM whose cache leaves all 96 KB to shared memory."""
    warps = -(-threads // machine.WARP)
    warp_registers = _up(max(registers, 1) * machine.WARP, machine.REGISTER_UNIT)
    warps_by_registers = machine.REGISTERS // machine.SUB_CORES // warp_registers * machine.SUB_CORES
    shared = _up(static_shared_bytes + dynamic_shared_bytes, machine.SHARED_UNIT)
    limits: dict[Limiter, int] = {
        "registers": warps_by_registers // warps,
        "shared memory": machine.SHARED_BYTES // shared if shared else machine.MAX_BLOCKS + 1,
        "warps": machine.MAX_WARPS // warps,
        "blocks": machine.MAX_BLOCKS,
    }
    blocks = min(limits.values())
    limiter = next(name for name, limit in limits.items() if limit == blocks)
    return Occupancy(
        threads=threads,
        dynamic_shared_bytes=dynamic_shared_bytes,
        blocks=blocks,
        warps=blocks * warps,
        limiter=limiter,
    )


def most_registers(threads: int, registers: int, static_shared_bytes: int, dynamic_shared_bytes: int) -> int:
    """The most registers a thread that keep as many warps resident as ``registers`` do."""
    wanted = occupancy(threads, registers, static_shared_bytes, dynamic_shared_bytes).warps
    return max(
        count
        for count in range(registers, machine.MAX_REGISTERS_PER_THREAD + 1)
        if occupancy(threads, count, static_shared_bytes, dynamic_shared_bytes).warps == wanted
    )
