// E4M3, E5M2 and FP16 as stored in a KV cache: exact conversion to and from FP16/FP32.
//
// E4M3FN is s.eeee.mmm, bias 7, no infinity, NaN = s.1111.111, largest value 448. E5M2 is s.eeeee.mm, the upper byte
// of an IEEE half. (OCP 8-bit Floating Point Specification, revision 1.0.)
//
// Reading uses moves of bits only. The bits of an E4M3 byte placed in a half, sign to bit 15 and eeee.mmm to bits
// 13..7, are the value times 2^-8, subnormals included, because the two biases differ by 8. Multiplying that half by
// 256 is exact. The one byte pattern this rule gets wrong is NaN, which would read as 480.
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

// Bit 7 of every byte of the result says whether that byte of `word` is an E4M3 NaN.
__device__ __forceinline__ uint32_t e4m3_nan_flags(uint32_t word) {
    return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}

// Two E4M3 bytes, in bytes 1 and 3 of `spread` with their sign replicated downwards by PRMT, to two halves x 2^-8.
__device__ __forceinline__ uint32_t e4m3_spread_to_half2(uint32_t spread) {
    return (spread << 7) & 0xbf80bf80u;
}

// Four E4M3 bytes to four halves, each the stored value times 2^-8. NaN bytes come out as 480 x 2^-8: the caller
// looks at e4m3_nan_flags().
__device__ __forceinline__ void e4m3x4_to_half2x2_scaled(uint32_t word, uint32_t& low, uint32_t& high) {
    // Selector nibble 8+n takes byte n and replicates its sign bit over the whole byte, so that the sign reaches bit
    // 15 after the shift while the masked bit 14 stays clear.
    low = e4m3_spread_to_half2(__byte_perm(word, 0, 0x9180));
    high = e4m3_spread_to_half2(__byte_perm(word, 0, 0xb3a2));
}

// What a KV cache stores, and how four elements of it become two half2 of their exact values.
struct E4M3 {
    using Storage = uint8_t;

    __device__ __forceinline__ static void load4(uint32_t word, uint32_t& low, uint32_t& high) {
        e4m3x4_to_half2x2_scaled(word, low, high);
        const __half2 bias = __float2half2_rn(256.0f);
        low = half2_bits(__hmul2(half2_from_bits(low), bias));
        high = half2_bits(__hmul2(half2_from_bits(high), bias));
        const uint32_t nan = e4m3_nan_flags(word);
        if (nan != 0) {
            // All ones below the sign: a quiet NaN that keeps the sign of the byte.
            low |= (nan & 0x80u ? 0x7fffu : 0u) | (nan & 0x8000u ? 0x7fff0000u : 0u);
            high |= (nan & 0x800000u ? 0x7fffu : 0u) | (nan & 0x80000000u ? 0x7fff0000u : 0u);
        }
    }

    // Round to nearest even; beyond 448, infinity included, saturates; NaN keeps its sign.
    __device__ __forceinline__ static uint32_t store1(float value) {
        const uint32_t bits = __float_as_uint(value);
        const uint32_t sign = (bits >> 24) & 0x80u;
        const uint32_t magnitude = bits & 0x7fffffffu;
        uint32_t code;
        if (magnitude >= 0x3c800000u) {  // 2^-6, the smallest normal
            // Add half of the last kept place, ties to even, then drop 20 bits and move the bias from 127 to 7.
            code = (magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
            code = min(code - ((127u - 7u) << 3), 0x7eu);
        } else {
            // 16384 has a spacing of 2^-9, E4M3's subnormal unit: the FP32 addition does the rounding.
            code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 16384.0f)) - 0x46800000u;
        }
        return sign | (magnitude > 0x7f800000u ? 0x7fu : code);
    }
};

struct E5M2 {
    using Storage = uint8_t;

    __device__ __forceinline__ static void load4(uint32_t word, uint32_t& low, uint32_t& high) {
        low = __byte_perm(word, 0, 0x1404);
        high = __byte_perm(word, 0, 0x3424);
    }

    // IEEE: round to nearest even, overflow to infinity, NaN becomes the quiet NaN 0x7e and keeps its sign.
    __device__ __forceinline__ static uint32_t store1(float value) {
        const uint32_t bits = __float_as_uint(value);
        const uint32_t sign = (bits >> 24) & 0x80u;
        const uint32_t magnitude = bits & 0x7fffffffu;
        uint32_t code;
        if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal
            code = (magnitude + 0xfffffu + ((magnitude >> 21) & 1u)) >> 21;
            code = min(code - ((127u - 15u) << 2), 0x7cu);
        } else {
            // 128 has a spacing of 2^-16, E5M2's subnormal unit.
            code = __float_as_uint(__fadd_rn(__uint_as_float(magnitude), 128.0f)) - 0x43000000u;
        }
        return sign | (magnitude > 0x7f800000u ? 0x7eu : code);
    }
};

struct Fp16 {
    using Storage = uint16_t;

    __device__ __forceinline__ static uint32_t store1(float value) {
        return __half_as_ushort(__float2half_rn(value));
    }
};

}  // namespace sm70
