// How a launch is divided, from shapes and the number of SMs alone: grid, levels, workspace. Lengths play no part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/decode/params.h"

namespace sm70::decode {

struct Shape {
    int64_t rows, query_heads, kv_heads, head_dim;
    int64_t max_tokens;  // of a row
    int64_t multiprocessors;
    bool xqa;  // else scalar

    int64_t group() const { return query_heads / kv_heads; }
    int64_t row_tiles() const { return xqa ? (group() + 7) / 8 : 1; }
    // Shared memory of a block: without a stack, and of each of its levels.
    int64_t shared_bytes() const {
        return xqa ? xqa_shared_bytes(head_dim, row_tiles()) : scalar_shared_bytes(head_dim);
    }
    int64_t level_bytes() const { return xqa ? xqa_level_bytes(head_dim, row_tiles()) : scalar_level_bytes(head_dim); }
};

struct Division {
    int64_t shared_bytes;  // dynamic, of a block
    int64_t blocks;        // of the grid
    int64_t max_level;
    int64_t target;  // units wanted at most
    int64_t slots;
    int64_t workspace_bytes;
    int64_t warps_log2, stack_levels;  // of the combine kernel
};

// Levels that leave room for all blocks an SM is meant to have. More are taken only to bound the workspace.
constexpr int64_t kUsualLevels = 4;
// Units for each resident block: enough to even out, few enough to keep the traffic of their states near 1 %.
constexpr int64_t kUnitsPerBlock = 3;
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // of a row: what keeps 32 rows' workspace within 32 MiB
constexpr int64_t kWorkspaceBytesPer32Rows = int64_t{32} << 20;
constexpr int64_t kCombineWarps = 24;  // of an SM: what registers allow, so that one wave does it where it can
constexpr int64_t kSharedBytesPerMultiprocessor = 96 << 10;

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// The largest unit that a block has a stack for: 4 levels with two row tiles at D 256, else all.
inline int64_t deepest_level(const Shape& shape) {
    const int64_t levels = (kSharedBytesPerMultiprocessor - shape.shared_bytes()) / shape.level_bytes();
    return std::min<int64_t>(levels, kMaxUnitLevels - 1);
}

// The longest row of these shapes, however wide the table is.
inline int64_t longest_row(const Shape& shape) {
    return std::min({shape.max_tokens, kMaxTokens, (int64_t{kLeafTokens} * kMaxUnitsOfRow) << deepest_level(shape)});
}

inline Division divide(const Shape& shape) {
    const int64_t leaves = std::max<int64_t>(1, ceil_div(longest_row(shape), kLeafTokens));
    const int64_t slot_bytes = slot_floats(shape.group(), shape.head_dim) * 4;
    const auto units = [&](int64_t level) {
        return shape.rows * shape.kv_heads * ceil_div(leaves, int64_t{1} << level);
    };
    int64_t all_levels = 0;  // at which a row is one unit
    while (ceil_div(leaves, int64_t{1} << all_levels) > 1 && all_levels < deepest_level(shape)) ++all_levels;
    const int64_t budget = kWorkspaceBytesPer32Rows * ceil_div(shape.rows, 32);

    Division division{};
    division.max_level = std::min(kUsualLevels, all_levels);
    while (division.max_level < all_levels && (units(division.max_level) * slot_bytes > budget ||
                                               ceil_div(leaves, int64_t{1} << division.max_level) > kMaxUnitsOfRow)) {
        ++division.max_level;
    }
    division.shared_bytes = shape.shared_bytes() + division.max_level * shape.level_bytes();
    const int64_t allowed =
        shape.xqa ? xqa_blocks(static_cast<int32_t>(shape.head_dim), static_cast<int32_t>(shape.row_tiles()))
                  : 512 / shape.head_dim;
    const int64_t resident =
        std::max<int64_t>(1, std::min(allowed, kSharedBytesPerMultiprocessor / division.shared_bytes));
    const int64_t all_resident = resident * shape.multiprocessors;
    division.blocks = std::max<int64_t>(1, std::min(all_resident, units(0)));
    division.target = kUnitsPerBlock * all_resident;
    division.slots = std::max(units(division.max_level), std::min(division.target, units(0)));
    division.workspace_bytes = division.slots * slot_bytes;

    // Warps for each slice of the combine kernel: as many as fill all SMs, from one to a block of them.
    const int64_t slices = shape.rows * shape.query_heads * (shape.head_dim / kCombineSlice);
    division.warps_log2 = kCombineMaxWarpsLog2;
    while (division.warps_log2 > 0 && slices << division.warps_log2 > kCombineWarps * shape.multiprocessors) {
        --division.warps_log2;
    }
    const int64_t units_of_row =
        std::max(ceil_div(leaves, int64_t{1} << division.max_level), std::min(division.target, leaves));
    division.stack_levels = 1;
    const int64_t units_at_a_time = int64_t{4 * kCombineBatch} << division.warps_log2;
    while (units_at_a_time << (division.stack_levels - 1) < units_of_row) ++division.stack_levels;
    return division;
}

}  // namespace sm70::decode
