// A vector: kWidth consecutive elements of one head, which a thread moves at once.
//
// width 8  FP16 side 16-byte aligned, FP8 cache 8-byte aligned (a token stride of 264 is). Per instruction a warp moves
//          512 contiguous bytes of FP16 or 256 of FP8: whole sectors. 16 elements per thread would read FP8 16 bytes at
//          a time, but write the FP16 of every sector in two halves. That is no faster.
// width 1  any other layout
#pragma once

#include "device/fp8.cuh"
#include "device/tile.cuh"
#include "ops/kv_cache/params.h"

namespace sm70::kv_cache {

// kBytes between memory and registers in one access. The address is aligned to them.
template <int kBytes>
__device__ __forceinline__ void load_words(const void* source, uint32_t* words) {
    if constexpr (kBytes == 16) {
        const uint4 q = *static_cast<const uint4*>(source);
        words[0] = q.x;
        words[1] = q.y;
        words[2] = q.z;
        words[3] = q.w;
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
    if constexpr (kBytes == 16) {
        *static_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
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

// Where a vector lies in its token: offsets in elements are head * head_stride + element.
struct Place {
    uint32_t token;
    int64_t head;
    uint32_t element;
};

// `item` numbers the vectors of consecutive tokens.
template <int kWidth>
__device__ __forceinline__ Place place_of(uint32_t item, const FastDivisor& vectors_per_token,
                                          const FastDivisor& vectors_per_head) {
    const uint32_t token = vectors_per_token.divide(item);
    const uint32_t vector = vectors_per_token.remainder(item, token);
    const uint32_t head = vectors_per_head.divide(vector);
    return {token, static_cast<int64_t>(head), vectors_per_head.remainder(vector, head) * kWidth};
}

// Address of a vector, from the address of the token numbered 0.
template <typename Element>
__device__ __forceinline__ Element* address(Element* base, const TokenTensor& tensor, const Place& place) {
    return base + place.token * tensor.token_stride + place.head * tensor.head_stride + place.element;
}

}  // namespace sm70::kv_cache
