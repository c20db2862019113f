"""Source lines: what .debug_line says must be what nvdisasm reads from it, inlined functions included."""

from __future__ import annotations

import re
import subprocess

import pytest

from sm70_kernels import _emulator
from sm70_kernels.lab.toolchain import assemble, compile_to_ptx, disassemble, tool

#: `"write.cuh", line 61 inlined at "write.cuh", line 230`, or without the second half.
MARK = re.compile(r'//## File "([^"]+)", line (\d+)')


def printed_lines(cubin: bytes, folder) -> dict[str, list[tuple[bool, list[tuple[str, int]]]]]:
    """Kernel -> chain of lines of each instruction, and whether it was printed just before it (``nvdisasm -c -gi``).

    A chain is printed when its first line changes; where only the lines it was inlined at do, it is not.
    """
    path = folder / "image.cubin"
    path.write_bytes(cubin)
    text = subprocess.run([tool("nvdisasm"), "-c", "-gi", path], check=True, capture_output=True, text=True)
    kernels: dict[str, list[tuple[bool, list[tuple[str, int]]]]] = {}
    chain: list[tuple[str, int]] = []
    in_marks = False
    for line in text.stdout.splitlines():
        if section := re.match(r"\s*\.section\s+\.text\.([^,]+),", line):
            chains = kernels.setdefault(section.group(1), [])
            chain, in_marks = [], False
        elif mark := MARK.search(line):
            # A new mark replaces the last one; the lines of one mark follow each other.
            chain = [*(chain if in_marks else []), (mark.group(1), int(mark.group(2)))]
            in_marks = True
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            chains.append((in_marks, chain))
            in_marks = False
    return kernels


def decoded_lines(module) -> dict[str, list[list[tuple[str, int]]]]:
    return {kernel: [i["source"] for i in module.instructions(kernel)] for kernel in module.kernels()}


def test_an_operator_s_lines_are_those_that_nvdisasm_prints(tmp_path):
    kv_cache = pytest.importorskip("sm70_kernels.ops.kv_cache")
    cubin = kv_cache.library.cubin()
    module = _emulator.Module(cubin, disassemble(cubin))
    lines, printed = decoded_lines(module), printed_lines(cubin, tmp_path)
    assert lines.keys() == printed.keys()
    for kernel, chains in lines.items():
        assert [chain[0] for chain in chains] == [chain[0] for _, chain in printed[kernel]]
        fresh = [(found, chain) for found, (is_fresh, chain) in zip(chains, printed[kernel], strict=True) if is_fresh]
        assert len(fresh) > len(chains) / 20
        assert all(found == chain for found, chain in fresh)
    files = {file for chains in lines.values() for chain in chains for file, _ in chain}
    assert {"csrc/ops/kv_cache/write.cuh", "csrc/device/fp8.cuh"} <= files
    assert all(not file.startswith("/") for file in files)
    assert max(len(chain) for chains in lines.values() for chain in chains) >= 3


SOURCE = """
__device__ __forceinline__ float twice(float x) {
    return x + x;
}
extern "C" __global__ void lines(float* x) {
    float value = x[threadIdx.x];
    x[threadIdx.x] = twice(value);
}
"""


def test_lines_of_a_kernel(tmp_path):
    cubin = assemble(compile_to_ptx(SOURCE)[0])
    module = _emulator.Module(cubin, disassemble(cubin))
    by_opcode = {i["opcode"]: [line for _, line in i["source"]] for i in module.instructions("lines")}
    assert by_opcode["LDG"] == [6]
    assert by_opcode["FADD"] == [3, 7]  # its own line, and where it was inlined
    assert by_opcode["STG"] == [7]


def test_a_cubin_without_lines_has_none(tmp_path):
    ptx, cubin_file = tmp_path / "bare.ptx", tmp_path / "bare.cubin"
    ptx.write_text(re.sub(r"\t\.(loc|file)[^\n]*", "", compile_to_ptx(SOURCE)[0]))
    subprocess.run([tool("ptxas"), "-arch=sm_70", "-o", cubin_file, ptx], check=True)
    cubin = cubin_file.read_bytes()
    module = _emulator.Module(cubin, disassemble(cubin))
    assert [i["source"] for i in module.instructions("lines")] == [[]] * len(module.instructions("lines"))


@pytest.mark.parametrize("fill", [0x00, 0xFF, 0x90])
def test_a_damaged_table_is_no_obstacle(tmp_path, fill):
    cubin = assemble(compile_to_ptx(SOURCE)[0])
    listing = disassemble(cubin)
    whole = decoded_lines(_emulator.Module(cubin, listing))
    at = cubin.index(b"kernel.cu\0")  # the table's file names; the line program follows
    for length in (4, 16, 64, 256):
        damaged = cubin[:at] + bytes([fill]) * length + cubin[at + length :]
        try:
            lines = decoded_lines(_emulator.Module(damaged, listing))
        except _emulator.EmulatorError:  # the damage reached past the table
            continue
        assert lines.keys() == whole.keys()
    assert any(chain for chain in whole["lines"])
