"""Opcode forms: what of an instruction decides which code of the emulator executes it.

A form is the opcode, all its modifiers, and for each operand

- its kind: register ``R``, predicate ``P`` or the constant ``PT``, immediate ``I``, constant bank ``c0``..., address
  ``[R]`` or ``[I]``, label ``L``, convergence barrier ``B``, or a special register by its name;
- what precedes it: ``-``, ``~``, ``!``, ``|...|``;
- what follows it: ``.H0_H0``, ``.F32``, ``.B1``, ``.X4``, ``.U32``...

Which register, the value of an immediate (tables of LOP3 and PLOP3 and selectors of PRMT among them), a displacement
and the guard are no part of it: they are data to the code that executes it. RZ is a register, PT is not a P, because PT
chooses, in FMNMX for one, what the instruction does.
"""

from __future__ import annotations

import functools
import re

_REMARK = re.compile(r"\(\*.*?\*\)")
_GUARD = re.compile(r"^@!?P[0-6T]\s+")
_NUMBER = re.compile(r"^[-+]?(0x[0-9a-f]+|[0-9.]+(e[-+]?[0-9]+)?|INF|QNAN|SNAN)$")


@functools.cache
def form(text: str) -> str:
    """The form of an instruction as nvdisasm prints it."""
    text = _GUARD.sub("", _REMARK.sub("", text).strip().rstrip(";").strip())
    opcode, _, rest = text.partition(" ")
    # A half-precision constant is printed with a space in it.
    rest = rest.replace("] [", "][")
    operands = [_operand(operand) for operand in re.split(r"[,\s]+", rest) if operand]
    return " ".join([opcode, ", ".join(operands)]).strip()


def _operand(text: str) -> str:
    text = text.replace(".reuse", "")
    if _NUMBER.match(text):
        return "I"
    before = re.match(r"[-~!]*", text).group()  # type: ignore[union-attr]
    text = text[len(before) :]
    if text.startswith("|"):
        inside, _, after = text[1:].partition("|")
        return f"{before}|{_operand(inside)}|{after}"
    if match := re.match(r"^c\[0x([0-9a-f]+)\]\[(.*?)\](.*)$", text):
        indexed = "[R]" if "R" in match[2] else ""
        return f"{before}c{match[1]}{indexed}{match[3]}"
    if text.startswith("["):
        return f"{before}[{_address(text[1 : text.index(']')])}]{text[text.index(']') + 1 :]}"
    if text.startswith("`"):
        return "L"
    if match := re.match(r"^(R|P|B)(\d+|Z|T)(\..*)?$", text):
        kind = "PT" if match[1] == "P" and match[2] == "T" else match[1]
        return f"{before}{kind}{match[3] or ''}"
    return before + text


def _address(text: str) -> str:
    """A register with its suffixes, or a number; the displacement is left out."""
    registers = [re.sub(r"^R\d+", "R", term) for term in text.split("+") if re.match(r"R\d", term)]
    return "+".join(registers) or "I"


def sections(listing: str) -> dict[str, str]:
    """The parts of a listing that belong to each kernel."""
    found = re.split(r"^//-+ \.text\.(\w+) +-+$", listing, flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def instructions(listing: str) -> dict[str, list[str]]:
    """The text of each kernel's instructions."""
    line = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;?\s*/\* 0x", re.MULTILINE)
    return {kernel: line.findall(text) for kernel, text in sections(listing).items()}
