"""``sm70-kernels statistics`` and ``hotspots``: what emulated launches executed, as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sm70_kernels.cli import output
from sm70_kernels.evidence.runs.schema import SCHEMA_VERSION, Record
from sm70_kernels.lab.inspect import InstructionStatistics, KernelStatistics, sources, statistics
from sm70_kernels.lab.inspect.running import RunError


class Report(Record, kw_only=True, frozen=True):
    """The statistics of every kernel that was launched."""

    schema_version: int = SCHEMA_VERSION
    kernels: dict[str, KernelStatistics]


def collect(run: Callable[[], None], *, max_blocks: int | None, threads: int | None) -> Report:
    """Run something on the emulated V100. Raises RunError if it launched nothing."""
    with statistics(max_blocks=max_blocks, threads=threads) as watched:
        run()
    if not watched.kernels:
        raise RunError("nothing ran on the emulated V100: operators must be called with CPU tensors")
    return Report(kernels=watched.kernels)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""


def _number(value: float, digits: int = 1) -> str:
    return f"{value:.{digits}f}" if value else ""


def _count(value: int) -> str:
    return str(value) if value else ""


def _show_kernels(report: Report) -> None:
    columns = (
        *("kernel", "launches", "blocks", "warps", "warp instructions", "active lanes", "executing lanes"),
        *("branches", "divergent", "barriers", "registers", "live at most"),
    )
    rows = [
        (
            name,
            *map(str, (kernel.launches, kernel.blocks, kernel.warps, kernel.issued)),
            f"{kernel.active_lanes:.1f}",
            f"{kernel.executing_lanes:.1f}",
            *map(str, (kernel.branches, kernel.divergent_branches, kernel.barriers, kernel.registers)),
            str(kernel.max_live_registers),
        )
        for name, kernel in report.kernels.items()
    ]
    output.table("kernels (counts of an emulated V100, none of them a time)", columns, rows)


def _show_kinds(name: str, kernel: KernelStatistics) -> None:
    rows = [
        (
            pipe,
            str(tally.warps),
            _percent(tally.warps, kernel.issued),
            str(tally.busy_cycles),
            _number(tally.busy_cycles / kernel.issued, 3),
        )
        for pipe, tally in kernel.by_pipe().items()
    ]
    columns = ("pipe", "warp instructions", "share", "busy cycles", "busy cycles / issue slot")
    output.table(f"{name}: pipes", columns, rows)
    opcodes = [
        (opcode, str(tally.warps), _percent(tally.warps, kernel.issued), f"{tally.threads / tally.warps:.1f}")
        for opcode, tally in kernel.by_opcode().items()
    ]
    output.table(f"{name}: opcodes", ("opcode", "warp instructions", "share", "executing lanes"), opcodes)


def _show_memory(name: str, kernel: KernelStatistics) -> None:
    rows = [
        (
            f"{space} {access}",
            str(8 * width),
            str(totals.requests),
            str(totals.bytes),
            _count(totals.sectors),
            _number(totals.sectors_per_request),
            _percent(totals.coalescing, 1) if totals.sectors else "",
            _count(totals.wavefronts),
            str(totals.bank_conflicts) if totals.wavefronts else "",
        )
        for (space, access, width), totals in kernel.memory().items()
    ]
    columns = (
        *("memory", "bits", "requests", "bytes", "sectors", "sectors / request", "coalescing", "wavefronts"),
        "bank conflicts",
    )
    if rows:
        output.table(f"{name}: memory", columns, rows)


def show_statistics(report: Report, *, as_json: bool) -> None:
    """Print totals by kernel, pipe, opcode and kind of memory."""
    if as_json:
        output.json(report)
        return
    _show_kernels(report)
    for name, kernel in report.kernels.items():
        _show_kinds(name, kernel)
        _show_memory(name, kernel)


def _memory_note(instructions: Sequence[InstructionStatistics]) -> tuple[str, str, str]:
    """Sectors, sectors per request, bank conflicts."""
    sectors, requests = (sum(getattr(i, field) for i in instructions) for field in ("sectors", "requests"))
    conflicts = sum(i.bank_conflicts for i in instructions)
    has_wavefronts = any(i.wavefronts for i in instructions)
    return _count(sectors), _number(sectors / requests if requests else 0), str(conflicts) if has_wavefronts else ""


def _show_lines(name: str, kernel: KernelStatistics, top: int, source_line: Callable[[str], str]) -> None:
    rows = []
    for place, instructions in list(kernel.by_line().items())[:top]:
        warps = sum(i.warps for i in instructions)
        live = max(i.live_registers for i in instructions)
        text = source_line(place)
        rows.append(
            (_percent(warps, kernel.issued), str(warps), *_memory_note(instructions), str(live), place or "?", text)
        )
    columns = ("share", "warps", "sectors", "sectors / request", "bank conflicts", "live", "source", "")
    output.table(f"{name}: lines that issue most", columns, rows)


def _show_instructions(name: str, kernel: KernelStatistics, top: int) -> None:
    # Of those issued as often, accesses that move most come first.
    weights = [(i.warps, i.sectors + i.wavefronts) for i in kernel.instructions]
    order = sorted(range(len(weights)), key=lambda i: weights[i], reverse=True)
    chosen = sorted(i for i in order[:top] if kernel.instructions[i].warps)
    rows, last = [], -1
    for index in chosen:
        instruction = kernel.instructions[index]
        if index != last + 1:
            rows.append(("...", *[""] * 9))
        last = index
        rows.append(
            (
                f"{16 * index:04x}",
                _percent(instruction.warps, kernel.issued),
                str(instruction.warps),
                f"{instruction.threads / instruction.warps:.1f}",
                _count(instruction.divergent),
                *_memory_note([instruction])[1:],
                str(instruction.live_registers),
                instruction.text,
                instruction.place,
            )
        )
    columns = (
        *("offset", "share", "warps", "lanes", "divergent", "sectors / request", "bank conflicts", "live"),
        *("SASS", "source"),
    )
    output.table(f"{name}: the {len(chosen)} instructions that issue most, in order of address", columns, rows)


def show_hotspots(report: Report, *, top: int, as_json: bool, source_line: Callable[[str], str] = sources.line) -> None:
    """Print the source lines and the instructions that warps issue most; ``source_line`` gives the text of a line."""
    if as_json:
        output.json(report)
        return
    for name, kernel in report.kernels.items():
        _show_lines(name, kernel, top, source_line)
        _show_instructions(name, kernel, top)
