#include "runtime/paged_cache.h"

#include <limits>

namespace sm70::runtime {

namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

void require_cache_dtype(const Argument& cache, const CacheFormat& format) {
    if (format.dtype == ScalarType::Half) {
        require_dtype(cache, {format.dtype});
    } else {
        require_dtype(cache, {format.dtype, ScalarType::Byte});
    }
}

// Null without a device scale: the host's counts then.
const float* device_scale(const Argument* scale) {
    if (scale == nullptr) return nullptr;
    require_dtype(*scale, {ScalarType::Float});
    if (scale->tensor.numel() != 1) {
        refuse(scale->op, scale->name, "a tensor of " + std::to_string(scale->tensor.numel()) + " elements",
               "one element", "Pass one scale for the whole cache");
    }
    return data_of<const float>(*scale);
}

PagedCache strides_in_bytes(const torch::stable::Tensor& cache) {
    const auto element = static_cast<int64_t>(cache.element_size());
    return {cache.data_ptr(), cache.stride(0) * element, cache.stride(1) * element, cache.stride(2) * element};
}

}  // namespace

CacheFormat require_cache_format(const char* op, const std::string& name) {
    if (name == "e4m3") return {name, ScalarType::Float8_e4m3fn};
    if (name == "e5m2") return {name, ScalarType::Float8_e5m2};
    if (name == "fp16") return {name, ScalarType::Half};
    refuse(op, "kv_format", "'" + name + "'", "'e4m3', 'e5m2' or 'fp16'", "Name the format that the cache holds");
}

void require_caches(const Argument& key, const Argument& value, const CacheFormat& format) {
    for (const Argument* cache : {&key, &value}) {
        require_cache_dtype(*cache, format);
        require_dims(*cache, 4, "[pages, page, Hkv, D]");
        require_unit_last_stride(*cache);
    }
    if (key.tensor.scalar_type() != value.tensor.scalar_type()) {
        refuse(value.op, value.name, dtype_name(value.tensor.scalar_type()),
               dtype_name(key.tensor.scalar_type()) + ", as key_cache has", "Store K and V in one format");
    }
    const char* pictures[] = {"pages of key_cache", "page size of key_cache", "KV heads of key_cache",
                              "head dimension of key_cache"};
    for (int64_t dim = 0; dim < 4; ++dim) {
        require_size(value, dim, key.tensor.size(dim), pictures[dim]);
    }
    require_page(key, "Allocate the cache with such a page size");
    if (key.tensor.size(2) <= 0 || key.tensor.size(3) <= 0) {
        refuse(key.op, key.name, "a cache without heads or without a head dimension", "Hkv and D of at least 1",
               "Allocate the cache with the model's shape");
    }
    if (key.tensor.size(2) * key.tensor.size(3) > kMaxInt32 / int64_t{kTileTokens} || key.tensor.size(0) > kMaxInt32) {
        refuse(key.op, key.name, "pages, Hkv or D beyond 31 bits", "sizes below 2^31", "Split the cache");
    }
}

void require_page(const Argument& cache, const char* remedy) {
    const int64_t page = cache.tensor.size(1);
    if (page > 0 && page % kTileTokens == 0) return;
    refuse(cache.op, cache.name, "a page of " + std::to_string(page) + " tokens",
           "a multiple of " + std::to_string(kTileTokens) + " tokens", remedy);
}

void require_block_table(const Argument& table) {
    require_dtype(table, {ScalarType::Int});
    require_dims(table, 2, "[B, max_blocks]");
    require_unit_last_stride(table);
}

CacheScales require_cache_scales(const char* op, double k_scale, double v_scale, const Argument* k_scale_tensor,
                                 const Argument* v_scale_tensor) {
    CacheScales scales{};
    scales.k_device = device_scale(k_scale_tensor);
    scales.v_device = device_scale(v_scale_tensor);
    scales.k = require_scale(op, "k_scale", k_scale);
    scales.v = require_scale(op, "v_scale", v_scale);
    return scales;
}

PagedKv paged_kv(const Argument& key, const Argument& value, const Argument& block_table, const CacheScales& scales,
                 int64_t alignment) {
    PagedKv kv{};
    kv.k = strides_in_bytes(key.tensor);
    kv.v = strides_in_bytes(value.tensor);
    kv.block_table = data_of<const int32_t>(block_table);
    kv.block_table_stride = block_table.tensor.stride(0);
    kv.k_device_scale = scales.k_device;
    kv.v_device_scale = scales.v_device;
    kv.k_scale = scales.k;
    kv.v_scale = scales.v;
    kv.requests = static_cast<int32_t>(block_table.tensor.size(0));
    kv.pages = static_cast<int32_t>(key.tensor.size(0));
    kv.tiles_per_page = make_fast_divisor(static_cast<uint32_t>(key.tensor.size(1) / kTileTokens));
    kv.alignment = static_cast<uint32_t>(alignment);
    return kv;
}

}  // namespace sm70::runtime
