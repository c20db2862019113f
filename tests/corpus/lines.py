"""Straight-line PTX: a line of text and the numpy function that says what it computes, a word a thread.

To add a form, add a list of lines to a module `line_*.py`, or lines at the end of a list: what comes before is recorded
on a GPU by the kernel that it is in. A line may use

- `{a} {b} {c}`: 32-bit registers, with random bits and edge values; `{x} {y} {z}`: the same, mostly ordinary floats;
  `{h} {i} {j}`: the same, pairs of ordinary halves; `{w} {v}`: 64-bit registers; `{p} {q}`: predicates;
- `{k}`, `{f}`, `{g}` and `{l}`: an integer, a float, a pair of halves, and a 64-bit integer that are parameters of the
  kernel, so that they become operands in the constant bank;
- `{t0}`-`{t3}`, `{x0}`-`{x3}`, `{s0}`-`{s3}`: scratch of 32 and 64 bits, and predicates;
- `{d}`: the 32-bit result.

The function gets what the names after it take, A, X (floats), H (pairs of halves), P..., and gives the 32 bits:

    lines.add("add.s32 {d}, {a}, {k};", operator.add, A, K)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from tests.random_programs.values import pair_from_bits
from tests.recorded.inputs import Source

THREADS = 256
#: Lines of a kernel: many lines of few registers compile faster in several kernels than in one.
LINES = 64


@dataclass(frozen=True)
class Values:
    """What lines compute with, of all threads."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    h: np.ndarray
    i: np.ndarray
    j: np.ndarray
    w: np.ndarray
    v: np.ndarray
    p: np.ndarray
    q: np.ndarray
    k: np.ndarray
    f: np.ndarray
    g: np.ndarray
    l: np.ndarray  # noqa: E741 - the name of the operand


Take = Callable[[Values], np.ndarray]


def after(change: Callable[[np.ndarray], np.ndarray], take: Take) -> Take:
    """An operand with something done to it."""
    return lambda v: change(take(v))


def number(value: np.generic) -> Take:
    """The same for all threads."""
    return lambda v: np.full(THREADS, value)


#: Operands by name.
A, B, C, X, Y, Z, H, I, J, W, V, P, Q, K, F, G, L = map(attrgetter, "abcxyzhijwvpqkfgl")  # noqa: E741 - letters of the text


@dataclass(frozen=True)
class Line:
    """PTX, and what it computes of what it takes."""

    text: str
    function: Callable[..., np.ndarray]
    takes: tuple[Take, ...]

    def compute(self, values: Values) -> np.ndarray:
        """The result of each thread."""
        return self.function(*(take(values) for take in self.takes))


@dataclass
class Lines:
    """A list of lines, by the name of its kernels."""

    name: str
    lines: list[Line] = field(default_factory=list)

    def add(self, text: str, function: Callable[..., np.ndarray], *takes: Take) -> None:
        """One more line: the function of what is taken of the values."""
        self.lines.append(Line(text, function, takes))


EDGES = np.array([0, 1, 0xFFFFFFFF, 0x7FFFFFFF, 0x80000000, 31, 32, 0x8000, 0xFFFF, 0xFFFFFFF9], np.uint32)
SINGLES = np.array(
    [0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00000001, 0x80012345, 0x00800000,
     0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0xBF800000, 0x3F000000, 0x3FC00000, 0x40200000, 0xC0200000],
    np.uint32,
).view(np.float32)  # fmt: skip
HALVES = np.array(
    [0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x83FF, 0x0400, 0x7BFF, 0x3C00, 0xBC00, 0x3800], np.uint16
).view(np.float16)

#: Parameters of every kernel. The integer is among the inputs too, so that comparisons find it equal.
INTEGER, FLOAT, PAIR, WIDE = 0x7FFFFFF9, 1.2345678e-3, (0.333251953125, -1.5), 0x123456789ABCDEF


