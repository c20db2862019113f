// Kernel parameters of the kv_cache operator: plain data shared by the kernels and op.cpp.
#pragma once

#include "device/fixed_width.h"

namespace sm70::kv_cache {

// A tensor `[outer, tokens, Hkv, D]` (pages or batch rows outside) or `[tokens, Hkv, D]` with outer_stride 0.
// Strides count elements; D has stride 1. 64 bits: a pool may hold more than 2^31 elements.
struct TokenTensor {
    void* data;
    int64_t outer_stride;
    int64_t token_stride;
    int64_t head_stride;
};

// The factor between stored and real values. A device scale, when given, is read at run time, so that a captured
// graph can be replayed with another one.
struct Scale {
    const float* device;
    float host;
};

struct WriteParams {
    TokenTensor k, v;          // FP16 [tokens, Hkv, D]
    TokenTensor key_cache;     // [pages, page, Hkv, D]
    TokenTensor value_cache;
    const int64_t* slot_mapping;  // [tokens]: page * page_tokens + offset, or -1 to skip the token
    int64_t slot_stride;
    Scale k_scale, v_scale;
    int64_t slots;                // pages * page_tokens, below 2^32
    int64_t items;                // tokens * Hkv * D / elements a thread handles
    int32_t page_tokens;
    int32_t vectors_per_head;     // D / elements a thread handles
    int32_t vectors_per_token;    // Hkv * vectors_per_head
};

struct GatherParams {
    TokenTensor key_cache;   // [pages, page, Hkv, D]
    TokenTensor value_cache;
    TokenTensor k_out;       // FP16 [B, tokens, Hkv, D], or [out_pages, out_page, Hkv, D] with an out_block_table
    TokenTensor v_out;
    const int32_t* block_table;  // [B, max_blocks]; only entries of live tokens are read
    int64_t block_table_stride;
    const int32_t* seq_lens;     // [B]
    int64_t seq_lens_stride;
    const int32_t* out_block_table;  // null for a contiguous output
    int64_t out_block_table_stride;
    Scale k_scale, v_scale;
    int64_t max_tokens;        // longest row that both block table and output can hold
    int64_t out_tokens;        // tokens a row of the output can hold; zero filling stops here
    int32_t batch;
    int32_t pages;
    int32_t out_pages;
    int32_t tiles_per_page;      // page / 16
    int32_t tiles_per_out_page;  // out_page / 16; unused for a contiguous output
    int32_t vectors_per_head;
    int32_t vectors_per_token;
};

// A tile is 16 tokens: every page holds a whole number of tiles, so a tile has one page.
constexpr int32_t kTileTokens = 16;
constexpr int32_t kThreads = 256;

}  // namespace sm70::kv_cache
