"""Reads Accel-Sim's SASS traces the way its trace parser does (tracer version 5), and refuses what that would not take.

Written from the format's description and the parser's behaviour; it shares nothing with the writer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

LANES = range(32)


@dataclass
class Executed:
    """One warp instruction."""

    pc: int
    mask: int
    written: list[int]
    opcode: str
    read: list[int]
    width: int
    addresses: dict[int, int]
    """Lane -> address; empty for what accesses no memory."""
    immediate: int
    line: int | None = None


@dataclass
class Block:
    """A thread block: its place in the grid, and what each warp executed."""

    place: tuple[int, int, int]
    warps: dict[int, list[Executed]] = field(default_factory=dict)


@dataclass
class Kernel:
    """A .traceg file."""

    header: dict[str, str]
    blocks: list[Block]

    def extent(self, name: str) -> tuple[int, ...]:
        """``grid dim`` or ``block dim``."""
        match = re.fullmatch(r"\((\d+),(\d+),(\d+)\)", self.header[name])
        assert match
        return tuple(int(number) for number in match.groups())

    def executed(self) -> list[Executed]:
        """Everything, of all blocks and warps."""
        return [one for block in self.blocks for warp in block.warps.values() for one in warp]


def kernel_list(folder: Path) -> list[str]:
    """File names in kernelslist.g, in order."""
    names = [line for line in (folder / "kernelslist.g").read_text().split("\n") if line]
    assert all(name.startswith("kernel") and name.endswith(".traceg") for name in names)
    return names


def _decompress(mode: int, words: list[str], mask: int) -> tuple[dict[int, int], int]:
    """Addresses by lane, and how many words they took."""
    lanes = [lane for lane in LANES if mask >> lane & 1]
    if mode == 0:
        return {lane: int(word, 16) for lane, word in zip(lanes, words, strict=False)}, len(lanes)
    address = int(words[0], 16)
    if mode == 1:
        stride, found = int(words[1]), {}
        for lane in LANES[lanes[0] :]:
            if not mask >> lane & 1:
                break  # the parser goes no further than the first lane that is missing
            found[lane] = address
            address += stride
        return found, 2
    assert mode == 2, f"address mode {mode}"
    found = {lanes[0]: address}
    for lane, word in zip(lanes[1:], words[1:], strict=False):
        address += int(word)
        found[lane] = address
    return found, len(lanes)


def _registers(words: list[str]) -> list[int]:
    """The count and as many registers, taken off the front."""
    count = int(words.pop(0))
    found = []
    for _ in range(count):
        match = re.fullmatch(r"R(\d+)", words.pop(0))
        assert match
        found.append(int(match.group(1)))
    return found


def parse_instruction(text: str, lineinfo: bool) -> Executed:
    words = text.split()
    line = int(words.pop(0)) if lineinfo else None
    pc, mask = int(words.pop(0), 16), int(words.pop(0), 16)
    written = _registers(words)
    opcode = words.pop(0)
    read = _registers(words)
    width = int(words.pop(0))
    addresses: dict[int, int] = {}
    if width:
        mode = int(words.pop(0))
        addresses, taken = _decompress(mode, words, mask) if mask or mode else ({}, 0)
        assert len(addresses) == mask.bit_count()
        del words[:taken]
    assert len(words) == 1, f"left over: {words}"
    return Executed(pc, mask, written, opcode, read, width, addresses, int(words[0]), line)


def read(path: Path) -> Kernel:
    text = path.read_text()
    assert text.endswith("\n")  # the parser asserts it of every line
    head, _, body = text.partition("#traces format")
    header = dict(re.findall(r"^-([^=]+?) = (.*)$", head, re.MULTILINE))
    kernel = Kernel(header, [])
    block: Block | None = None
    warp: list[Executed] = []
    expected = 0
    for line in body.split("\n")[1:]:
        if not line:
            continue
        if line == "#BEGIN_TB":
            assert block is None, "a block within a block"
            block = Block((-1, -1, -1))
        elif line == "#END_TB":
            assert block is not None and len(warp) == expected
            kernel.blocks.append(block)
            block = None
        elif match := re.fullmatch(r"thread block = (\d+),(\d+),(\d+)", line):
            assert block is not None
            block.place = tuple(int(number) for number in match.groups())  # type: ignore[assignment]
        elif match := re.fullmatch(r"warp = (\d+)", line):
            assert block is not None and (not block.warps or len(warp) == expected)
            warp = block.warps[int(match.group(1))] = []
        elif match := re.fullmatch(r"insts = (\d+)", line):
            expected = int(match.group(1))
        else:
            warp.append(parse_instruction(line, header["enable lineinfo"] == "1"))
    assert block is None, "the last block has no end"
    return kernel
