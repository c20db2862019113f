"""Calls of the kv_cache operators, the same on any device: on a GPU, or on CPU tensors with the emulator switched on.

What is compared is all memory that an output lies in, so a store beside it counts. Outputs begin as sentinels, pages
and tokens that may not be read as NaN, and unused entries of block tables as garbage.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sm70_kernels.ops import kv_cache
from tests.ops.kv_cases import FORMATS, LAYOUTS, make_cache
from tests.recorded.inputs import Source, digest

SENTINEL_BYTE = 0x5A
#: Scales whose divisions end near ties; the second's reciprocal does not split (csrc/ops/kv_cache/write_scale.h).
SCALES = (0.37, 1.7898305654525757)
LENGTHS = (0, 1, 17, 100)


@dataclass(frozen=True)
class Outcome:
    """A call: the kernel that ran, hash of what it was given, and all memory of its outputs afterwards."""

    kernel: str
    inputs: str
    outputs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Case:
    """One call of an operator. `keep` asks for whole outputs in the recording, which shows what differs."""

    name: str
    kv_format: str
    layout: str = "contiguous"
    heads: int = 2
    dim: int = 64
    scales: tuple[float, float] = (0.5, 1.75)
    device_scales: bool = False
    keep: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, device: str) -> Outcome:
        """Call the operator on tensors of this device."""
        call = _Call(self, device)
        return call.gather() if self.name.startswith("gather") else call.write()


class _Call:
    def __init__(self, case: Case, device: str) -> None:
        self.case, self.device = case, torch.device(device)
        self.source = Source(zlib.crc32(case.name.encode()))

    def tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)

    def scales(self) -> dict[str, Any]:
        named = dict(zip(("k_scale", "v_scale"), self.case.scales, strict=True))
        if not self.case.device_scales:
            return named
        return {name: torch.tensor([scale], dtype=torch.float32, device=self.device) for name, scale in named.items()}

    def stored(self, *shape: int) -> np.ndarray:
        """Stored values of all kinds, NaN and infinities among them, or every one in turn."""
        dtype = np.uint16 if self.case.kv_format == "fp16" else np.uint8
        count = int(np.prod(shape))
        every = self.case.options.get("every")
        flat = np.arange(count).astype(dtype) if every else self.source.bits(count, dtype)
        return flat.view(np.float16 if dtype == np.uint16 else dtype).reshape(shape)

    def caches(self, pages: int, page: int) -> tuple[Tensor, Tensor]:
        shape = (pages, page, self.case.heads, self.case.dim)
        return make_cache(self.case.layout, shape, self.case.kv_format, self.device)

    def table(self, lengths: tuple[int, ...], page: int, pages: int, blocks: int) -> np.ndarray:
        """Pages in random order, garbage past the live ones."""
        garbage = np.array([-1, 2**31 - 1, -(2**31), pages, 123456789], np.int32)
        table = garbage[self.source.integers(0, len(garbage), len(lengths) * blocks)].reshape(len(lengths), blocks)
        free = iter(self.source.permutation(pages))
        for row, length in enumerate(lengths):
            for block in range(-(-length // page)):
                table[row, block] = next(free)
        return table

    def call(self, operator: Any, given: list[Tensor], outputs: dict[str, Tensor], *arguments: Any, **named: Any):
        inputs = digest([*map(memory, given), np.array(self.case.scales)])
        before = launches()
        operator(*arguments, kv_format=self.case.kv_format, **named)
        after = launches()
        ran = [kernel for kernel, count in after.items() if count != before.get(kernel, 0)]
        return Outcome("+".join(ran), inputs, {name: memory(output) for name, output in outputs.items()})

    def gather(self) -> Outcome:
        case, options = self.case, self.case.options
        lengths, page = options.get("lengths", LENGTHS), options.get("page", 48)
        blocks = -(-max(*lengths, 1) // page)
        pages = sum(-(-length // page) for length in lengths) + 1
        table = self.table(lengths, page, pages, blocks + 1)
        caches = self.caches(pages, page)
        for cache in caches:
            for row, length in enumerate(lengths):
                for block in range(-(-length // page)):
                    live = min(page, length - block * page)
                    cache[int(table[row, block]), :live] = self.tensor(self.stored(live, case.heads, case.dim))
        out_page, out_table = options.get("out_page"), None
        if out_page:
            pages_out = sum(-(-length // out_page) for length in lengths) + 2
            out_table = self.tensor(self.table(lengths, out_page, pages_out, -(-max(lengths) // out_page) + 1))
            shape: tuple[int, ...] = (pages_out, out_page, case.heads, case.dim)
        else:
            shape = (len(lengths), options.get("out_tokens", max(lengths) + 12), case.heads, case.dim)
        outs = [self.output(shape) for _ in range(2)]
        tables = self.tensor(table), self.tensor(np.array(lengths, np.int32))
        return self.call(
            kv_cache.gather_paged_kv,
            [*caches, *tables, *outs],
            {"k_out": outs[0], "v_out": outs[1]},
            *caches,
            *tables,
            **self.scales(),
            k_out=outs[0],
            v_out=outs[1],
            out_block_table=out_table,
        )

    def output(self, shape: tuple[int, ...]) -> Tensor:
        outer, tokens, heads, dim = shape
        if not self.case.options.get("strided_output"):
            return sentinels(torch.empty(shape, dtype=torch.float16, device=self.device))
        both = sentinels(torch.empty((outer, heads, tokens, dim + 8), dtype=torch.float16, device=self.device))
        return both.permute(0, 2, 1, 3)[..., 8:]

    def write(self) -> Outcome:
        case, options = self.case, self.case.options
        tokens, page, pages = options.get("tokens", 37), 48, 6
        if options.get("every"):
            tokens, page, pages = 65536 // (case.heads * case.dim), 16, 65536 // (case.heads * case.dim) // 16 + 1
        caches = self.caches(pages, page)
        for cache in caches:
            sentinels(cache)
        slots = self.source.permutation(page * pages)[:tokens].astype(np.int64)
        if not options.get("every"):
            slots[::5] = -1
        kv = [self.written(tokens, flip) for flip in (False, True)]
        slot_mapping = self.tensor(slots)
        return self.call(
            kv_cache.write_paged_kv,
            [*kv, *caches, slot_mapping],
            {"key_cache": caches[0], "value_cache": caches[1]},
            *kv,
            *caches,
            slot_mapping,
            **self.scales(),
        )

    def written(self, tokens: int, flip: bool) -> Tensor:
        """New tokens: half random bits, half ordinary numbers; or every half there is."""
        heads, dim = self.case.heads, self.case.dim
        count = tokens * heads * dim
        if self.case.options.get("every"):
            values = np.arange(65536).astype(np.uint16).view(np.float16)[:count]
        else:
            some = count // 2
            values = np.concatenate(
                [self.source.bits(some, np.float16), self.source.ordinary(count - some, np.float16)]
            )
        values = values[::-1] if flip else values
        offset = self.case.options.get("offset", 0)
        padded = torch.zeros(count + offset, dtype=torch.float16, device=self.device)
        padded[offset:] = self.tensor(values)
        return padded[offset:].view(tokens, heads, dim)


def memory(tensor: Tensor) -> np.ndarray:
    """Everything in the storage that a tensor is a view of, FP16 as such and the rest as bytes."""
    storage = tensor.untyped_storage()
    everything = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage).cpu().numpy().copy()
    return everything.view(np.float16) if tensor.dtype == torch.float16 else everything


def sentinels(tensor: Tensor) -> Tensor:
    """The tensor, with all of its storage filled: values that no operator writes by chance, and no NaN."""
    torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage()).fill_(SENTINEL_BYTE)
    return tensor


def launches() -> dict[str, int]:
    return {kernel: sum(counts.values()) for kernel, counts in kv_cache.library.launch_counts().items()}


def _gathers(kv_format: str) -> Iterator[Case]:
    def case(name: str, **named: Any) -> Case:
        return Case(f"gather_{kv_format}_{name}", kv_format, **named)

    for layout in LAYOUTS:
        yield case(layout, layout=layout)
    yield case("unit_scales", scales=(1.0, 1.0))
    yield case("scales", scales=SCALES)
    yield case("extreme_scales", scales=(1e-38, 3e38))
    yield case("device_scales", scales=SCALES, device_scales=True)
    yield case("bad_device_scale", scales=(float("nan"), 1.0), device_scales=True)
    yield case("odd_heads", heads=3, dim=40)
    yield case("odd_dim", heads=2, dim=20)
    for page, out_page in ((16, 48), (48, 16), (112, 32)):
        yield case(f"pages_{page}_to_{out_page}", options={"page": page, "out_page": out_page})
    yield case("pages_of_single_elements", layout="offset_1", options={"page": 16, "out_page": 48})
    yield case("end_inside_tile", options={"out_tokens": 100})
    yield case("strided_output", options={"strided_output": True})
    yield case("one_token", heads=1, options={"lengths": (1,), "page": 16, "out_tokens": 20}, keep=True)
    tokens = 256 if kv_format == "fp16" else 16
    for name, scales in (("", (1.0, 0.5)), ("_scaled", SCALES)):
        options = {"every": True, "lengths": (tokens,), "page": 256}
        yield case(f"every_value{name}", heads=1, dim=256, scales=scales, options=options)


def _writes(kv_format: str) -> Iterator[Case]:
    def case(name: str, **named: Any) -> Case:
        return Case(f"write_{kv_format}_{name}", kv_format, **named)

    for layout in LAYOUTS:
        yield case(layout, layout=layout, scales=(0.7, 1.0))
    yield case("odd_heads", heads=3, dim=40)
    yield case("odd_dim", heads=2, dim=20)
    for offset in (1, 4, 8):
        yield case(f"input_offset_{offset}", options={"offset": offset})
    yield case("one_token", heads=1, options={"tokens": 2}, keep=True)
    every = {"heads": 1, "dim": 256, "options": {"every": True}}
    for name, scales in (
        ("unit", (1.0, 1.0)), ("scaled", SCALES), ("up_down", (448.0, 1 / 448)), ("far", (2.0**-61, 2.0**61)),
        ("extreme", (1e-45, 3.4e38)),
    ):  # fmt: skip
        yield case(f"every_half_{name}", scales=scales, **every)
    yield case("every_half_device_scales", scales=SCALES, device_scales=True, **every)
    yield case("every_half_single_elements", layout="offset_1", scales=SCALES, **every)
    yield case("bad_device_scale", scales=(-1.0, float("inf")), device_scales=True)


def all_cases() -> dict[str, Case]:
    """Every case, by name."""
    cases = [case for kv_format in FORMATS for make in (_gathers, _writes) for case in make(kv_format)]
    return {case.name: case for case in cases}
