// gather_paged_kv: pages of E4M3, E5M2 or FP16 to FP16, contiguous or paged.
//
// Work is cut into tiles of 16 tokens of one row, K and V together. The grid depends on shapes and SM count only; the
// live tiles of all rows are numbered in order, and block b takes tiles b, b + gridDim.x, ... So one long row among
// short ones keeps every SM busy, and one captured graph serves any lengths.
//
//   A tile at D 256, Hkv 1, E4M3: 2 x 4 KiB read, 2 x 8 KiB written by 256 threads, each with two vectors of K and two
//   of V. All loads come before the first store. Bound: DRAM.
#pragma once

#include "ops/kv_cache/vector.cuh"

namespace sm70::kv_cache {

// Vectors of K, and as many of V, that a thread has in flight.
constexpr int kInFlight = 2;

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

// The scale in use. A device scale that is not positive and finite can't be refused by the host without a
// synchronisation; it becomes NaN, so that every value made with it is NaN instead of quietly wrong.
__device__ __forceinline__ float resolve(float host, const float* device) {
    if (device == nullptr) return host;
    return is_scale(*device) ? *device : quiet_nan();
}

// Address of the first element of a tile. `page` is the page of a paged tensor or the row of a contiguous one.
template <typename Element>
__device__ __forceinline__ Element* tile_base(const TokenTensor& tensor, int64_t page, int64_t token) {
    return static_cast<Element*>(tensor.data) + page * tensor.outer_stride + token * tensor.token_stride;
}

template <typename Format, int kWidth>
__device__ __forceinline__ void gather_tile(const GatherParams& p, int32_t row, uint32_t tile, int32_t length,
                                            float k_scale, float v_scale) {
    using V = Vector<Format, kWidth>;
    using Storage = typename Format::Storage;

    const uint32_t block = p.tiles_per_page.divide(tile);
    const int32_t page = p.block_table[row * p.block_table_stride + block];
    if (page < 0 || page >= p.pages) __trap();
    const uint32_t token_in_page = p.tiles_per_page.remainder(tile, block) * kTileTokens;
    const Storage* k_in = tile_base<Storage>(p.key_cache, page, token_in_page);
    const Storage* v_in = tile_base<Storage>(p.value_cache, page, token_in_page);

    int64_t out_page = row;
    const int32_t first_token = static_cast<int32_t>(tile * kTileTokens);
    int64_t out_token = first_token;
    if (p.out_block_table != nullptr) {
        const uint32_t out_block = p.tiles_per_out_page.divide(tile);
        out_page = p.out_block_table[row * p.out_block_table_stride + out_block];
        if (out_page < 0 || out_page >= p.out_pages) __trap();
        out_token = p.tiles_per_out_page.remainder(tile, out_block) * kTileTokens;
    }
    uint16_t* k_out = tile_base<uint16_t>(p.k_out, out_page, out_token);
    uint16_t* v_out = tile_base<uint16_t>(p.v_out, out_page, out_token);

    // The part of the tile past the length is zeroed, never loaded: it may hold NaN. An output whose rows are not
    // a multiple of 16 tokens ends inside the tile.
    const uint32_t live = static_cast<uint32_t>(min(static_cast<int32_t>(kTileTokens), length - first_token));
    const uint32_t filled = static_cast<uint32_t>(min(static_cast<int32_t>(kTileTokens), p.out_tokens - first_token));
    const uint32_t items = filled * p.vectors_per_token.divisor;
    for (uint32_t first = threadIdx.x; first < items; first += kInFlight * kThreads) {
        uint32_t k_stored[kInFlight][V::kStoredWords] = {};  // bits 0 are the value 0 in every format
        uint32_t v_stored[kInFlight][V::kStoredWords] = {};
        Place place[kInFlight];
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            place[i] = place_of<kWidth>(first + i * kThreads, p.vectors_per_token, p.vectors_per_head);
            if (place[i].token < live) {
                load_words<V::kStoredBytes>(address(k_in, p.key_cache, place[i]), k_stored[i]);
                load_words<V::kStoredBytes>(address(v_in, p.value_cache, place[i]), v_stored[i]);
            }
        }
#pragma unroll
        for (int i = 0; i < kInFlight; ++i) {
            if (place[i].token >= filled) break;
            uint32_t halves[V::kHalfWords];
            dequantise<Format, kWidth>(k_stored[i], place[i].token < live ? k_scale : 1.0f, halves);
            store_words<V::kHalfBytes>(address(k_out, p.k_out, place[i]), halves);
            dequantise<Format, kWidth>(v_stored[i], place[i].token < live ? v_scale : 1.0f, halves);
            store_words<V::kHalfBytes>(address(v_out, p.v_out, place[i]), halves);
        }
    }
}

template <typename Format, int kWidth>
__device__ __forceinline__ void gather(const GatherParams& p) {
    const float k_scale = resolve(p.k_scale, p.k_device_scale);
    const float v_scale = resolve(p.v_scale, p.v_device_scale);

    // The block's next tile, counted from the first tile of the current row.
    uint32_t tile = blockIdx.x;
    for (int32_t row = 0; row < p.batch; ++row) {
        const int32_t length = p.seq_lens[row * p.seq_lens_stride];
        if (length < 0 || length > p.max_tokens) __trap();
        const uint32_t tiles = static_cast<uint32_t>(length + kTileTokens - 1) / kTileTokens;
        for (; tile < tiles; tile += gridDim.x) {
            gather_tile<Format, kWidth>(p, row, tile, length, k_scale, v_scale);
        }
        tile -= tiles;
    }
}

}  // namespace sm70::kv_cache
