// A paged KV cache as plain data, shared by kernels and host code.
#pragma once

#include "device/fast_divide.h"
#include "device/fixed_width.h"

namespace sm70 {

// A tile is 16 tokens; a page holds a whole number of tiles.
constexpr uint32_t kTileTokens = 16;

// [pages, page, Hkv, D] of any strides whose last is one element. In bytes and 64 bits: a pool may hold more than 2^31.
struct PagedCache {
    const void* data;
    int64_t page_bytes, token_bytes, head_bytes;
};

struct PagedKv {
    PagedCache k, v;
    const int32_t* block_table;  // [requests, max_blocks]; only entries of live tokens are read
    int64_t block_table_stride;
    const float* k_device_scale;  // one element, read by the kernel; null: the host's scale
    const float* v_device_scale;
    float k_scale, v_scale;
    int32_t requests;
    int32_t pages;
    FastDivisor tiles_per_page;
    uint32_t alignment;  // 16, 8 or 1: what the addresses of a head's bytes 0, 16, 32, .. are multiples of
};

}  // namespace sm70
