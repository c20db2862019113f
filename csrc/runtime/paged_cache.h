// Paged KV caches as arguments: their checks, and the parameters that kernels get of them.
#pragma once

#include <string>

#include "device/paged_kv.h"
#include "runtime/tensor_checks.h"

namespace sm70::runtime {

struct CacheFormat {
    std::string name;
    ScalarType dtype;  // of a typed cache; FP8 may also be stored as uint8
};

// "e4m3", "e5m2" or "fp16".
CacheFormat require_cache_format(const char* op, const std::string& name);

// The two caches of one operator call: the format's dtype, [pages, page, Hkv, D], same shape, a page of whole tiles of
// 16 tokens, sizes that fit 31 bits.
void require_caches(const Argument& key, const Argument& value, const CacheFormat& format);

// A page of whole tiles of 16 tokens.
void require_page(const Argument& cache, const char* remedy);

// int32 [requests, max_blocks].
void require_block_table(const Argument& table);

// Factors between stored and real values. A device scale, where there is one, is what counts.
struct CacheScales {
    float k, v;
    const float* k_device;
    const float* v_device;
};
CacheScales require_cache_scales(const char* op, double k_scale, double v_scale, const Argument* k_scale_tensor,
                                 const Argument* v_scale_tensor);

// The parameters of a checked cache and block table.
PagedKv paged_kv(const Argument& key, const Argument& value, const Argument& block_table, const CacheScales& scales,
                 int64_t alignment);

}  // namespace sm70::runtime
