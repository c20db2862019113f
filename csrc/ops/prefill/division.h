// How a prefill is divided among blocks, from shapes and the number of SMs alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "ops/prefill/params.h"

namespace sm70::prefill {

struct Shape {
    int64_t sequences, queries, keys;  // queries and keys of a sequence, at most
    int64_t query_heads, kv_heads, head_dim, multiprocessors;
};

struct Division {
    int64_t row_tiles;    // of a sequence and KV head
    int64_t tiles;        // all
    int64_t whole_tiles;  // from the first, each done by one block
    int64_t splits;       // blocks for each of the others
    int64_t blocks;       // of the grid: one an SM
    int64_t workspace_bytes;
};

constexpr int64_t kMaxSplits = 64;
constexpr int64_t kMinKeyTilesOfPart = 2;
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// Whole waves of tiles go one to a block. The tiles that are left would keep part of the SMs busy only: each of them is
// cut into parts of its keys, as many as make the last waves shortest within the workspace.
inline Division divide(const Shape& shape) {
    Division division{};
    division.row_tiles = ceil_div(shape.queries * (shape.query_heads / shape.kv_heads), kTileRows);
    division.tiles = shape.sequences * shape.kv_heads * division.row_tiles;
    division.whole_tiles = division.tiles / shape.multiprocessors * shape.multiprocessors;
    division.splits = 1;
    const int64_t rest = division.tiles - division.whole_tiles;
    const int64_t slot_bytes = slot_floats(shape.head_dim) * 4;
    if (rest > 0) {
        const int64_t key_tiles = ceil_div(shape.keys, kTileKeys);
        const int64_t slots = kWorkspaceBytes / slot_bytes - shape.multiprocessors;
        const int64_t most = std::max<int64_t>(1, std::min({kMaxSplits, key_tiles / kMinKeyTilesOfPart, slots / rest}));
        // Time of the last waves is ceil(rest x splits / SMs) / splits; compared without fractions.
        const auto waves = [&](int64_t splits) { return ceil_div(rest * splits, shape.multiprocessors); };
        for (int64_t splits = 2; splits <= most; ++splits) {
            if (waves(splits) * division.splits < waves(division.splits) * splits) division.splits = splits;
        }
    }
    if (division.splits == 1) division.whole_tiles = division.tiles;
    const int64_t parts = (division.tiles - division.whole_tiles) * division.splits;
    division.blocks = std::max<int64_t>(1, std::min(division.whole_tiles + parts, shape.multiprocessors));
    division.workspace_bytes = (division.blocks + parts) * slot_bytes;
    return division;
}

}  // namespace sm70::prefill
