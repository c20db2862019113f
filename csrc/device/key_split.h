// How rows of keys are divided among blocks: what host and kernels agree on. key_split.cuh has the method.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

constexpr uint32_t kLeafTokens = 128;
constexpr int kMaxUnitLevels = 11;  // levels 0..10

struct KeySplit {
    const int32_t* seq_lens;  // [rows]
    int64_t seq_lens_stride;
    int32_t rows;
    int32_t kv_heads;
    int32_t max_tokens;  // longest row that the block table can hold
    int32_t max_level;   // at which the workspace has a slot for every unit, whatever the lengths
    int32_t target;      // units wanted at most
};

}  // namespace sm70
