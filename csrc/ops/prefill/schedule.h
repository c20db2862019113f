// The schedule of a prefill, from shapes and the number of SMs alone.
#pragma once

#include <algorithm>
#include <cstdint>

#include "device/ceil_div.h"
#include "ops/prefill/params.h"

namespace sm70::prefill {

struct Problem {
    int64_t sequences, queries, keys;  // queries and keys of a sequence, at most
    int64_t query_heads, kv_heads, head_dim, multiprocessors;
};

struct Schedule {
    int64_t row_tiles;    // of a sequence and KV head
    int64_t tiles;        // all
    int64_t whole_tiles;  // from the first, each done by one block
    int64_t splits;       // blocks for each of the others
    int64_t blocks;       // of the grid: one per SM
    int64_t workspace_bytes;
};

constexpr int64_t kMaxSplits = 64;
constexpr int64_t kMinKeyTilesOfPart = 2;
constexpr int64_t kWorkspaceBytes = int64_t{64} << 20;

// In whole waves, each block takes one tile. The tiles left over would keep only some of the SMs busy, so the keys of
// each are cut into parts: as many as make the last waves shortest, within the workspace.
inline Schedule make_schedule(const Problem& problem) {
    Schedule schedule{};
    schedule.row_tiles = ceil_div(problem.queries * (problem.query_heads / problem.kv_heads), int64_t{kTileRows});
    schedule.tiles = problem.sequences * problem.kv_heads * schedule.row_tiles;
    schedule.whole_tiles = schedule.tiles / problem.multiprocessors * problem.multiprocessors;
    schedule.splits = 1;
    const int64_t rest = schedule.tiles - schedule.whole_tiles;
    const int64_t partial_state_bytes = partial_state_floats(problem.head_dim) * 4;
    if (rest > 0) {
        const int64_t key_tiles = ceil_div(problem.keys, int64_t{kTileKeys});
        const int64_t partial_states = kWorkspaceBytes / partial_state_bytes - problem.multiprocessors;
        const int64_t most =
            std::max<int64_t>(1, std::min({kMaxSplits, key_tiles / kMinKeyTilesOfPart, partial_states / rest}));
        // Time of the last waves is ceil(rest x splits / SMs) / splits; compared without fractions.
        const auto waves = [&](int64_t splits) { return ceil_div(rest * splits, problem.multiprocessors); };
        for (int64_t splits = 2; splits <= most; ++splits) {
            if (waves(splits) * schedule.splits < waves(schedule.splits) * splits) schedule.splits = splits;
        }
    }
    if (schedule.splits == 1) schedule.whole_tiles = schedule.tiles;
    const int64_t parts = (schedule.tiles - schedule.whole_tiles) * schedule.splits;
    schedule.blocks = std::max<int64_t>(1, std::min(schedule.whole_tiles + parts, problem.multiprocessors));
    schedule.workspace_bytes = (schedule.blocks + parts) * partial_state_bytes;
    return schedule;
}

}  // namespace sm70::prefill
