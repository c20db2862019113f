"""How kernels of the installed torch wheel are found and called: symbol tables, and parameters of its attention."""

from __future__ import annotations

import struct
from typing import Any

import torch


def symbols(elf: bytes) -> list[str]:
    """Names in the symbol table of a 64-bit ELF file, by index."""
    (offset,) = struct.unpack_from("<Q", elf, 40)
    entry_size, count = struct.unpack_from("<HH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQII", elf, offset + i * entry_size) for i in range(count)]
    (table,) = [s for s in sections if s[1] == 2]
    strings = sections[table[6]]
    names = []
    for at in range(table[4], table[4] + table[5], 24):
        begin = strings[4] + struct.unpack_from("<I", elf, at)[0]
        names.append(elf[begin : elf.index(b"\0", begin)].decode())
    return names


def attention_parameters(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, o: torch.Tensor, scale: float, causal: bool
) -> bytes:
    """Params of PyTorch's memory-efficient attention (kernel_forward.h); tensors are [batch, length, heads, 64]."""
    batches, queries, heads, dim = q.shape
    keys = k.shape[1]
    fields: list[tuple[str, Any]] = [
        ("Q", q.data_ptr()), ("Q", k.data_ptr()), ("Q", v.data_ptr()), ("Q", 0),  # query, key, value, bias
        ("Q", 0), ("Q", 0), ("Q", 0), ("I", 0),  # sequence starts and lengths, causal offset
        ("Q", o.data_ptr()), ("Q", 0), ("Q", 0),  # output, accumulator, log-sum-exp
        ("i", 0), ("f", scale),  # window, scale
        ("i", dim), ("i", dim), ("i", queries), ("i", keys), ("i", keys), ("B", int(causal)),
        ("i", q.stride(1)), ("i", k.stride(1)), ("i", v.stride(1)), ("i", 0), ("i", o.stride(1)),
        ("i", q.stride(2)), ("i", k.stride(2)), ("i", v.stride(2)), ("q", 0),
        ("q", q.stride(0)), ("q", k.stride(0)), ("q", v.stride(0)), ("q", 0),
        ("i", batches), ("i", heads),
    ]  # fmt: skip
    blob = b""
    for code, value in fields:
        blob += b"\0" * (-len(blob) % struct.calcsize(code)) + struct.pack("<" + code, value)
    return blob
