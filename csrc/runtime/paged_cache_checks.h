// Checks that operators on paged KV caches share: the format's name, the two caches, optional arguments, scales.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

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

// int32 [rows, max_blocks].
void require_block_table(const Argument& table);

// The largest of 16, 8 and 1 that the addresses of an argument's heads, tokens and pages are multiples of.
int64_t head_alignment(const Argument& argument);

std::optional<Argument> optional_argument(const char* op, const char* name,
                                          const std::optional<torch::stable::Tensor>& tensor);

// Address of a device scale, null without one; the host scale is what counts then.
const float* device_scale(const std::optional<Argument>& scale);

// The arguments that every call has, then the optional ones that this call has.
std::vector<const Argument*> present(std::initializer_list<const Argument*> always,
                                     std::initializer_list<const std::optional<Argument>*> optional);

}  // namespace sm70::runtime
