"""CUDA kernels with what numpy says they compute: memory, control flow, and what only a compiler writes.

To add one, write a function here that returns a Launch, under `@kernel("...")` with the source of a kernel of the same
name. Its parameters are inputs, then outputs, then scalars; the expected outputs are computed in the function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.recorded.inputs import Source


@dataclass
class Launch:
    """Input arrays, the outputs that must come of them, and scalars; or what the emulator must say."""

    inputs: tuple[Any, ...]
    expected: tuple[np.ndarray, ...]
    scalars: tuple[np.generic, ...] = ()
    threads: int = 128
    blocks: int = 1
    fails: str = ""

    def arguments(self) -> tuple[Any, ...]:
        """Of the launch, with outputs that hold zeros yet."""
        return (*self.inputs, *(np.zeros_like(output) for output in self.expected), *self.scalars)

    @property
    def written(self) -> tuple[int, ...]:
        return tuple(range(len(self.inputs), len(self.inputs) + len(self.expected)))


@dataclass
class Corpus:
    """Sources and launches of kernels, by name."""

    sources: dict[str, str] = field(default_factory=dict)
    launches: dict[str, Callable[[Source], Launch]] = field(default_factory=dict)


CORPUS = Corpus()


def kernel(source: str) -> Callable[[Callable[[Source], Launch]], Callable[[Source], Launch]]:
    """Registers the function's launch of the kernel of the same name."""

    def register(function: Callable[[Source], Launch]) -> Callable[[Source], Launch]:
        name = function.__name__
        assert f" {name}(" in source, f"the source has no kernel {name}"
        CORPUS.sources[name], CORPUS.launches[name] = source, function
        return function

    return register


def launch(name: str) -> Launch:
    """A kernel's launch; its inputs come from a seed of its own, so that it is the same every time."""
    return CORPUS.launches[name](Source(sum(name.encode()) * 1000 + len(name)))


def source() -> str:
    """One CUDA file with all kernels."""
    return "#include <cuda_fp16.h>\n" + "\n".join(CORPUS.sources.values())


@kernel("""
extern "C" __global__ void read_only_loads(const unsigned char* in, unsigned* out) {
    const unsigned t = threadIdx.x;
    const uint4 four = __ldg((const uint4*)in + t);
    const uint2 two = __ldg((const uint2*)in + 2 * t + 1);
    out[t] = four.x + 3 * four.w ^ 5 * four.y ^ 7 * four.z;
    out[128 + t] = two.x ^ two.y;
    out[256 + t] = __ldg((const unsigned short*)in + 5 * t);
    out[384 + t] = (int)__ldg((const short*)in + 5 * t);
    out[512 + t] = __ldg(in + 3 * t);
    out[640 + t] = (int)__ldg((const signed char*)in + 3 * t);
    out[768 + t] = __ldg((const unsigned*)in + t);
}
""")
def read_only_loads(inputs: Source) -> Launch:
    words = inputs.bits(512, np.uint32)
    t = np.arange(128)
    expected = [
        words[4 * t] + 3 * words[4 * t + 3] ^ 5 * words[4 * t + 1] ^ 7 * words[4 * t + 2],
        words[4 * t + 2] ^ words[4 * t + 3], words.view(np.uint16)[5 * t],
        words.view(np.int16)[5 * t].astype(np.int32).view(np.uint32), words.view(np.uint8)[3 * t],
        words.view(np.int8)[3 * t].astype(np.int32).view(np.uint32), words[t],
    ]  # fmt: skip
    return Launch((words,), (np.concatenate(expected).astype(np.uint32),))


@kernel("""
extern "C" __global__ void device_coherent_loads(const unsigned* in, unsigned* out) {
    const unsigned t = threadIdx.x;
    unsigned a, b, c, d, e;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(in + 4 * t));
    out[t] = a ^ b * 5 ^ c * 7 ^ d * 9;
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(in + 2 * t));
    out[128 + t] = a - b;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(e) : "l"(in + t));
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(out + 256 + t), "r"(~e));
    asm volatile("st.relaxed.gpu.global.v2.u32 [%0], {%1, %2};" ::"l"(out + 384 + 2 * t), "r"(a), "r"(e));
}
""")
def device_coherent_loads(inputs: Source) -> Launch:
    words = inputs.bits(512, np.uint32)
    a, b, c, d = (words[i::4] for i in range(4))
    first, second = words[:256:2], words[1:256:2]
    pairs = np.stack([first, words[:128]], 1).reshape(-1)
    expected = np.concatenate([a ^ b * 5 ^ c * 7 ^ d * 9, first - second, ~words[:128], pairs])
    return Launch((words,), (expected.astype(np.uint32),))


