"""The kernels of tests/emulator with inputs, and what of their outputs a GPU and the emulator must agree on.

Left out is what no two devices need agree on: which lanes are together in a diverged loop, who comes first in an
atomic, clocks and numbers of multiprocessors. So is ``local_array``, of which NVRTC writes another PTX in each process:
which of its stack loads it joins depends on where its memory lies. Nothing here needs torch, a GPU or the emulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.recorded.inputs import Source, digest
from tests.recorded.recording import Exact, Near, Rule, Ulps

EXACT = Exact()
BLOCK = 128


@dataclass(frozen=True)
class Check:
    """A part of an argument after the launch, and how it is compared. `index` is what stands in the brackets."""

    argument: int
    index: Any = ...
    rule: Rule = EXACT
    any_order: bool = False


@dataclass(frozen=True)
class Case:
    """A launch: arrays are passed as pointers, numpy scalars by value. Arrays in `written` may be written."""

    name: str
    source: str
    kernel: str
    grid: int | tuple[int, ...]
    block: int | tuple[int, ...]
    arguments: tuple[Any, ...]
    written: tuple[int, ...]
    checks: dict[str, Check]
    dynamic_shared_bytes: int = 0

    def inputs(self) -> str:
        """Hash of the arguments, which must not have been launched yet."""
        return digest(self.arguments)

    def outputs(self, arguments: tuple[Any, ...]) -> dict[str, np.ndarray]:
        """What is compared, from the arguments after the launch."""
        found = {}
        for name, check in self.checks.items():
            part = np.ascontiguousarray(arguments[check.argument][check.index])
            found[name] = np.sort(part, axis=None) if check.any_order else part
        return found

    def rules(self) -> dict[str, Rule]:
        """How each output is compared."""
        return {name: check.rule for name, check in self.checks.items()}

    def raw(self) -> set[str]:
        """Outputs that a hash can't stand for."""
        return {name for name, check in self.checks.items() if not isinstance(check.rule, Exact)}


