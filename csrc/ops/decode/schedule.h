// The schedule of a launch, from shapes and the number of SMs alone: grid, levels, workspace. Lengths play no part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/ceil_div.h"
#include "ops/decode/params.h"

namespace sm70::decode {

struct Problem {
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

struct Schedule {
    int64_t shared_bytes;  // dynamic, of a block
    int64_t blocks;        // of the grid
    int64_t max_level;
    int64_t target;  // units wanted at most
    int64_t partial_states;
    int64_t workspace_bytes;
    int64_t warps_log2, stack_levels;  // of the combine kernel
};

// Levels that leave room for all blocks that an SM is meant to have. More are used only to bound the workspace.
constexpr int64_t kUsualLevels = 4;
// Units per resident block: enough to balance the blocks, few enough to keep the traffic of partial states near 1 %.
constexpr int64_t kUnitsPerBlock = 3;
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // of a row: what keeps 32 rows' workspace within 32 MiB
constexpr int64_t kWorkspaceBytesPer32Rows = int64_t{32} << 20;
constexpr int64_t kCombineWarps = 24;  // per SM: what registers allow, so that one wave is enough where possible
constexpr int64_t kSharedBytesPerMultiprocessor = 96 << 10;

// The largest unit that a block has a stack for: 4 levels with two row tiles at D 256, else all.
inline int64_t deepest_level(const Problem& problem) {
    const int64_t levels = (kSharedBytesPerMultiprocessor - problem.shared_bytes()) / problem.level_bytes();
    return std::min<int64_t>(levels, kMaxUnitLevels - 1);
}

// The longest row of these shapes, however wide the table is.
inline int64_t longest_row(const Problem& problem) {
    return std::min(
        {problem.max_tokens, kMaxTokens, (int64_t{kLeafTokens} * kMaxUnitsOfRow) << deepest_level(problem)});
}

inline Schedule make_schedule(const Problem& problem) {
    const int64_t leaves = std::max<int64_t>(1, ceil_div<int64_t>(longest_row(problem), kLeafTokens));
    const int64_t partial_state_bytes = partial_state_floats(problem.group(), problem.head_dim) * 4;
    const auto units = [&](int64_t level) {
        return problem.rows * problem.kv_heads * ceil_div(leaves, int64_t{1} << level);
    };
    int64_t all_levels = 0;  // at which a row is one unit
    while (ceil_div(leaves, int64_t{1} << all_levels) > 1 && all_levels < deepest_level(problem)) ++all_levels;
    const int64_t budget = kWorkspaceBytesPer32Rows * ceil_div<int64_t>(problem.rows, 32);

    Schedule schedule{};
    schedule.max_level = std::min(kUsualLevels, all_levels);
    while (schedule.max_level < all_levels && (units(schedule.max_level) * partial_state_bytes > budget ||
                                               ceil_div(leaves, int64_t{1} << schedule.max_level) > kMaxUnitsOfRow)) {
        ++schedule.max_level;
    }
    schedule.shared_bytes = problem.shared_bytes() + schedule.max_level * problem.level_bytes();
    const int64_t allowed =
        problem.xqa ? xqa_blocks(static_cast<int32_t>(problem.head_dim), static_cast<int32_t>(problem.row_tiles()))
                    : 512 / problem.head_dim;
    const int64_t resident =
        std::max<int64_t>(1, std::min(allowed, kSharedBytesPerMultiprocessor / schedule.shared_bytes));
    const int64_t all_resident = resident * problem.multiprocessors;
    schedule.blocks = std::max<int64_t>(1, std::min(all_resident, units(0)));
    schedule.target = kUnitsPerBlock * all_resident;
    schedule.partial_states = std::max(units(schedule.max_level), std::min(schedule.target, units(0)));
    schedule.workspace_bytes = schedule.partial_states * partial_state_bytes;

    // Warps for each slice of the combine kernel: as many as fill all SMs, from one to a block of them.
    const int64_t slices = problem.rows * problem.query_heads * (problem.head_dim / kCombineSlice);
    schedule.warps_log2 = kCombineMaxWarpsLog2;
    while (schedule.warps_log2 > 0 && slices << schedule.warps_log2 > kCombineWarps * problem.multiprocessors) {
        --schedule.warps_log2;
    }
    const int64_t units_of_row =
        std::max(ceil_div(leaves, int64_t{1} << schedule.max_level), std::min(schedule.target, leaves));
    schedule.stack_levels = 1;
    const int64_t units_at_a_time = int64_t{4 * kCombineBatch} << schedule.warps_log2;
    while (units_at_a_time << (schedule.stack_levels - 1) < units_of_row) ++schedule.stack_levels;
    return schedule;
}

}  // namespace sm70::decode
