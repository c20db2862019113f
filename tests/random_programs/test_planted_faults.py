"""The random programs that are always tried find faults of an emulator.

A fault is planted in a listing: the instruction's words stay, and so the listing is accepted, but its text says another
operation, as if the handler of the one it says were wrong. Or a bit of the cubin is flipped.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from sm70_kernels import lab
from sm70_kernels.lab.instruments import Instruments
from tests.corpus.forms import sections
from tests.random_programs import generate, harness, one_each
from tests.random_programs.program import Program

#: What is wrong, and how a line of the listing is changed so. BSYNC and WARPSYNC are not among them: groups of a warp
#: that come to one program counter meet there in any case, and no result shows that they did not wait.
FAULTS = {
    "an addend is not negated": (r"IADD3 (R\d+), (R\w+), -(R\d+)", r"IADD3 \1, \2, \3"),
    "the carry is inverted": (r"(IADD3\.X [^;]*), (P\d), !PT", r"\1, !\2, !PT"),
    "a multiply-add forgets its addend": (r"IMAD (R\d+), (\w+), (\w+), R\d+ ", r"IMAD \1, \2, \3, RZ "),
    "an unsigned wide product is signed": (r"IMAD\.WIDE\.U32 (R\d+), R", r"IMAD.WIDE \1, R"),
    "an unsigned comparison is signed": (r"ISETP\.LT\.U32", "ISETP.LT"),
    "greater or equal is greater": (r"ISETP\.GE", "ISETP.GT"),
    "predicates are joined by OR": (r"ISETP(\S*)\.XOR", r"ISETP\1.OR"),
    "a table of PLOP3 loses a bit": (r"(PLOP3\.LUT [^;]*), 0xa8, 0x0", r"\1, 0x28, 0x0"),
    "AND is OR": (r"0xc0, !PT", "0xfc, !PT"),
    "exclusive OR is OR": (r"(LOP3\.LUT R[^;]*), 0x3c, !PT", r"\1, 0xfc, !PT"),
    "an arithmetic shift is logical": (r"SHF\.R\.S32", "SHF.R.U32"),
    "a funnel shift does not wrap": (r"SHF\.(.)\.W\.U32", r"SHF.\1.U32"),
    "bytes are permuted backward": (r"PRMT\.F4E", "PRMT.B4E"),
    "the leading one is sought in signed numbers": (r"FLO\.U32", "FLO"),
    "complements are counted": (r"POPC (R\d+), (R\d+)", r"POPC \1, ~\2"),
    "a scaled index is not scaled": (r"(LEA R\d+, R\d+, [^;]*), 0x[0-9a-f]+ ", r"\1, 0x0 "),
    "selection is inverted": (r"(F?SEL R\d+, [^;]*), (P\d) ", r"\1, !\2 "),
    "a fused multiply-add rounds to nearest": (r"FFMA\.RZ", "FFMA"),
    "a sum rounds down": (r"FADD (R\d+), (R\d+)", r"FADD.RM \1, \2"),
    "subnormal products are kept": (r"FMUL\.FTZ", "FMUL"),
    "a sum is not saturated": (r"FADD\.SAT", "FADD"),
    "a product's sign is lost": (r"FMUL(\S*) (R\d+), (R[^,]+), -", r"FMUL\1 \2, \3, "),
    "the lesser float is the greater": (r"(FMNMX\S* [^;]*), PT ", r"\1, !PT "),
    "unordered numbers compare as ordered": (r"FSETP\.GEU", "FSETP.GE"),
    "floor is ceiling": (r"(F2I\S*)\.FLOOR", r"\1.CEIL"),
    "an unsigned conversion is signed": (r"F2I(\S*)\.U32", r"F2I\1"),
    "integers are rounded to nearest": (r"I2F(\S*)\.RZ", r"I2F\1"),
    "the upper half is the lower": (r"\.H1_H1", ".H0_H0"),
    "a half multiply-add is not saturated": (r"HFMA2\.SAT", "HFMA2"),
    "halves are compared the other way": (r"HSET2\.BF\.LT", "HSET2.BF.GT"),
    "a reciprocal is a reciprocal root": (r"MUFU\.RCP ", "MUFU.RSQ "),
    "lanes exchange the other way": (r"SHFL\.UP", "SHFL.DOWN"),
    "a segment's end is ignored": (r"(SHFL\.DOWN \w+, R\d+, R\d+, \w+), 0x\w+", r"\1, 0x1f"),
    "lanes vote the opposite": (r"VOTE\.ANY (R\d+), PT, !(P\d)", r"VOTE.ANY \1, PT, \2"),
    "the block is not waited for": (r"BAR\.SYNC 0x0", "NOP"),
    "lanes that leave a loop are waited for": (r"BREAK B\d", "NOP"),
    "branches ignore their predicate": (r"@P0 BRA ", "BRA "),
    "a shared maximum is a minimum": (r"ATOMS\.MAX", "ATOMS.MIN"),
    "a global sum is an exclusive or": (r"RED\.E\.ADD", "RED.E.XOR"),
    "bytes are loaded without their sign": (r"LDG\.E\.S8", "LDG.E.U8"),
    "the stack is written elsewhere": (r"STL \[(R\d+)\]", r"STL [\1+0x4]"),
}


@pytest.fixture(scope="module")
def units() -> list[harness.Unit]:
    """The programs that are always tried, and their expected values."""
    seeds = [list(range(start, start + 12)) for start in range(0, 48, 12)]
    programs = [one_each.programs(), *([generate.program(seed) for seed in part] for part in seeds)]
    return [harness.compile_unit(part) for part in programs]


@pytest.mark.parametrize("what", FAULTS)
def test_a_wrong_operation_is_found(units, what):
    pattern, replacement = FAULTS[what]
    tried = 0
    for unit in units:
        listing, count = re.subn(pattern, replacement, unit.loaded.listing)
        if not count:
            continue
        before, after = sections(unit.loaded.listing), sections(listing)
        wrong = lab.Module(unit.loaded.cubin, listing)
        for program in unit.programs:
            if before[program.name] == after[program.name]:
                continue
            tried += 1
            if harness.problem(wrong, program):
                return
    pytest.fail(f"{tried} programs with the fault gave what they should" if tried else "no program has the instruction")


def test_a_flipped_bit_is_found(tmp_path):
    """Bits of the first source register of executed instructions, in programs whose every result is looked at. What is
    left are flips that name a register of the same value, and bits that only some values of an operand show."""
    rng, found, tried = np.random.default_rng(2), 0, 0
    for program in one_each.programs()[::5]:
        unit = harness.compile_unit([program])
        executed = executed_offsets(unit, program)
        registers = re.compile(r"^(?!IMAD|S2R).* R\d+, R\d+")  # IMAD mostly computes addresses
        instructions = [
            i for i in unit.loaded.code.instructions(program.name)
            if i["offset"] in executed and registers.search(i["text"])
        ]  # fmt: skip
        for instruction in rng.permutation(instructions)[:10]:
            flipped = flip(unit.loaded.cubin, instruction, int(rng.choice([24, 25, 26])))
            if flipped is None:
                continue
            tried += 1
            try:
                changed = lab.load(flipped)
                found += harness.problem(changed, program) is not None
            except lab.EmulatorError:
                found += 1
    assert tried > 20
    assert found > 0.75 * tried, f"{found} of {tried}"
    print(f"{found} of {tried} flipped bits found")


def executed_offsets(unit: harness.Unit, program: Program) -> set[int]:
    """Where the instructions are that some lane executes."""
    with Instruments("execution_counts") as instruments:
        harness.emulate(unit.loaded, program, instruments=instruments)
        counts = instruments.report("execution_counts")[program.name]
    return {16 * place for place, (_, _, lanes) in enumerate(counts) if lanes}


def flip(cubin: bytes, instruction: dict[str, int], bit: int) -> bytes | None:
    """The cubin with a bit of an instruction inverted, if it is there once."""
    old = instruction["low"].to_bytes(8, "little") + instruction["high"].to_bytes(8, "little")
    if cubin.count(old) != 1:
        return None
    return cubin.replace(old, (instruction["low"] ^ 1 << bit).to_bytes(8, "little") + old[8:])