def inputs() -> tuple[np.ndarray, ...]:
    """The words a, b, c, the floats x, y, z, the pairs h, i, j."""
    source = Source(700)
    words = [source.bits(THREADS, np.uint32) for _ in range(3)]
    singles = [source.ordinary(THREADS, np.float32, (-6, 6)) for _ in range(3)]
    pairs = [source.ordinary(2 * THREADS, np.float16, (-3, 3)) for _ in range(3)]
    for arrays, edges in ((words, EDGES), (singles, SINGLES), (pairs, HALVES)):
        count = len(edges)
        half = min(count * count, THREADS // 2)
        arrays[0][:half] = np.repeat(edges, count)[:half]
        arrays[1][:half] = np.tile(edges, count)[:half]
        arrays[2][:half] = edges[source.integers(0, count, half)]
    words[1][-16:] = words[0][-16:]
    words[0][-32:-24] = INTEGER
    singles[1][-16:] = singles[0][-16:]
    singles[0][-32:-24] = FLOAT
    return (*words, *singles, *(pair.view(np.uint32) for pair in pairs))


def values() -> Values:
    """The inputs as lines see them."""
    a, b, c, x, y, z, h, i, j = inputs()
    wide = [low.astype(np.uint64) | high.astype(np.uint64) << np.uint64(32) for low, high in ((a, b), (b, c))]
    one = np.ones(THREADS, np.uint32)
    return Values(
        a, b, c, x, y, z, pair_from_bits(h), pair_from_bits(i), pair_from_bits(j), wide[0], wide[1], c & 1 != 0,
        c & 2 != 0, INTEGER * one, np.float32(FLOAT) * one.astype(np.float32),
        np.tile(np.array(PAIR, np.float16), (THREADS, 1)), WIDE * one.astype(np.uint64),
    )  # fmt: skip


def parameters() -> tuple[np.generic, ...]:
    """What a kernel takes by value, after its pointers."""
    pair = np.array(PAIR, np.float16).view(np.uint32)[0]
    return np.uint32(INTEGER), np.float32(FLOAT), pair, np.uint64(WIDE)


def kernels(lines: Lines) -> dict[str, list[Line]]:
    """The lines by the kernel that has them."""
    parts = range(0, len(lines.lines), LINES)
    return {f"{lines.name}_{start // LINES}": lines.lines[start : start + LINES] for start in parts}


_HEADER = ".version 6.5\n.target sm_70\n.address_size 64\n"
_REGISTERS = "abcxyzhij"


def module(lists: list[Lines]) -> str:
    """A PTX module with the kernels of lists of lines."""
    return _HEADER + "".join(_kernel(name, part) for lines in lists for name, part in kernels(lines).items())


def _kernel(name: str, lines: list[Line]) -> str:
    names = {letter: f"%{letter}" for letter in "abcxyzhijwvpqkfgl"} | {"d": "%d"}
    names |= {f"{kind}{n}": f"%{kind}{n}" for kind in "txs" for n in range(4)}
    text = [
        f".visible .entry {name}(.param .u64 in, .param .u64 out,",
        ".param .u32 k, .param .f32 f, .param .u32 g, .param .u64 l) {",
        f".reg .b32 {', '.join('%' + letter for letter in _REGISTERS)}, %k, %f, %g, %d, %thread, %t<4>;",
        ".reg .b64 %w, %v, %l, %in, %out, %x<4>;",
        ".reg .pred %p, %q, %s<4>;",
        "ld.param.u64 %in, [in]; ld.param.u64 %out, [out];",
        "ld.param.b32 %k, [k]; ld.param.b32 %f, [f]; ld.param.b32 %g, [g]; ld.param.b64 %l, [l];",
        "cvta.to.global.u64 %in, %in; cvta.to.global.u64 %out, %out;",
        "mov.u32 %thread, %tid.x; mul.wide.u32 %x0, %thread, 4; add.s64 %in, %in, %x0; add.s64 %out, %out, %x0;",
        *(f"ld.global.b32 %{letter}, [%in+{4 * THREADS * place}];" for place, letter in enumerate(_REGISTERS)),
        "mov.b64 %w, {%a, %b}; mov.b64 %v, {%b, %c};",
        "and.b32 %t0, %c, 1; setp.ne.u32 %p, %t0, 0; and.b32 %t0, %c, 2; setp.ne.u32 %q, %t0, 0;",
    ]
    for place, line in enumerate(lines):
        text += [line.text.format(**names), f"st.global.b32 [%out+{4 * THREADS * place}], %d;"]
    return "\n".join([*text, "ret;", "}", ""])


def expected(lines: list[Line]) -> np.ndarray:
    """[lines, threads], as numpy says."""
    everything = values()
    with np.errstate(all="ignore"):
        return np.array([line.compute(everything) for line in lines], np.uint32)


def arguments(lines: list[Line]) -> tuple[object, ...]:
    """A launch's arguments; the second is written."""
    words = np.array([array.view(np.uint32) for array in inputs()])
    return (words, np.zeros((len(lines), THREADS), np.uint32), *parameters())
