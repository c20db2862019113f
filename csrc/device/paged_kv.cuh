// A paged KV cache as kernels see it, and its elements as tensor-core operands.
#pragma once

#include "device/fast_divide.h"
#include "device/fixed_width.h"
#include "device/fp8.cuh"
#include "device/load.cuh"
#include "device/mma.cuh"
#include "device/paged_kv.h"

namespace sm70 {

// Where the 16 tokens of a tile lie: every page holds whole tiles, so a tile has one page.
struct TilePlace {
    int64_t page;
    int64_t token;  // in the page
};

__device__ __forceinline__ TilePlace tile_place(const PagedKv& kv, int32_t request, uint32_t tile) {
    const uint32_t block = kv.tiles_per_page.divide(tile);
    const int32_t page = kv.block_table[request * kv.block_table_stride + block];
    if (page < 0 || page >= kv.pages) __trap();
    return {page, kv.tiles_per_page.remainder(tile, block) * kTileTokens};
}

__device__ __forceinline__ const uint8_t* tile_address(const PagedCache& cache, TilePlace place, int64_t head) {
    return static_cast<const uint8_t*>(cache.data) + place.page * cache.page_bytes + place.token * cache.token_bytes +
           head * cache.head_bytes;
}

// What four stored elements are to a tensor core: halves of value x kOperandScale, exactly.
template <typename Format>
struct OperandFormat;

template <>
struct OperandFormat<E4M3> {
    static constexpr int kElementBytes = 1;
    static constexpr float kOperandScale = 0x1p-8f;  // bits moved only: fp8.cuh
    static constexpr float kInverseScale = 0x1p8f;
    // The bits of NaN become 480 x 2^-8: the kernel must look for NaN itself, and make the result NaN.
    static constexpr bool kLosesNan = true;

    __device__ __forceinline__ static HalfFragment operand(const uint32_t* word) {
        return {(permute_bytes(*word, 0, 0x9180) << 7) & 0xbf80bf80u,
                (permute_bytes(*word, 0, 0xb3a2) << 7) & 0xbf80bf80u};
    }
    // Nonzero in bits 7, 15, 23, 31 where a byte is NaN: 1111.111 is the one magnitude that carries into the sign.
    __device__ __forceinline__ static uint32_t nan_bits(uint32_t word) {
        return ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
    }
};

template <>
struct OperandFormat<E5M2> {
    static constexpr int kElementBytes = 1;
    static constexpr float kOperandScale = 1.0f;
    static constexpr float kInverseScale = 1.0f;
    static constexpr bool kLosesNan = false;

    __device__ __forceinline__ static HalfFragment operand(const uint32_t* word) {
        return {permute_bytes(*word, 0, 0x1404), permute_bytes(*word, 0, 0x3424)};
    }
    __device__ __forceinline__ static uint32_t nan_bits(uint32_t) { return 0; }
};

template <>
struct OperandFormat<Fp16> {
    static constexpr int kElementBytes = 2;
    static constexpr float kOperandScale = 1.0f;
    static constexpr float kInverseScale = 1.0f;
    static constexpr bool kLosesNan = false;

    __device__ __forceinline__ static HalfFragment operand(const uint32_t* words) { return {words[0], words[1]}; }
    __device__ __forceinline__ static uint32_t nan_bits(uint32_t) { return 0; }
};

}  // namespace sm70
