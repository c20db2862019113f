"""Hashes of machine code: line tables do not count, everything that a kernel does counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sm70_kernels import _elf, lab
from sm70_kernels.build import machine_code

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
__constant__ float factors[2] = {2.0f, 3.0f};
extern "C" __global__ void scale(float* out, int which) {
    __shared__ float tile[64];
    tile[threadIdx.x] = out[threadIdx.x] * factors[which];
    __syncthreads();
    out[threadIdx.x] = tile[63 - threadIdx.x];
}
"""
#: A change of the source -> whether the code of `scale` is another one.
CHANGES = {
    "a comment above": (("extern", "// moved by a line\nextern"), False),
    "a comment inside": (("    __syncthreads();", "    // all of the tile is there\n\n    __syncthreads();"), False),
    "a renamed variable": (("tile", "row"), False),
    "another instruction": (("63 - threadIdx.x", "62 - threadIdx.x"), True),
    "another constant": (("3.0f}", "4.0f}"), True),
    "more shared memory": (("tile[64]", "tile[128]"), True),
}


def images(source: str) -> tuple[bytes, bytes]:
    module = lab.compile_source(source)
    return module.cubin, module.ptx.encode()


@pytest.mark.parametrize("change,differs", CHANGES.values(), ids=CHANGES)
def test_what_counts(change: tuple[str, str], differs: bool) -> None:
    changed = SOURCE.replace(*change)
    assert changed != SOURCE
    (cubin, ptx), (other_cubin, other_ptx) = images(SOURCE), images(changed)
    assert (machine_code.of_kernels(cubin)["scale"] != machine_code.of_kernels(other_cubin)["scale"]) is differs
    assert (machine_code.of_cubin(cubin) != machine_code.of_cubin(other_cubin)) is differs
    if change[0] != "tile":  # PTX keeps the names of variables
        assert (machine_code.of_ptx(ptx) != machine_code.of_ptx(other_ptx)) is differs


def test_line_tables_are_in_the_files_and_not_in_the_hash() -> None:
    """Otherwise the cases above would prove nothing."""
    (cubin, ptx), (moved, moved_ptx) = images(SOURCE), images("\n" + SOURCE)
    assert cubin != moved and ptx != moved_ptx
    assert machine_code.of_cubin(cubin) == machine_code.of_cubin(moved)
    assert machine_code.of_ptx(ptx) == machine_code.of_ptx(moved_ptx)


def test_ptx_keeps_every_instruction() -> None:
    ptx = images(SOURCE)[1].decode()
    kept = machine_code.ptx_instructions(ptx)
    instruction = re.compile(r"^[ \t]+(?!\.loc|//)[a-z@%][^;\n]*;", re.MULTILINE)
    assert instruction.findall(kept) == instruction.findall(ptx)
    assert len(instruction.findall(kept)) > 10
    assert ".debug_" not in kept and ".loc" not in kept


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02" + bytes(200)[:20], b"text"])
def test_no_elf_file(content: bytes) -> None:
    with pytest.raises(_elf.ElfError, match="ELF"):
        machine_code.of_cubin(content)


@pytest.mark.parametrize("listing", sorted(ROOT.glob("build/*/*/kernel.sass")), ids=lambda path: path.parent.name)
def test_no_kernel_reads_a_global_variable(listing: Path) -> None:
    """Their contents are not part of the hash; constant bank 4 is how a kernel would reach one."""
    assert not re.search(r"c\[0x4\]", listing.read_text())
