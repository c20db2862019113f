// The schedule of a launch, from shapes and the number of SMs alone: rows of a block, grid, workspace. Lengths play no
// part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/ceil_div.h"
#include "ops/verify/params.h"

namespace sm70::verify {

constexpr int64_t kMostRowTiles = 6;              // of 8 rows: what a block's registers and shared memory hold
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // of a row
constexpr int64_t kSharedBytesPerMultiprocessor = 96 << 10;

struct Problem {
    int64_t requests, q_rows, query_heads, kv_heads, head_dim;
    int64_t max_tokens;  // of a row
    int64_t multiprocessors;

    int64_t group() const { return query_heads / kv_heads; }
};

struct Schedule {
    int64_t row_tiles;   // of a block
    int64_t row_groups;  // of a request and KV head: the rows of one block are one
    int64_t max_tokens;  // of a row, however wide the table is
    int64_t chunks;      // of a row, at most: its partial states in the workspace
    int64_t shared_bytes;
    int64_t blocks;  // of the grid
    int64_t workspace_bytes;
};

inline Schedule make_schedule(const Problem& problem) {
    Schedule schedule{};
    const int64_t rows = std::max<int64_t>(1, problem.q_rows * problem.group());
    // As few blocks as possible, with shares as equal as possible. The values take row tiles in pairs.
    const int64_t share = ceil_div(rows, ceil_div(rows, 8 * kMostRowTiles));
    schedule.row_tiles = 2 * ceil_div<int64_t>(share, 16);
    schedule.row_groups = ceil_div(rows, 8 * schedule.row_tiles);
    schedule.max_tokens = std::min(problem.max_tokens, kMaxTokens);
    const int64_t leaves = std::max<int64_t>(1, ceil_div<int64_t>(schedule.max_tokens, kLeafTokens));
    schedule.chunks = std::min<int64_t>(leaves, most_chunks(static_cast<int32_t>(problem.head_dim)));
    schedule.shared_bytes = verify_shared_bytes(problem.head_dim, schedule.row_tiles);
    const int64_t resident =
        std::min<int64_t>(256 / problem.head_dim, kSharedBytesPerMultiprocessor / schedule.shared_bytes);
    const int64_t units = problem.requests * schedule.row_groups * problem.kv_heads * schedule.chunks;
    schedule.blocks = std::max<int64_t>(1, std::min(resident * problem.multiprocessors, units));
    schedule.workspace_bytes = problem.requests * problem.q_rows * problem.kv_heads * schedule.chunks *
                               partial_state_floats(problem.group(), problem.head_dim) * 4;
    return schedule;
}

}  // namespace sm70::verify