def blocks(threads: int) -> int:
    return -(-int(threads) // BLOCK)


def rows(argument: int, names: str, **rules: Rule) -> dict[str, Check]:
    """A check for each row of an argument, exact but for those with a rule. Rows named "-" are left out."""
    return {name: Check(argument, row, rules.get(name, EXACT)) for row, name in enumerate(names.split()) if name != "-"}


SPECIAL_SINGLES = np.array(
    [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x80012345, 0x00800000,
     0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x3F000000, 0x3FC00000, 0x40200000, 0xC0200000],
    np.uint32,
).view(np.float32)  # fmt: skip


def singles(source: Source, n: int) -> tuple[np.ndarray, ...]:
    """Pairs of all special values, then random bit patterns, then ordinary numbers."""
    k = len(SPECIAL_SINGLES)
    abc = tuple(np.concatenate([source.bits(n // 2, np.float32), source.ordinary(n - n // 2)]) for _ in range(3))
    abc[0][: k * k], abc[1][: k * k] = np.repeat(SPECIAL_SINGLES, k), np.tile(SPECIAL_SINGLES, k)
    abc[2][: k * k] = SPECIAL_SINGLES[source.integers(0, k, k * k)]
    return abc


def arithmetic() -> Iterator[Case]:
    n = 2048
    count = np.int32(n)

    def case(kernel: str, inputs: tuple[np.ndarray, ...], out: np.ndarray, checks: dict[str, Check]) -> Case:
        place = len(inputs)
        size = np.int32(out.shape[1])
        return Case(kernel, "arithmetic", kernel, blocks(size), BLOCK, (*inputs, out, size), (place,), checks)

    abc = singles(Source(1), n)
    names = "add multiply fma divide square_root minimum maximum saturate round floor truncate select"
    yield case("float_basic", abc, np.zeros((12, n), np.float32), rows(3, names))
    names = " ".join(f"{op}_{mode}" for op in ("add", "multiply", "fma") for mode in ("down", "up", "toward_zero"))
    yield case("float_directed", abc, np.zeros((9, n), np.float32), rows(3, names))

    source = Source(2)
    small = singles(source, n)
    for x in small:  # many results are subnormal
        x[n // 2 :] = source.ordinary(n // 2, np.float32, (-80, -50))
    small[0][1500:1800], small[1][1500:1800] = ((source.bits(300, np.uint32) >> 8).view(np.float32) for _ in range(2))
    names = "add multiply fma add_toward_zero minimum fma_saturated less greater_or_unordered"
    yield case("float_flushed", small, np.zeros((8, n), np.float32), rows(3, names))

    # The errors that the PTX manual and the CUDA programming guide state, once for each side. Sine and cosine by the
    # special function unit are specified within two turns only.
    a = Source(3).ordinary(1024, np.float32, (-6, 5))
    a[:8] = [0, 1, -1, 0.5, 2, -126, 64, 3]
    names = "ex2 lg2 rcp rsqrt - - expf logf tanhf sinf exp2f rsqrtf"
    units = {"ex2": 2, "rcp": 1, "rsqrt": 2, "expf": 2, "logf": 1, "tanhf": 2, "sinf": 2, "exp2f": 2, "rsqrtf": 2}
    rules: dict[str, Rule] = {name: Ulps(2 * unit) for name, unit in units.items()}
    checks = rows(1, names, **rules, lg2=Ulps(4, 2 * 2.0**-22))
    within = np.abs(a) <= 6.28
    for row, name in ((4, "sin"), (5, "cos")):
        checks[name] = Check(1, (row, within), Ulps(0, 2 * 2.0**-20.5))
    yield case("special", (a,), np.zeros((12, 1024), np.float32), checks)

    source = Source(4)
    edges = np.array([0, 1, -1, 2**31 - 1, -(2**31), 31, 32, 255, 65535, -7], np.int32)
    k = len(edges)
    x, y, z = (source.bits(n, np.int32) for _ in range(3))
    x[: k * k], y[: k * k], z[: k * k] = np.repeat(edges, k), np.tile(edges, k), edges[source.integers(0, k, k * k)]
    y[k * k : k * k + 500] = source.integers(-20, 20, 500)
    y[(x == -(2**31)) & (y == -1)] = 3  # the quotient has no place
    names = (
        "add_subtract multiply_add high_product high_unsigned_product quotient unsigned_remainder minimum "
        "unsigned_maximum bitwise xor shift_left shift_right funnel_left funnel_right_clamped population leading_zeros "
        "first_set reverse permute absolute dot_signed compare dot_unsigned"
    )
    yield case("integer", (x, y, z), np.zeros((23, n), np.int32), rows(3, names))

    source = Source(5)
    p, q = source.bits(n, np.int64), source.bits(n, np.int64)
    p[:400] >>= 40
    q[200:800] >>= 45
    q[800:1000] = p[800:1000]
    q[1000:1040] = 0
    q[(p == -(2**63)) & (q == -1)] = 3
    names = (
        "add subtract multiply quotient unsigned_remainder shift_left shift_right unsigned_shift_right minimum "
        "high_unsigned_product compare high_product"
    )
    yield case("wide", (p, q), np.zeros((12, n), np.int64), rows(2, names))

    source = Source(6)
    halves = tuple(np.concatenate([source.bits(n, np.float16), source.ordinary(n, np.float16)]) for _ in range(3))
    names = "add subtract multiply fma multiply_by_lower swapped_add fma_constant"
    yield Case(
        "half_pairs", "arithmetic", "half_pairs", blocks(n), BLOCK,
        (*halves, np.zeros((7, 2 * n), np.float16), np.zeros(n, np.uint32), count), (3, 4),
        rows(3, names) | {"comparisons": Check(4)},
    )  # fmt: skip

    source = Source(7)
    doubles = tuple(
        np.concatenate([source.ordinary(256, np.float64, (-20, 9)), source.bits(256, np.float64)]) for _ in range(3)
    )
    names = "add multiply fma divide square_root select exponential minimum"
    yield case("doubles", doubles, np.zeros((8, 512)), rows(3, names, exponential=Ulps(2)))


def conversion() -> Iterator[Case]:
    n = 2048
    count = np.int32(n)
    source = Source(11)
    a = singles(source, n)[0]
    a[300:600], a[600:900] = source.ordinary(300, np.float32, (26, 36)), source.ordinary(300, np.float32, (-26, -10))
    outputs = (np.zeros((5, n), np.int32), np.zeros((2, n), np.int64), np.zeros((4, n), np.float16), np.zeros(n))
    checks = rows(1, "int unsigned nearest_int floor_int ceil_int") | rows(2, "int64 nearest_int64")
    checks |= rows(3, "half half_toward_zero half_down half_up") | {"double": Check(4)}
    yield Case("floats", "conversion", "floats", blocks(n), BLOCK, (a, *outputs, count), (1, 2, 3, 4), checks)

    source = Source(12)
    x, y = source.bits(n, np.int32), source.bits(n, np.int64)
    x[:200] >>= 20
    y[:600] >>= 30
    names = "int unsigned int_toward_zero int_up int64 unsigned64 byte short"
    checks = rows(2, names) | rows(3, "int64_double int_double")
    outputs = (np.zeros((8, n), np.float32), np.zeros((2, n)))
    yield Case("integers", "conversion", "integers", blocks(n), BLOCK, (x, y, *outputs, count), (2, 3), checks)

    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    arguments: tuple[Any, ...] = (every, np.zeros(2**16, np.float32), np.int32(2**16))
    yield Case("halves", "conversion", "halves", 512, BLOCK, arguments, (1,), {"every_half": Check(1)})

    d = Source(13).ordinary(1024, np.float64, (-160, 160))
    d[:6] = [0.0, -0.0, np.inf, 2.0**31, -(2.0**63), -np.inf]
    d[512:] = Source(14).ordinary(512, np.float64, (20, 70))
    d[6] = np.nan
    number = ~np.isnan(d)
    checks = {"single": Check(1), "int": Check(2, number), "int64": Check(3, number)}
    checks |= {"int_of_nan": Check(2, ~number), "int64_of_nan": Check(3, ~number)}
    arguments = (d, np.zeros(1024, np.float32), np.zeros(1024, np.int32), np.zeros(1024, np.int64), np.int32(1024))
    yield Case("narrowing", "conversion", "narrowing", blocks(1024), BLOCK, arguments, (1, 2, 3), checks)

    arguments = (np.arange(256, dtype=np.uint8), np.zeros(256, np.uint16), np.int32(64))
    yield Case("e4m3", "conversion", "e4m3", 1, 64, arguments, (1,), {"every_byte": Check(1)})


def intrinsics() -> Iterator[Case]:
    def case(kernel: str, threads: int, arguments: tuple[Any, ...], checks: dict[str, Check]) -> Case:
        written = tuple(sorted({check.argument for check in checks.values()}))
        return Case(kernel, "intrinsics", kernel, 1, threads, arguments, written, checks)

    yield case("stack_by_pointer", 32, (np.zeros(32, np.int32), np.int32(5)), {"sums": Check(0)})

    # Functions that go through single precision and the special function unit: one unit of a half, once for each side.
    names = "minimum maximum square_root exponential add_saturated fma_saturated reciprocal negate floor divide"
    rules: dict[str, Rule] = {name: Ulps(2) for name in ("square_root", "exponential", "reciprocal", "divide")}
    x = Source(21).ordinary(128, np.float16, (-3, 2))
    yield case("half_functions", 32, (x, np.zeros((10, 64), np.float16)), rows(1, names, **rules))

    yield case("partial_warps", 32, (np.zeros(32, np.int32),), {"sums": Check(0)})

    w, s = np.zeros(8, np.uint64), np.zeros(2, np.int64)
    w[2] = 2**64 - 1
    # The first word depends on which lane compares and swaps first.
    yield case("wide_atomics", 32, (w, s), {"unsigned": Check(0, slice(1, None)), "signed": Check(1)})

    source = Source(22)
    arguments: tuple[Any, ...] = (source.ordinary(32, np.float64), np.zeros(32), source.bits(32, np.int64))
    yield case("wide_exchange", 32, arguments, {"shuffled": Check(1), "matched": Check(2)})

    arguments = (np.zeros(128, np.int32), np.int32(3), np.int32(128))
    yield case("barrier_in_registers", 128, arguments, {"reversed": Check(0)})

    # Errors of the CUDA programming guide, once for each side.
    names = "powf fmodf erff cbrtf atan2f sinhf log1pf expm1f sinf remainderf nextafterf"
    units = {"powf": 4, "erff": 2, "cbrtf": 1, "atan2f": 3, "sinhf": 3, "log1pf": 1, "expm1f": 1, "sinf": 2}
    x = Source(23).ordinary(64, np.float32, (-2, 4))
    rules = {name: Ulps(2 * unit) for name, unit in units.items()}
    yield case("library", 32, (x, np.zeros((11, 32), np.float32)), rows(1, names, **rules))


def lanes() -> Iterator[Case]:
    def case(kernel: str, threads: int, arguments: tuple[Any, ...], checks: dict[str, Check], grid: int = 1) -> Case:
        written = tuple(i for i, argument in enumerate(arguments) if i and isinstance(argument, np.ndarray))
        return Case(kernel, "lanes", kernel, grid, threads, arguments, written, checks)

    names = "xor up down by_index segment_lane xor_in_segment ballot any_all match_any match_all active"
    arguments: tuple[Any, ...] = (Source(31).integers(0, 50, 32), np.zeros((11, 32), np.int32))
    yield case("shuffles", 32, arguments, rows(1, names))

    a = Source(32).integers(0, 64, 256)
    a[a & 3 == 1] += 1  # the branch that counts its active lanes
    yield case("nested", 256, (a, np.zeros(512, np.int32)), {"results": Check(1)})

    source = Source(33)
    trips, x = source.integers(0, 40, 64), source.ordinary(40 * 32)
    outputs = (np.zeros(64, np.float32), np.zeros(64, np.int32))
    yield Case(
        "variant_trips", "lanes", "variant_trips", 1, 64, (trips, x, *outputs), (2, 3), {"sums": Check(2)}
    )  # fmt: skip

    arguments = (Source(34).integers(-10, 110, 96), np.full(96, -777, np.int32))
    yield case("early_exit", 96, arguments, {"results": Check(1)})

    zeros = (np.zeros(1, np.int32), np.zeros(1, np.int32))
    yield Case("spin_lock", "lanes", "spin_lock", 3, 64, zeros, (0, 1), {"lock": Check(0), "counter": Check(1)})

    arguments = ((np.arange(64) * 5 % 9).astype(np.int32), np.zeros(64, np.int32))
    yield case("switch_case", 64, arguments, {"results": Check(1)})
    arguments = (np.arange(1, 33, dtype=np.int32), np.zeros(32, np.int32))
    yield case("recursion", 32, arguments, {"depths": Check(1)})
    arguments = (np.arange(32, dtype=np.int32), np.zeros(32, np.int32))
    yield case("pointer_call", 32, arguments, {"results": Check(1)})


def memory() -> Iterator[Case]:
    def case(
        name: str, grid: Any, block: Any, arguments: tuple[Any, ...], checks: dict[str, Check],
        kernel: str | None = None, shared: int = 0,
    ) -> Case:  # fmt: skip
        written = tuple(sorted({check.argument for check in checks.values()}))
        return Case(name, "memory", kernel or name, grid, block, arguments, written, checks, shared)

    source = Source(41)
    arguments: tuple[Any, ...] = (source.bits(64, np.uint8), source.bits(64, np.int16), source.bits(256, np.int32))
    arguments += (np.zeros(512, np.int32), np.zeros((64, 4), np.int32))
    yield case("widths", 1, 64, arguments, {"narrow": Check(3), "quads": Check(4)})

    x = Source(42).ordinary(128 * 128).reshape(128, 128)
    yield case("transpose", (4, 4), (32, 8), (x, np.zeros_like(x), np.int32(128)), {"transposed": Check(1)})

    x = Source(43).ordinary(3000 * 4).reshape(3000, 4)
    arguments = (x, np.zeros_like(x), np.int32(3000))
    yield case("dynamic_shared", 1, 256, arguments, {"reversed": Check(1)}, shared=48000)

    for threads in (48, 256):
        a = Source(threads).integers(0, 100, threads)
        a[threads // 2] = 12345
        arguments = (a, np.zeros((3, threads), np.int32))
        yield case(f"barrier_votes_{threads}", 1, threads, arguments, {"votes": Check(1)}, "barrier_votes")

    arguments = (Source(44).bits(256, np.int32), np.zeros(256, np.int32))
    yield case("producer_consumer", 1, 128, arguments, {"consumed": Check(1)})
    for n in (1, 5):
        yield case(f"generic_{n}", 1, 32, (np.zeros(64, np.float32), np.int32(n)), {"values": Check(0)}, "generic")

    a = Source(46).integers(-1000, 1000, 512)
    d = np.zeros(64 + 512, np.int32)
    d[1], d[4], d[8] = 2**31 - 1, -1, 50
    arguments = (a, d, np.zeros(2, np.uint64), np.zeros(1, np.float32), np.zeros(1))
    checks = {"integer": Check(1, slice(64)), "appended": Check(1, slice(64, None), any_order=True)}
    checks |= {"wide": Check(2), "single": Check(3), "double": Check(4)}
    yield case("atomics", 4, 128, arguments, checks)

    arguments = (Source(47).integers(0, 1000, 256), np.zeros(16, np.int32), np.zeros(1, np.float32))
    yield case("shared_atomics", 1, 256, arguments, {"bins": Check(1), "total": Check(2)})


def tensor() -> Iterator[Case]:
    """HMMA. With small whole numbers every sum is exact whatever the order and rounding, so bits must agree. Otherwise
    a step truncates five terms at 23 bits below the largest and once more its sum, and the products and the addend
    bound all of them. The PTX manual asks no more of other devices than single precision of each of the four additions
    (half precision with half accumulators), which is within the same bound."""
    single_layouts = [f"single_{a}_{b}" for a in ("row", "col") for b in ("row", "col")]
    half_layouts = [f"half_{a}_{b}" for a in ("row", "col") for b in ("row", "col")]
    for seed, kernel in enumerate([*single_layouts, *half_layouts, "mixed_row_col"]):
        dtype = np.float16 if kernel in half_layouts else np.float32
        source = Source(50 + seed)
        a, b, c = (source.integers(-8, 9, count, np.float16) for count in (128, 128, 256))
        x, y, z = (source.ordinary(count, np.float16, (-2, 2)) for count in (128, 128, 256))
        largest = 4 * np.abs(x).max().astype(np.float64) * np.abs(y).max() + np.abs(z).max()
        bound = largest * (4 * 2.0**-11 if kernel in half_layouts else 6 * 2.0**-23)
        for numbers, operands, rule in (
            ("whole", (a, b, c), EXACT),
            ("ordinary", (x, y, z), Ulps(0, 2 * bound)),
        ):
            arguments: tuple[Any, ...] = operands[:2]
            if kernel == "mixed_row_col":
                arguments += (operands[2], np.zeros(256, np.float32))
            else:
                arguments += (operands[2].astype(dtype),)
            place = len(arguments) - 1
            checks = {"accumulators": Check(place, rule=rule)}
            yield Case(f"{kernel}_{numbers}", "tensor", kernel, 1, 32, arguments, (place,), checks)

    for kernel, m, n, k in (("gemm", 128, 32, 96), ("gemm_tiled", 128, 128, 128)):
        for numbers in ("whole", "ordinary"):
            source = Source(70 + k)
            if numbers == "whole":
                a, b = (source.integers(-8, 9, size * k, np.float16).reshape(size, k) for size in (m, n))
            else:
                a, b = (source.ordinary(size * k, np.float16, (-2, 2)).reshape(size, k) for size in (m, n))
            wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
            bound = (k / 4) * 6 * 2.0**-23 * (np.abs(wide_a) @ np.abs(wide_b).T)
            part = (slice(None), slice(32))  # a bound needs the numbers themselves: a part of them is kept
            checks = {"product": Check(2)}
            if numbers == "ordinary":
                checks = {"product": Check(2, part, Near((wide_a @ wide_b.T)[part], bound[part]))}
            sizes = (np.int32(m), np.int32(n), np.int32(k)) if kernel == "gemm" else (np.int32(n), np.int32(k))
            grid = (n // 16, m // 64) if kernel == "gemm" else (n // 64, m // 64)
            arguments = (a, b, np.zeros((m, n), np.float32), *sizes)
            yield Case(f"{kernel}_{numbers}", "tensor", kernel, grid, 128, arguments, (2,), checks)


def programs() -> Iterator[Case]:
    lengths = np.array([0, 1, 2, 31, 32, 33, 64, 100, 127, 128, 3, 77], np.int32)
    x = Source(91).ordinary(12 * 128, np.float32, (0, 4)).reshape(12, 128)
    # A result takes one exponential of its own and a sum whose terms pass at most four rescalings in the loop and five
    # in the exchange: ten, each within 2^-22 on a GPU and 2^-24 in the emulator. At most 24 further operations round,
    # by 2^-24 on each side: 98 times 2^-24 of the value, which is at least 98 units.
    arguments: tuple[Any, ...] = (x, lengths, np.full_like(x, np.nan), np.int32(128))
    yield Case("softmax", "programs", "softmax", 3, 128, arguments, (2,), {"weights": Check(2, rule=Ulps(98))})

    n = 20_000
    x = Source(92).ordinary(n)
    outputs = (np.zeros(20, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32))
    checks = {"parts": Check(1), "finished": Check(2), "total": Check(3)}
    arguments = (x, *outputs, np.int32(n))
    yield Case("split_reduction", "programs", "split_reduction", 20, 256, arguments, (1, 2, 3), checks)

    # A thread adds 14 terms, a warp 5 times its sums, the atomics 48.
    whole = Source(93).integers(-(2**20), 2**20, n)
    totals = np.zeros(16, np.int32)
    totals[1:3] = 2**31 - 1, -(2**31)
    exact, bound = whole.sum(dtype=np.int64), (14 + 5 + 48) * 2.0**-24 * np.abs(whole.astype(np.int64)).sum()
    checks = {"integers": Check(1), "float": Check(2, rule=Near(exact, bound))}
    arguments = (whole, totals, np.zeros(1, np.float32), np.int32(n))
    yield Case("split_atomics", "programs", "split_atomics", 12, 128, arguments, (1, 2), checks)

    source = Source(94)
    start = source.integers(1, 1000, 256, np.uint32)
    start[32:64], start[64:96] = 1, 27
    outputs = (*(np.zeros(256, np.uint32) for _ in range(3)), np.zeros(256, np.float32))
    checks = {"steps": Check(2), "turns": Check(3), "mixed": Check(4), "sums": Check(5)}
    arguments = (start, source.ordinary(256), *outputs)
    yield Case("warp_trips", "programs", "warp_trips", 2, 128, arguments, (2, 3, 4, 5), checks)


#: Files of tests/emulator/kernels, and the cases of each.
SOURCES = {
    "arithmetic": arithmetic, "conversion": conversion, "intrinsics": intrinsics, "lanes": lanes, "memory": memory,
    "tensor": tensor, "programs": programs,
}  # fmt: skip


def all_cases() -> dict[str, Case]:
    """Every case, by name."""
    return {case.name: case for cases in SOURCES.values() for case in cases()}
