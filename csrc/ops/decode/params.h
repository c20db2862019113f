// Kernel parameters of the decode operator: plain data shared by the kernels and op.cpp.
#pragma once

#include "device/leaves.h"
#include "device/paged_kv.h"
#include "device/partial_state.h"

namespace sm70::decode {

constexpr int kMaxUnitLevels = 11;  // levels 0..10

// Dynamic shared memory: what a block has once, and what each level of its stack takes. The kernels assert that these
// are the sizes of their structs. `row_tiles` are tiles of 8 query heads.
SM70_HOST_DEVICE constexpr int64_t round_to_16(int64_t bytes) {
    return (bytes + 15) / 16 * 16;
}
constexpr int64_t kTileStages = 4;  // of xqa: leaves whose tiles have their addresses in shared memory
SM70_HOST_DEVICE constexpr int64_t xqa_shared_bytes(int64_t head_dim, int64_t row_tiles) {
    const int64_t query = 16 * head_dim, weights = 2 * 8 * kLeafTokens * 2, reductions = 2 * 8 * (head_dim / 32) * 4;
    return round_to_16(row_tiles * (query + weights + reductions) + 2 * kTileStages * 8 * 8 + kMaxUnitLevels * 4);
}
SM70_HOST_DEVICE constexpr int64_t xqa_level_bytes(int64_t head_dim, int64_t row_tiles) {
    return row_tiles * 8 * (head_dim * 4 + 8);
}
// Blocks of xqa per SM that registers allow: 16 warps of 128 registers; 12 warps at D 64, which needs more; and half as
// many with two row tiles.
SM70_HOST_DEVICE constexpr int32_t xqa_blocks(int32_t head_dim, int32_t row_tiles) {
    return (head_dim == 64 ? 6 : 512 / head_dim) / row_tiles;
}
SM70_HOST_DEVICE constexpr int64_t scalar_shared_bytes(int64_t head_dim) {
    return round_to_16(8 * head_dim * 4 + 8 * kLeafTokens * 4 + 8 * 8 + 2 * 8 * 8 + kMaxUnitLevels * 4);
}
SM70_HOST_DEVICE constexpr int64_t scalar_level_bytes(int64_t head_dim) {
    return 8 * (head_dim * 4 + 8);
}

// How the rows of a launch are cut into work units: what make_schedule() decides before the lengths are known
// (work_units.cuh has the method).
struct RowSchedule {
    const int32_t* seq_lens;  // [rows]
    int64_t seq_lens_stride;
    int32_t rows;
    int32_t kv_heads;
    int32_t max_tokens;  // longest row that the block table can hold
    int32_t max_level;   // at which the workspace holds a partial state of every unit, whatever the lengths
    int32_t target;      // units wanted at most
};

struct DecodeParams {
    const uint16_t* q;  // FP16 [rows, Hq, D]
    int64_t q_row_stride, q_head_stride;
    uint16_t* out;  // FP16 [rows, Hq, D]
    int64_t out_row_stride, out_head_stride;
    float* lse;  // FP32 [rows, Hq], or null
    int64_t lse_row_stride, lse_head_stride;
    const int32_t* row_requests;  // [rows]: the block-table row of each row; null: its own number
    int64_t row_requests_stride;
    float* partial_states;     // of units, by unit number; rows of one unit have none
    float softmax_scale_log2;  // softmax scale x log2(e)
    int32_t group;             // query heads of a KV head
    RowSchedule schedule;
    PagedKv kv;
};

struct CombineParams {
    DecodeParams decode;
    int32_t head_dim;
    float operand_scale_inverse;  // numerators are of value x operand scale
    FastDivisor kv_heads;
    int32_t warps_log2;    // of the warps that share the units of a slice
    int32_t parts_log2;    // of the blocks that share a query head
    int32_t stack_levels;  // of each warp
};

// The combine kernel: blocks for each row and KV head, query head of the group, and slice of dimensions.
constexpr int32_t kCombineMaxWarpsLog2 = 3;  // of a block
constexpr int32_t kCombineMaxWarps = 1 << kCombineMaxWarpsLog2;
constexpr int32_t kCombineSlice = 32;        // numerators
constexpr int32_t kCombineBatch = 8;         // units that an octet of lanes loads at a time
constexpr int32_t kCombineLevelBytes = 768;  // of a level of a warp's stack
constexpr int32_t kMaxUnitsOfRow = 2048;

}  // namespace sm70::decode