@kernel("""
extern "C" __global__ void shared_halves(const __half* in, __half* out, unsigned* bytes) {
    __shared__ __half halves[128];
    __shared__ unsigned char narrow[128];
    __shared__ uint2 pairs[128];
    __shared__ uint4 quads[128];
    const unsigned t = threadIdx.x;
    halves[t] = in[t];
    narrow[t] = (unsigned char)(t * 7);
    pairs[t] = make_uint2(t, ~t);
    quads[t] = make_uint4(t, t + 1, t + 2, t * t);
    __syncthreads();
    out[t] = halves[127 - t];
    bytes[t] = narrow[(t + 5) & 127] + (int)(signed char)narrow[(t + 9) & 127] + pairs[(t + 3) & 127].y +
               quads[(t + 11) & 127].w;
}
""")
def shared_halves(inputs: Source) -> Launch:
    halves, t = inputs.bits(128, np.uint16), np.arange(128)
    narrow = (t * 7).astype(np.uint8)
    total = narrow[(t + 5) & 127].astype(np.int64) + narrow[(t + 9) & 127].astype(np.int8)
    total += ~((t + 3) & 127) + ((t + 11) & 127) ** 2
    return Launch((halves,), (halves[::-1].copy(), total.astype(np.uint64).astype(np.uint32)))


@kernel("""
// 32 registers for each thread: what does not fit goes to the stack and comes back when it is used last.
extern "C" __global__ void __launch_bounds__(1024, 2) spilled(const uint2* in, uint2* out) {
    const unsigned t = threadIdx.x;
    uint2 held[28];
    unsigned long long wide[6];
    #pragma unroll
    for (int i = 0; i < 28; ++i) held[i] = in[t + 37 * i];
    #pragma unroll
    for (int i = 0; i < 6; ++i) wide[i] = (unsigned long long)held[i].x * held[i + 1].y + held[27 - i].x;
    __syncthreads();
    uint2 sum = make_uint2(0, 0);
    #pragma unroll
    for (int i = 0; i < 28; ++i) {
        sum.x = sum.x * 5 + held[27 - i].x;
        sum.y = (sum.y ^ held[i].y) * 3;
    }
    #pragma unroll
    for (int i = 0; i < 6; ++i) sum.x += (unsigned)(wide[i] >> 32), sum.y ^= (unsigned)wide[i];
    out[t] = sum;
}
""")
def spilled(inputs: Source) -> Launch:
    pairs, t = inputs.bits(2 * (1024 + 37 * 27), np.uint32).reshape(-1, 2), np.arange(1024)
    held = [pairs[t + 37 * i] for i in range(28)]
    x, y = np.zeros(1024, np.uint32), np.zeros(1024, np.uint32)
    for i in range(28):
        x, y = x * np.uint32(5) + held[27 - i][:, 0], (y ^ held[i][:, 1]) * np.uint32(3)
    for i in range(6):
        wide = held[i][:, 0].astype(np.uint64) * held[i + 1][:, 1] + held[27 - i][:, 0]
        x, y = x + (wide >> np.uint64(32)).astype(np.uint32), y ^ wide.astype(np.uint32)
    return Launch((pairs,), (np.stack([x, y], 1),), threads=1024)


