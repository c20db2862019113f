// E4M3 and E5M2 as stored in a KV cache: exact reading into FP16, correctly rounded writing from FP32.
//
// E4M3FN is s.eeee.mmm, bias 7, no infinity, NaN = s.1111.111, largest value 448. E5M2 is s.eeeee.mm, the upper byte
// of an IEEE half. (OCP 8-bit Floating Point Specification, revision 1.0.)
#pragma once

#include <cuda_fp16.h>

#include "device/fixed_width.h"

namespace sm70 {

__device__ __forceinline__ uint32_t half2_bits(__half2 value) {
    return *reinterpret_cast<const uint32_t*>(&value);
}

__device__ __forceinline__ __half2 half2_from_bits(uint32_t bits) {
    return *reinterpret_cast<const __half2*>(&bits);
}

// PRMT with all four selector bits: bit 3 replicates the chosen byte's sign, which __byte_perm() masks away.
__device__ __forceinline__ uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t result;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(selector));
    return result;
}

// What a KV cache stores. load4: four stored elements to four halves of their exact values, NaN to NaN.
struct E4M3 {
    using Storage = uint8_t;
    static constexpr int kMantissaBits = 3;
    static constexpr int kBias = 7;
    static constexpr float kSmallestNormal = 0x1p-6f;
    static constexpr float kClamp = 448.0f;  // beyond it, infinity included, writing saturates
    static constexpr uint32_t kNan = 0x7f;
    static constexpr uint32_t kPackedLimit = 0x5f40;  // 464, halfway between 448 and the next value there would be

    __device__ __forceinline__ static void load4(uint32_t word, uint32_t& low, uint32_t& high) {
        // The byte's bits placed in a half, sign to bit 15 and eeee.mmm to bits 13..7, are the value times 2^-8,
        // subnormals included, because the biases differ by 8. The selectors take a byte and, above it, eight copies
        // of its sign: the shift brings one of them to bit 15, the mask clears bit 14.
        low = (permute_bytes(word, 0, 0x9180) << 7) & 0xbf80bf80u;
        high = (permute_bytes(word, 0, 0xb3a2) << 7) & 0xbf80bf80u;
        const __half2 rebias = __float2half2_rn(256.0f);
        low = half2_bits(__hmul2(half2_from_bits(low), rebias));
        high = half2_bits(__hmul2(half2_from_bits(high), rebias));
        // That reads NaN, the pattern 1111.111, as 480. Adding 1 to it carries into the byte's bit 7.
        const uint32_t nan = ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
        if (nan != 0) {  // all ones below the sign: a quiet NaN that keeps the sign of the byte
            low |= (nan & 0x80u ? 0x7fffu : 0u) | (nan & 0x8000u ? 0x7fff0000u : 0u);
            high |= (nan & 0x800000u ? 0x7fffu : 0u) | (nan & 0x80000000u ? 0x7fff0000u : 0u);
        }
    }
};

struct E5M2 {
    using Storage = uint8_t;
    static constexpr int kMantissaBits = 2;
    static constexpr int kBias = 15;
    static constexpr float kSmallestNormal = 0x1p-14f;
    static constexpr float kClamp = 65536.0f;  // encodes as infinity, to which larger values overflow
    static constexpr uint32_t kNan = 0x7e;
    static constexpr uint32_t kPackedLimit = 0x7c01;  // the first NaN

    __device__ __forceinline__ static void load4(uint32_t word, uint32_t& low, uint32_t& high) {
        low = permute_bytes(word, 0, 0x1404);
        high = permute_bytes(word, 0, 0x3424);
    }
};

struct Fp16 {
    using Storage = uint16_t;
};

