// Kernel parameters of the kv_cache operator: plain data shared by the kernels and op.cpp.
#pragma once

#include "device/fast_divide.h"
#include "device/fixed_width.h"
#include "device/paged_kv.h"

namespace sm70::kv_cache {

// A tensor `[outer, tokens, Hkv, D]` (pages or batch rows outside) or `[tokens, Hkv, D]` with outer_stride 0.
// Strides count elements; D has stride 1. 64 bits: a pool may hold more than 2^31 elements.
struct TokenTensor {
    void* data;
    int64_t outer_stride;
    int64_t token_stride;
    int64_t head_stride;
};

// Scales are the factor between stored and real values: positive and finite. A device scale, where the pointer is not
// null, is read at run time, so that a captured graph can be replayed with another one.

// What writing divides by. A quotient of an FP16 value by a scale beyond 2^100 is stored as 0 in every format, one by a
// scale below 2^-100 as the largest value or infinity, so clamping the scale changes nothing that is stored, and keeps
// every step of the division inside FP32's normal range.
struct WriteScale {
    float value;       // clamped; NaN for a device scale that is not positive and finite
    float reciprocal;  // correctly rounded
    float high, low;   // the reciprocal in two parts, where write_scale.h has proven that enough; else 0
};

SM70_HOST_DEVICE bool is_scale(float value) {
    return value > 0.0f && value <= 3.402823466e38f;
}

SM70_HOST_DEVICE float clamp_scale(float value) {
    constexpr float kLargest = 1267650600228229401496703205376.0f;  // 2^100
    return value > kLargest ? kLargest : value < 1.0f / kLargest ? 1.0f / kLargest : value;
}

struct WriteParams {
    TokenTensor k, v;       // FP16 [tokens, Hkv, D]
    TokenTensor key_cache;  // [pages, page, Hkv, D]
    TokenTensor value_cache;
    const int64_t* slot_mapping;  // [tokens]: page * page_tokens + offset, or -1 to skip the token
    int64_t slot_stride;
    WriteScale k_scale, v_scale;
    const float* k_device_scale;
    const float* v_device_scale;
    int64_t slots;                 // pages * page_tokens, below 2^31
    uint32_t tokens;               // below 2^31
    uint32_t vectors_per_token;    // Hkv * D / elements of a vector
    uint32_t tokens_per_pass;      // of a block: kThreads / lanes_per_token
    FastDivisor lanes_per_token;   // threads side by side on one token: min(vectors_per_token, kThreads)
    FastDivisor vectors_per_head;  // D / elements of a vector
    FastDivisor page_tokens;
};

struct GatherParams {
    TokenTensor key_cache;  // [pages, page, Hkv, D]
    TokenTensor value_cache;
    TokenTensor k_out;  // FP16 [B, tokens, Hkv, D], or [out_pages, out_page, Hkv, D] with an out_block_table
    TokenTensor v_out;
    const int32_t* block_table;  // [B, max_blocks]; only entries of live tokens are read
    int64_t block_table_stride;
    const int32_t* seq_lens;  // [B]
    int64_t seq_lens_stride;
    const int32_t* out_block_table;  // null for a contiguous output
    int64_t out_block_table_stride;
    float k_scale, v_scale;
    const float* k_device_scale;
    const float* v_device_scale;
    int32_t max_tokens;  // longest row that both block table and output can hold
    int32_t out_tokens;  // tokens a row of the output can hold; zero filling stops here
    int32_t batch;
    int32_t pages;
    int32_t out_pages;
    FastDivisor tiles_per_page;      // page / 16
    FastDivisor tiles_per_out_page;  // out_page / 16; unused for a contiguous output
    FastDivisor vectors_per_head;
    FastDivisor vectors_per_token;
};

constexpr int32_t kThreads = 256;
// Passes of a block of the write kernel, each over as many tokens as its threads cover.
constexpr uint32_t kPasses = 2;

}  // namespace sm70::kv_cache