@kernel("""
__device__ __forceinline__ unsigned grown(unsigned r, unsigned trips) {
    #pragma unroll 1
    for (unsigned i = 0; i < trips; ++i) r = r * 77 + i;
    return r;
}
// Comparisons that guard a block with a loop, which can't be predicated.
extern "C" __global__ void guarded_blocks(const int* in, const float* x, const long long* w, unsigned* out, int limit,
                                          long long end, int levels) {
    const unsigned t = threadIdx.x;
    const int value = in[t];
    const float number = x[t];
    const long long wide = w[t];
    unsigned r = t;
    if (value <= limit) r = grown(r, t & 3);
    if (number == number) r = grown(r + 5, t >> 2 & 3);
    if (!(wide < 0 || wide >= end)) r = grown(r ^ 0x5555, t >> 4 & 3);
    if (value > -1 && value <= 50) {
        #pragma unroll 1
        for (int level = 0; level < levels; ++level) r = r * 5 + level;
    }
    out[t] = r;
}
""")
def guarded_blocks(inputs: Source) -> Launch:
    t = np.arange(128, dtype=np.uint32)
    values, x, w = inputs.integers(-100, 100, 128), inputs.ordinary(128), inputs.bits(128, np.int64)
    x[::5] = np.nan
    w[::3] = inputs.integers(-50, 200, 43, np.int64)
    limit, end = np.int32(17), np.int64(150)

    def grown(r: np.ndarray, trips: np.ndarray) -> np.ndarray:
        for i in range(3):
            r = np.where(i < trips, r * np.uint32(77) + np.uint32(i), r)
        return r

    r = np.where(values <= limit, grown(t, t & 3), t)
    r = np.where(np.isnan(x), r, grown(r + np.uint32(5), t >> 2 & 3))
    r = np.where((w >= 0) & (w < end), grown(r ^ np.uint32(0x5555), t >> 4 & 3), r)
    for level in range(2):
        r = np.where((values > -1) & (values <= 50), r * np.uint32(5) + np.uint32(level), r)
    return Launch((values, x, w), (r,), (limit, end, np.int32(2)))


@kernel("""
// A comparison that several later blocks use keeps its sense.
extern "C" __global__ void kept_comparison(const float* x, const unsigned* in, unsigned* out) {
    const unsigned t = threadIdx.x;
    const float value = x[t];
    unsigned word = in[t];
    const bool number = value == value;
    if ((word & 0x7fff) > 0x3000) {
        word = grown(word, t & 3) & 0x7fff8000u;
        if (!(number && (word & 0xf0000) < 0x70000)) word |= number ? (in[t] & 0x7fff) : 0x7fff;
    }
    out[t] = word;
    word = in[128 + t];
    if ((word & 0x7fff) > 0x3000) {
        word = grown(word, t & 3) & 0x7fff8000u;
        if (!(number && (word & 0xf0000) < 0x70000)) word |= number ? (in[t] & 0x7fff) : 0x7fff;
    }
    out[128 + t] = word;
}
""")
def kept_comparison(inputs: Source) -> Launch:
    x, words, t = inputs.ordinary(128), inputs.bits(256, np.uint32), np.tile(np.arange(128, dtype=np.uint32), 2)
    x[::3] = np.nan
    number = np.tile(~np.isnan(x), 2)
    grown = words.copy()
    for i in range(3):
        grown = np.where(i < (t & 3), grown * np.uint32(77) + np.uint32(i), grown)
    grown &= np.uint32(0x7FFF8000)
    other = grown | np.where(number, words[t] & 0x7FFF, 0x7FFF).astype(np.uint32)
    inside = np.where(number & ((grown & 0xF0000) < 0x70000), grown, other)
    return Launch((x, words), (np.where((words & 0x7FFF) > 0x3000, inside, words),))


