#include "runtime/paged_cache_checks.h"

#include <limits>

namespace sm70::runtime {

namespace {

constexpr int64_t kTileTokens = 16;
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

void require_cache_dtype(const Argument& cache, const CacheFormat& format) {
    if (format.dtype == ScalarType::Half) {
        require_dtype(cache, {format.dtype});
    } else {
        require_dtype(cache, {format.dtype, ScalarType::Byte});
    }
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
    const int64_t page = key.tensor.size(1);
    if (page <= 0 || page % kTileTokens != 0) {
        refuse(key.op, key.name, "a page of " + std::to_string(page) + " tokens",
               "a multiple of " + std::to_string(kTileTokens) + " tokens", "Allocate the cache with such a page size");
    }
    if (key.tensor.size(2) <= 0 || key.tensor.size(3) <= 0) {
        refuse(key.op, key.name, "a cache without heads or without a head dimension", "Hkv and D of at least 1",
               "Allocate the cache with the model's shape");
    }
    if (key.tensor.size(2) * key.tensor.size(3) > kMaxInt32 / kTileTokens || key.tensor.size(0) > kMaxInt32) {
        refuse(key.op, key.name, "pages, Hkv or D beyond 31 bits", "sizes below 2^31", "Split the cache");
    }
}

void require_block_table(const Argument& table) {
    require_dtype(table, {ScalarType::Int});
    require_dims(table, 2, "[B, max_blocks]");
    require_unit_last_stride(table);
}

int64_t head_alignment(const Argument& argument) {
    const auto aligned = [&](int64_t bytes) {
        const auto& tensor = argument.tensor;
        const int64_t element = static_cast<int64_t>(tensor.element_size());
        if (reinterpret_cast<uintptr_t>(tensor.data_ptr()) % static_cast<uintptr_t>(bytes) != 0) return false;
        for (int64_t dim = 0; dim + 1 < tensor.dim(); ++dim) {
            if (tensor.size(dim) > 1 && tensor.stride(dim) * element % bytes != 0) return false;
        }
        return true;
    };
    return aligned(16) ? 16 : aligned(8) ? 8 : 1;
}

std::optional<Argument> optional_argument(const char* op, const char* name,
                                          const std::optional<torch::stable::Tensor>& tensor) {
    if (!tensor.has_value()) return std::nullopt;
    return std::optional<Argument>(std::in_place, Argument{op, name, *tensor});
}

const float* device_scale(const std::optional<Argument>& scale) {
    if (!scale.has_value()) return nullptr;
    require_dtype(*scale, {ScalarType::Float});
    if (scale->tensor.numel() != 1) {
        refuse(scale->op, scale->name, "a tensor of " + std::to_string(scale->tensor.numel()) + " elements",
               "one element", "Pass one scale for the whole cache");
    }
    return static_cast<const float*>(scale->tensor.data_ptr());
}

std::vector<const Argument*> present(std::initializer_list<const Argument*> always,
                                     std::initializer_list<const std::optional<Argument>*> optional) {
    std::vector<const Argument*> all(always);
    for (const auto* argument : optional) {
        if (argument->has_value()) all.push_back(&argument->value());
    }
    return all;
}

}  // namespace sm70::runtime
