// A thread's share of one head: `kWidth` consecutive elements, moved by the widest loads the layout allows.
//
// width 16  needs 16-byte alignment of cache and FP16 side: one 16-byte FP8 access, two 16-byte FP16 accesses
// width 8   the cache is only 8-byte aligned (a token stride of 264, say): one 8-byte FP8 access
// width 1   any other layout
#pragma once

#include "device/fp8.cuh"
#include "ops/kv_cache/params.h"

namespace sm70::kv_cache {

// Copies kBytes between memory and registers in accesses of 16, 8, 2 or 1 bytes. The address is aligned to them.
template <int kBytes>
__device__ __forceinline__ void load_words(const void* source, uint32_t* words) {
    if constexpr (kBytes >= 16) {
#pragma unroll
        for (int i = 0; i < kBytes / 16; ++i) {
            const uint4 q = static_cast<const uint4*>(source)[i];
            words[4 * i] = q.x;
            words[4 * i + 1] = q.y;
            words[4 * i + 2] = q.z;
            words[4 * i + 3] = q.w;
        }
    } else if constexpr (kBytes == 8) {
        const uint2 q = *static_cast<const uint2*>(source);
        words[0] = q.x;
        words[1] = q.y;
    } else if constexpr (kBytes == 2) {
        words[0] = *static_cast<const uint16_t*>(source);
    } else {
        static_assert(kBytes == 1);
        words[0] = *static_cast<const uint8_t*>(source);
    }
}

template <int kBytes>
__device__ __forceinline__ void store_words(void* target, const uint32_t* words) {
    if constexpr (kBytes >= 16) {
#pragma unroll
        for (int i = 0; i < kBytes / 16; ++i) {
            static_cast<uint4*>(target)[i] =
                make_uint4(words[4 * i], words[4 * i + 1], words[4 * i + 2], words[4 * i + 3]);
        }
    } else if constexpr (kBytes == 8) {
        *static_cast<uint2*>(target) = make_uint2(words[0], words[1]);
    } else if constexpr (kBytes == 2) {
        *static_cast<uint16_t*>(target) = static_cast<uint16_t>(words[0]);
    } else {
        static_assert(kBytes == 1);
        *static_cast<uint8_t*>(target) = static_cast<uint8_t>(words[0]);
    }
}

template <typename Format, int kWidth>
struct Vector {
    static constexpr int kStoredBytes = kWidth * static_cast<int>(sizeof(typename Format::Storage));
    static constexpr int kStoredWords = (kStoredBytes + 3) / 4;
    static constexpr int kHalfBytes = kWidth * 2;
    static constexpr int kHalfWords = (kHalfBytes + 3) / 4;
};

// The scale as the kernel uses it. A device scale that is not positive and finite can't be refused by the host
// without a synchronisation; it becomes NaN, so that every value made with it is NaN instead of quietly wrong.
__device__ __forceinline__ float read_scale(const Scale& scale) {
    if (scale.device == nullptr) return scale.host;
    const float value = *scale.device;
    return value > 0.0f && value < __int_as_float(0x7f800000) ? value : __int_as_float(0x7fffffff);
}

}  // namespace sm70::kv_cache
