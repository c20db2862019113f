// gather_paged_kv: pages of E4M3, E5M2 or FP16 to FP16, contiguous or paged.
//
// Work is cut into tiles of 16 tokens of one row, K and V together. The grid depends on shapes and SM count only; the
// live tiles of all rows are numbered through, and block b takes tiles b, b + gridDim.x, ... so that one long row
// among short ones keeps every SM busy and one captured graph serves any lengths.
//
//   G6/D256, Hkv 1, E4M3, a tile: 2 x 4 KiB read, 2 x 8 KiB written, 256 threads, one vector of K and one of V each.
//   Bound: DRAM. 48 bytes a thread and tile side against about 60 instructions: 15 % of Volta's issue slots.
#pragma once

#include "ops/kv_cache/vector.cuh"

namespace sm70::kv_cache {

// Stored elements to FP16: exact for unit scale, else one FP32 multiplication and one rounding.
template <typename Format, int kWidth>
__device__ __forceinline__ void dequantise(const uint32_t* stored, float scale, uint32_t* halves) {
    using V = Vector<Format, kWidth>;
    if constexpr (sizeof(typename Format::Storage) == 2) {
#pragma unroll
        for (int i = 0; i < V::kHalfWords; ++i) halves[i] = stored[i];
    } else {
#pragma unroll
        for (int i = 0; i < V::kStoredWords; ++i) {
            uint32_t low, high;
            Format::load4(stored[i], low, high);
            halves[2 * i] = low;
            if constexpr (kWidth > 1) halves[2 * i + 1] = high;
        }
    }
    if (scale != 1.0f) {  // true for NaN as well
#pragma unroll
        for (int i = 0; i < V::kHalfWords; ++i) {
            const float2 value = __half22float2(half2_from_bits(halves[i]));
            halves[i] = half2_bits(__floats2half2_rn(__fmul_rn(value.x, scale), __fmul_rn(value.y, scale)));
        }
    }
}

// Address of the first element of a tile. `page` is the page of a paged tensor or the row of a contiguous one.
template <typename Element>
__device__ __forceinline__ Element* tile_base(const TokenTensor& tensor, int64_t page, int64_t token) {
    return static_cast<Element*>(tensor.data) + page * tensor.outer_stride + token * tensor.token_stride;
}

template <typename Format, int kWidth>
__device__ __forceinline__ void gather_tile(const GatherParams& p, int32_t row, int32_t tile, int32_t length,
                                            float k_scale, float v_scale) {
    using V = Vector<Format, kWidth>;
    using Storage = typename Format::Storage;

    const int32_t page = p.block_table[row * p.block_table_stride + tile / p.tiles_per_page];
    if (page < 0 || page >= p.pages) __trap();
    const int32_t token_in_page = tile % p.tiles_per_page * kTileTokens;
    const Storage* k_in = tile_base<Storage>(p.key_cache, page, token_in_page);
    const Storage* v_in = tile_base<Storage>(p.value_cache, page, token_in_page);

    int64_t out_page = row;
    int64_t out_token = static_cast<int64_t>(tile) * kTileTokens;
    if (p.out_block_table != nullptr) {
        out_page = p.out_block_table[row * p.out_block_table_stride + tile / p.tiles_per_out_page];
        if (out_page < 0 || out_page >= p.out_pages) __trap();
        out_token = tile % p.tiles_per_out_page * kTileTokens;
    }
    uint16_t* k_out = tile_base<uint16_t>(p.k_out, out_page, out_token);
    uint16_t* v_out = tile_base<uint16_t>(p.v_out, out_page, out_token);

    const int32_t first_token = tile * kTileTokens;
    const int32_t live = min(kTileTokens, length - first_token);
    // The part of the tile past the length is zeroed, never loaded: it may hold NaN. An output whose rows are not
    // a multiple of 16 tokens ends inside the tile.
    const int32_t filled = static_cast<int32_t>(min(static_cast<int64_t>(kTileTokens), p.out_tokens - first_token));
    for (int32_t item = static_cast<int32_t>(threadIdx.x); item < filled * p.vectors_per_token; item += kThreads) {
        const int32_t token = item / p.vectors_per_token;
        const int32_t vector = item - token * p.vectors_per_token;
        const int32_t head = vector / p.vectors_per_head;
        const int32_t element = (vector - head * p.vectors_per_head) * kWidth;

        uint32_t k_halves[V::kHalfWords] = {};
        uint32_t v_halves[V::kHalfWords] = {};
        if (token < live) {
            uint32_t k_stored[V::kStoredWords], v_stored[V::kStoredWords];
            load_words<V::kStoredBytes>(
                k_in + token * p.key_cache.token_stride + head * p.key_cache.head_stride + element, k_stored);
            load_words<V::kStoredBytes>(
                v_in + token * p.value_cache.token_stride + head * p.value_cache.head_stride + element, v_stored);
            dequantise<Format, kWidth>(k_stored, k_scale, k_halves);
            dequantise<Format, kWidth>(v_stored, v_scale, v_halves);
        }
        store_words<V::kHalfBytes>(k_out + token * p.k_out.token_stride + head * p.k_out.head_stride + element,
                                   k_halves);
        store_words<V::kHalfBytes>(v_out + token * p.v_out.token_stride + head * p.v_out.head_stride + element,
                                   v_halves);
    }
}

template <typename Format, int kWidth>
__device__ __forceinline__ void gather(const GatherParams& p) {
    const float k_scale = read_scale(p.k_scale);
    const float v_scale = read_scale(p.v_scale);

    // First tile of this block in the row at hand, as the rows' tiles are numbered through.
    int32_t tile = static_cast<int32_t>(blockIdx.x);
    for (int32_t row = 0; row < p.batch; ++row) {
        const int32_t length = p.seq_lens[row * p.seq_lens_stride];
        if (length < 0 || length > p.max_tokens) __trap();
        const int32_t tiles = (length + kTileTokens - 1) / kTileTokens;
        for (; tile < tiles; tile += static_cast<int32_t>(gridDim.x)) {
            gather_tile<Format, kWidth>(p, row, tile, length, k_scale, v_scale);
        }
        tile -= tiles;
    }
}

}  // namespace sm70::kv_cache
