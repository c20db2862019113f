// The scale that writing divides by, prepared on the host.
//
// The FP32 quotient x / s of an FP16 x is to be correctly rounded. Two FMA steps on a correctly rounded reciprocal do
// that for every x and s (write.cuh). One FMA on a reciprocal split in two is cheaper, and its quotient differs from
// the correct one rarely and by one unit; what is stored then differs only if one of the two is a rounding boundary of
// the format. Whether that happens for the scale at hand can be found out by trying every significand that x can have:
// there are 1024. About 1 in 30 000 scales does not pass and takes the slower way.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "ops/kv_cache/params.h"

namespace sm70::kv_cache {

// Within these bounds no step leaves FP32's normal range, so that the exponents of x and s do not matter.
constexpr float kSmallestSplit = 0x1p-60f;
constexpr float kLargestSplit = 0x1p60f;

// Whether an FP32 number has at most 12 significant bits. Boundaries between values of FP16 have, and so have those of
// E4M3 and E5M2.
inline bool may_be_boundary(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return (bits & 0xfffu) == 0;
}

// Fills in the split reciprocal if it is right for every x; else leaves it 0.
inline void try_split(WriteScale& scale) {
    if (scale.value < kSmallestSplit || scale.value > kLargestSplit) return;
    const double reciprocal = 1.0 / scale.value;
    const auto rounded = static_cast<float>(reciprocal);
    uint32_t bits;
    std::memcpy(&bits, &rounded, sizeof(bits));
    bits &= ~0x7ffu;  // 13 significant bits: a product with an FP16 number's 11 is exact in FP32
    float high;
    std::memcpy(&high, &bits, sizeof(high));
    const auto low = static_cast<float>(reciprocal - high);
    for (int significand = 1024; significand < 2048; ++significand) {
        const auto x = static_cast<float>(significand);
        const float correct = x / scale.value;
        // The kernel's FMA. In double, the sum of a 24-bit product and a float is exact as far as its rounding to FP32
        // depends on it: an addend too small for that is far from half a unit of the product.
        const auto split = static_cast<float>(static_cast<double>(x) * high + static_cast<double>(x * low));
        if (split != correct && (may_be_boundary(split) || may_be_boundary(correct))) return;
    }
    scale.high = high;
    scale.low = low;
}

// `value` is positive and finite. The trial takes microseconds, so the last two results, K's and V's, are kept.
inline WriteScale make_write_scale(float value) {
    struct Kept {
        float given = 0.0f;
        WriteScale scale{};
    };
    thread_local std::array<Kept, 2> kept;
    thread_local size_t next = 0;
    for (const Kept& entry : kept) {
        if (entry.given == value) return entry.scale;
    }
    WriteScale scale{};
    scale.value = clamp_scale(value);
    scale.reciprocal = 1.0f / scale.value;
    try_split(scale);
    kept[next] = {value, scale};
    next = (next + 1) % kept.size();
    return scale;
}

}  // namespace sm70::kv_cache