@kernel("""
// Quotients by divisors that are known as multipliers and shifts, and eight times the remainders.
struct Divisor { unsigned divisor, multiplier, shift; };
__device__ __forceinline__ unsigned quotient(unsigned n, Divisor d) {
    return (__umulhi(n, d.multiplier) + n) >> d.shift;
}
extern "C" __global__ void divided(const uint2* in, uint2* out, unsigned rows_divisor, unsigned rows_multiplier,
                                   unsigned rows_shift, unsigned columns_divisor, unsigned columns_multiplier,
                                   unsigned columns_shift, unsigned count) {
    const Divisor rows = {rows_divisor, rows_multiplier, rows_shift};
    const Divisor columns = {columns_divisor, columns_multiplier, columns_shift};
    for (unsigned first = threadIdx.x; first < count; first += 4 * 128) {
        uint2 found[4];
        #pragma unroll
        for (int i = 0; i < 4; ++i) {
            const unsigned n = first + i * 128, row = quotient(n, rows), rest = n - row * rows.divisor;
            const unsigned column = quotient(rest, columns), part = (rest - column * columns.divisor) * 8;
            found[i] = make_uint2(0, 0);
            if (row < 7) found[i] = in[row * 40 + column * 8 + part];
            found[i].x += column;
            found[i].y ^= part;
        }
        #pragma unroll
        for (int i = 0; i < 4; ++i)
            if (first + i * 128 < count) out[first + i * 128] = found[i];
    }
}
""")
def divided(inputs: Source) -> Launch:
    def divisor(number: int, shift: int) -> tuple[np.uint32, ...]:
        return np.uint32(number), np.uint32(2**32 * (2**shift - number) // number + 1), np.uint32(shift)

    rows, columns, count = divisor(13, 4), divisor(3, 2), np.uint32(200)
    pairs = inputs.bits(2 * 8 * 40, np.uint32).reshape(-1, 2)
    n = np.arange(count, dtype=np.uint32)
    row, rest = n // 13, n % 13
    column, part = rest // 3, rest % 3 * np.uint32(8)
    place = row * 40 + column * 8 + part
    found = np.where((row < 7)[:, None], pairs[np.minimum(place, len(pairs) - 1)], 0).astype(np.uint32)
    expected = np.stack([found[:, 0] + column, found[:, 1] ^ part], 1)
    return Launch((pairs,), (expected,), (*rows, *columns, count))


@kernel("""
extern "C" __global__ void counted_together(const unsigned* in, unsigned* out) {
    __shared__ unsigned total[4], places[128];
    const unsigned t = threadIdx.x, x = in[t];
    if (t < 4) total[t] = t;
    const int any_large = __syncthreads_or(x > 0xfffffff0u);
    atomicAdd(&total[1], x);
    const unsigned place = atomicAdd(&total[2], 1u) - 2;
    atomicAdd(&total[x & 3], 0u);
    atomicMax(&total[3], x);
    places[place] = x;
    const int never = __syncthreads_or(0), all_odd = __syncthreads_and(x & 1), odd = __syncthreads_count(x & 1);
    unsigned sum = 0;
    for (unsigned i = 0; i < 128; ++i) sum += places[i] * 3;
    out[t] = total[1] ^ total[3] ^ sum ^ (any_large << 3) ^ (never << 5) ^ (all_odd << 7) ^ (odd << 9);
}
""")
def counted_together(inputs: Source) -> Launch:
    x = inputs.bits(128, np.uint32)
    total, odd = int(x.sum(dtype=np.uint64)), int((x & 1).sum())
    value = (total + 1) ^ int(x.max()) ^ (3 * total) ^ int((x > 0xFFFFFFF0).any()) << 3 ^ (odd == 128) << 7 ^ odd << 9
    return Launch((x,), (np.full(128, value & 0xFFFFFFFF, np.uint32),))


@kernel("""
// Exchange in segments whose width only the launch knows.
extern "C" __global__ void segments(const unsigned* in, unsigned* out, int width, unsigned by) {
    const unsigned t = threadIdx.x, x = in[t];
    out[t] = __shfl_sync(0xffffffffu, x, (int)(x & 31), width);
    out[128 + t] = __shfl_up_sync(0xffffffffu, x, by, width);
    out[256 + t] = __shfl_down_sync(0xffffffffu, x, by, width);
    out[384 + t] = __shfl_xor_sync(0xffffffffu, x, (int)by, width);
    out[512 + t] = __shfl_up_sync(0xffffffffu, x, x & 7, width);
}
""")
def segments(inputs: Source) -> Launch:
    width, by = 8, 3
    x, t = inputs.bits(128, np.uint32), np.arange(128)
    first, last = t & ~(width - 1), t | (width - 1)

    def taken(source: np.ndarray) -> np.ndarray:
        inside = (source >= first) & (source <= last)
        return x[np.where(inside, source, t)]

    rows = [x[first + (x & (width - 1)).astype(int)], taken(t - by), taken(t + by), taken(t ^ by), taken(t - (x & 7))]
    return Launch((x,), (np.concatenate(rows).astype(np.uint32),), (np.int32(width), np.uint32(by)))


@kernel("""
extern "C" __global__ void stops(const unsigned* in, unsigned* out) {
    out[threadIdx.x] = in[threadIdx.x];
    if (in[threadIdx.x] == 5) __trap();
}
""")
def stops(inputs: Source) -> Launch:
    return Launch((np.arange(128, dtype=np.uint32),), (np.zeros(128, np.uint32),), fails="trap")


@kernel("""
// Lanes of two masks come to one instruction and one synchronisation in different places; and a branch that the lanes
// of some warps take together and those of others do not.
extern "C" __global__ void named_lanes(const unsigned* in, unsigned* out) {
    const unsigned t = threadIdx.x, x = in[t];
    const unsigned some = __ballot_sync(0xffffffffu, x & 1), others = ~some;
    unsigned r;
    if (x & 1) {
        r = __popc(__ballot_sync(some, x & 2));
        __syncwarp(some);
        r += __shfl_sync(some, x, __ffs(some) - 1);
    } else {
        r = __match_any_sync(others, x & 12);
        if (__any_sync(others, x & 16)) r ^= 0x80000000u;
    }
    __syncthreads();
    unsigned mask = 0xffffffffu;
    for (unsigned i = 0;; ++i) {
        const bool on = i < (x >> 8 & 7);
        mask = __ballot_sync(mask, on);
        if (!on) break;
        if (x >> i & 1)
            r += mask;
        else if (x >> (i + 3) & 1)
            r ^= mask * 3;
        else
            r -= 7;
    }
    __syncthreads();
    out[t] = r;
}
""")
def named_lanes(inputs: Source) -> Launch:
    x = inputs.bits(256, np.uint32)
    r = np.zeros(256, np.uint32)
    for start in range(0, 256, 32):
        w = x[start : start + 32]
        odd = [lane for lane in range(32) if w[lane] & 1]
        even = [lane for lane in range(32) if not w[lane] & 1]
        for lane in odd:
            r[start + lane] = (sum(1 for o in odd if w[o] & 2) + int(w[odd[0]])) & 0xFFFFFFFF
        for lane in even:
            same = sum(1 << o for o in even if w[o] & 12 == w[lane] & 12)
            r[start + lane] = same ^ (0x80000000 if any(w[o] & 16 for o in even) else 0)
        for turn in range(8):
            going = [lane for lane in range(32) if turn < w[lane] >> 8 & 7]
            mask = sum(1 << lane for lane in going)
            for lane in going:
                value = int(r[start + lane])
                if w[lane] >> turn & 1:
                    value += mask
                elif w[lane] >> (turn + 3) & 1:
                    value ^= mask * 3
                else:
                    value -= 7
                r[start + lane] = value & 0xFFFFFFFF
    return Launch((x,), (r,), threads=256)


@kernel("""
extern "C" __global__ void one_thread_stores(const unsigned* in, unsigned* out) {
    __shared__ uint4 quads[32];
    __shared__ uint2 pairs[32];
    const unsigned t = threadIdx.x;
    if (t == 96) {  // places that the compiler knows
        quads[3] = make_uint4(in[1], in[5], in[7], in[11]);
        pairs[5] = make_uint2(in[2], in[3]);
    }
    __syncthreads();
    const uint4 quad = quads[3];
    const uint2 pair = pairs[5];
    out[t] = (t & 1 ? quad.x + quad.w * 3 : quad.y ^ quad.z) + (t & 2 ? pair.x : pair.y) * t;
}
""")
def one_thread_stores(inputs: Source) -> Launch:
    words, t = inputs.bits(128, np.uint32), np.arange(128, dtype=np.uint32)
    sums = words[1:2] + words[11:12] * np.uint32(3)
    quads = np.where(t & 1, sums, words[5] ^ words[7])
    return Launch((words,), ((quads + np.where(t & 2, words[2], words[3]) * t).astype(np.uint32),))
