// How a launch is divided, from shapes and the number of SMs alone: rows of a block, grid, workspace. Lengths play no
// part.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/verify/params.h"

namespace sm70::verify {

constexpr int64_t kMostRowTiles = 6;              // of 8 rows: what a block's registers and shared memory hold
constexpr int64_t kMaxTokens = int64_t{1} << 24;  // of a row
constexpr int64_t kSharedBytesPerMultiprocessor = 96 << 10;

struct Shape {
    int64_t requests, q_rows, query_heads, kv_heads, head_dim;
    int64_t max_tokens;  // of a row
    int64_t multiprocessors;

    int64_t group() const { return query_heads / kv_heads; }
};

struct Division {
    int64_t row_tiles;   // of a block
    int64_t row_groups;  // blocks' worths of rows of a request and KV head
    int64_t max_tokens;  // of a row, however wide the table is
    int64_t chunks;      // places of a row in the workspace
    int64_t shared_bytes;
    int64_t blocks;  // of the grid
    int64_t workspace_bytes;
};

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

inline Division divide(const Shape& shape) {
    Division division{};
    const int64_t rows = std::max<int64_t>(1, shape.q_rows * shape.group());
    // As few blocks as can be, of as equal shares as can be; the values take row tiles in pairs.
    const int64_t share = ceil_div(rows, ceil_div(rows, 8 * kMostRowTiles));
    division.row_tiles = 2 * ceil_div(share, 16);
    division.row_groups = ceil_div(rows, 8 * division.row_tiles);
    division.max_tokens = std::min(shape.max_tokens, kMaxTokens);
    const int64_t leaves = std::max<int64_t>(1, ceil_div(division.max_tokens, kLeafTokens));
    division.chunks = std::min<int64_t>(leaves, most_chunks(static_cast<int32_t>(shape.head_dim)));
    division.shared_bytes = verify_shared_bytes(shape.head_dim, division.row_tiles);
    const int64_t resident =
        std::min<int64_t>(256 / shape.head_dim, kSharedBytesPerMultiprocessor / division.shared_bytes);
    const int64_t units = shape.requests * division.row_groups * shape.kv_heads * division.chunks;
    division.blocks = std::max<int64_t>(1, std::min(resident * shape.multiprocessors, units));
    division.workspace_bytes = shape.requests * shape.q_rows * shape.kv_heads * division.chunks *
                               slot_floats(shape.group(), shape.head_dim) * 4;
    return division;
}

}  // namespace sm70::verify