// Magnitude of an FP32 value as a code of the format, rounded to nearest even, in bits 23 - kMantissaBits and up; the
// bits below are zero. A NaN comes out as kClamp: the caller handles NaN itself.
template <typename Format>
__device__ __forceinline__ uint32_t encode_magnitude(float value) {
    constexpr int kDropped = 23 - Format::kMantissaBits;
    constexpr float kToSpacing = static_cast<float>(1 << kDropped);
    constexpr float kRebias = Format::kBias == 7 ? 0x1p-120f : 0x1p-112f;  // exponent 1 of the format is FP32's 1
    static_assert(Format::kBias == 7 || Format::kBias == 15);
    const float magnitude = fminf(fabsf(value), Format::kClamp);
    // The power of two at or below the magnitude, but not below the smallest normal, where the spacing stays the same.
    const float binade = fmaxf(__uint_as_float(__float_as_uint(magnitude) & 0x7f800000u), Format::kSmallestNormal);
    // An FP32 number of size binade x 2^kDropped has the format's spacing: the addition does the rounding. Taking the
    // large number off again is exact, and so is the step to FP32's exponents, whose subnormals are the format's.
    const float rounded = __fmaf_rn(binade, kToSpacing, magnitude);
    return __float_as_uint(__fmaf_rn(rounded, kRebias, __fmul_rn(binade, -kToSpacing * kRebias)));
}

// Signs of four halves, elements 0 and 1 in `low`, 2 and 3 in `high`, as bits 7 of four bytes. Signs are taken from the
// halves that values were made of: arithmetic does not keep the sign of a NaN.
__device__ __forceinline__ uint32_t sign_bits(uint32_t low, uint32_t high) {
    return permute_bytes(low, high, 0x7531) & 0x80808080u;
}

// Magnitudes of four FP32 values to four stored bytes without signs.
template <typename Format>
__device__ __forceinline__ uint32_t encode4(const float (&values)[4]) {
    constexpr int kDropped = 23 - Format::kMantissaBits;
    return (encode_magnitude<Format>(values[0]) >> kDropped) | (encode_magnitude<Format>(values[1]) >> (kDropped - 8)) |
           (encode_magnitude<Format>(values[2]) >> (kDropped - 16)) |
           (encode_magnitude<Format>(values[3]) << (24 - kDropped));
}

// The same for four halves as they are, in packed arithmetic. Magnitudes must stay below Format::kPackedLimit.
template <typename Format>
__device__ __forceinline__ uint32_t encode4_packed(uint32_t low, uint32_t high);

// By the method of encode_magnitude(), with FP16's 10 mantissa bits in place of FP32's 23.
template <>
__device__ __forceinline__ uint32_t encode4_packed<E4M3>(uint32_t low, uint32_t high) {
    constexpr int kDropped = 10 - E4M3::kMantissaBits;
    constexpr float kToSpacing = static_cast<float>(1 << kDropped);
    constexpr float kRebias = 0x1p-8f;
    uint32_t words[2] = {low, high};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const __half2 magnitude = half2_from_bits(words[i] & 0x7fff7fffu);
        __half2 binade = half2_from_bits(words[i] & 0x7c007c00u);
        // max(binade, smallest normal): what is missing to it lies between 0 and 1, and saturation does the rest.
        const __half2 smallest = __float2half2_rn(E4M3::kSmallestNormal);
        binade = __hadd2_rn(binade, __hsub2_sat(smallest, binade));
        const __half2 rounded = __hfma2(binade, __float2half2_rn(kToSpacing), magnitude);
        const __half2 base = __hmul2_rn(binade, __float2half2_rn(-kToSpacing * kRebias));
        words[i] = half2_bits(__hfma2(rounded, __float2half2_rn(kRebias), base)) >> kDropped;
    }
    return permute_bytes(words[0], words[1], 0x6420);
}

// The upper byte of a half, rounded to nearest even by what the lower byte holds.
template <>
__device__ __forceinline__ uint32_t encode4_packed<E5M2>(uint32_t low, uint32_t high) {
    const uint32_t rounded_low = (low & 0x7fff7fffu) + 0x007f007fu + ((low >> 8) & 0x00010001u);
    const uint32_t rounded_high = (high & 0x7fff7fffu) + 0x007f007fu + ((high >> 8) & 0x00010001u);
    return permute_bytes(rounded_low, rounded_high, 0x7531);
}

}  // namespace sm70
