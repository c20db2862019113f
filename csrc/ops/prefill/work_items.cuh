// Work items: what a block takes at a time. A tile of query rows of one KV head, with all its keys or a part of them.
#pragma once

#include "ops/prefill/params.h"

namespace sm70::prefill {

struct Sequence {
    int32_t first_query, queries, first_key, keys;
};

struct WorkItem {
    int32_t sequence, head;
    int32_t first_row;      // of the tile, in the sequence's packed rows
    int32_t part;           // of the tile's keys
    int32_t partial_state;  // its number in the workspace
    bool split;             // the tile has other parts
};

__device__ __forceinline__ Sequence sequence_of(const PrefillParams& p, int32_t index) {
    if (p.cu_seqlens_q == nullptr) return {0, p.queries, 0, p.keys};
    const int32_t q0 = p.cu_seqlens_q[index], q1 = p.cu_seqlens_q[index + 1];
    const int32_t k0 = p.cu_seqlens_k[index], k1 = p.cu_seqlens_k[index + 1];
    if (q0 < 0 || q1 < q0 || q1 - q0 > p.queries || q1 > p.query_tokens) __trap();
    if (k0 < 0 || k1 < k0 || k1 - k0 > p.keys || k1 > p.key_tokens) __trap();
    if (p.causal && k1 - k0 < q1 - q0) __trap();
    return {q0, q1 - q0, k0, k1 - k0};
}

// Number of work items: tiles that one block does alone, then the parts of the others.
__device__ __forceinline__ int32_t work_items(const PrefillParams& p) {
    return p.whole_tiles + (p.tiles - p.whole_tiles) * p.splits;
}

__device__ __forceinline__ WorkItem whole_tile(const PrefillParams& p, int32_t tile) {
    WorkItem item{};
    const int32_t in_heads = tile / p.row_tiles;
    item.first_row = (tile - in_heads * p.row_tiles) * kTileRows;
    item.sequence = in_heads / p.kv_heads;
    item.head = in_heads - item.sequence * p.kv_heads;
    return item;
}

// Work item number `number`. The workspace has one partial state for each block, for its own tiles, then those of the
// parts.
__device__ __forceinline__ WorkItem work_item(const PrefillParams& p, int32_t number) {
    if (number < p.whole_tiles) {
        WorkItem item = whole_tile(p, number);
        item.partial_state = static_cast<int32_t>(blockIdx.x);
        return item;
    }
    // The same part of all tiles comes before the next part, so that blocks that run together read the same keys.
    const int32_t rest = number - p.whole_tiles, shared_tiles = p.tiles - p.whole_tiles;
    const int32_t part = rest / shared_tiles, shared_tile = rest - part * shared_tiles;
    WorkItem item = whole_tile(p, p.whole_tiles + shared_tile);
    item.part = part;
    item.split = true;
    item.partial_state = static_cast<int32_t>(gridDim.x) + shared_tile * p.splits + part;
    return item;
}

// Packed rows of a sequence and KV head: query by query, the heads of the group.
__device__ __forceinline__ int32_t packed_rows(const PrefillParams& p, const Sequence& s) {
    return s.queries * static_cast<int32_t>(p.group.divisor);
}

// Keys that a packed row sees.
__device__ __forceinline__ int32_t visible_keys(const PrefillParams& p, const Sequence& s, int32_t row) {
    if (!p.causal) return s.keys;
    return min(s.keys, s.keys - s.queries + static_cast<int32_t>(p.group.divide(static_cast<uint32_t>(row))) + 1);
}

// Tiles of keys that any row of a row tile sees.
__device__ __forceinline__ int32_t key_tiles(const PrefillParams& p, const Sequence& s, int32_t first_row) {
    const int32_t last_row = min(first_row + kTileRows, packed_rows(p, s)) - 1;
    return (visible_keys(p, s, last_row) + kTileKeys - 1) / kTileKeys;
}

// First key tile of a part; that of the next part is its end.
__device__ __forceinline__ int32_t part_start(const PrefillParams& p, int32_t tiles, int32_t part) {
    return static_cast<int32_t>(static_cast<int64_t>(tiles) * part / p.splits);
}

}  // namespace sm70::prefill
