// Special bytes of K and V: they make NaN of the result of every row that sees their key.
//
// Adding to the magnitudes of four bytes carries into bit 7 of each that is special. Such sums are collected, and
// looked at once.
#pragma once

#include "device/fp8.cuh"

namespace sm70::verify {

constexpr uint32_t kSpecialBits = 0x80808080u;

template <typename Format>
struct SpecialBytes;

template <>
struct SpecialBytes<E4M3> {
    // NaN is the one magnitude 1111.111.
    __device__ __forceinline__ static uint32_t find(uint32_t word) { return (word & 0x7f7f7f7fu) + 0x01010101u; }
    // Two lanes hold the same two words of V, and each looks at one. As operands NaN are +-480 x 2^-8, finite: rows
    // that do not see the key multiply them by 0.
    __device__ __forceinline__ static uint32_t in_values(const uint32_t (&words)[2], uint32_t half) {
        return find(half == 0 ? words[0] : words[1]);
    }
};

template <>
struct SpecialBytes<E5M2> {
    // NaN and infinity: magnitudes from 0x7c.
    __device__ __forceinline__ static uint32_t find(uint32_t word) { return (word & 0x7f7f7f7fu) + 0x04040404u; }
    // 0 x these operands would be NaN for the rows that do not see the key, so the bytes become 0.
    __device__ __forceinline__ static uint32_t in_values(uint32_t (&words)[2], uint32_t) {
        const uint32_t found[2] = {find(words[0]), find(words[1])};
        if (((found[0] | found[1]) & kSpecialBits) != 0) {
#pragma unroll
            for (int i = 0; i < 2; ++i) words[i] &= ~(((found[i] & kSpecialBits) >> 7) * 0xffu);
        }
        return found[0] | found[1];
    }
};

}  // namespace sm70::verify
