// What a block of xqa loads before K and V: the query heads of a work unit, and the addresses of tiles.
#pragma once

#include "ops/decode/xqa_traits.cuh"

namespace sm70::decode {

// Q to shared memory; rows past the group are zeros. A thread has a dimension, and with it a place in XqaShared::q.
template <typename S>
__device__ __forceinline__ void load_query(const XqaBlock<S>& block, const WorkUnit& unit) {
    static_assert(S::kThreads == S::kHeadDim);
    // The half of the quad-pairs that takes a dimension, and its k-step there: 16 bytes of each load of K.
    constexpr uint32_t kPerVector = S::kStepsPerVector;
    const uint32_t dimension = forgotten(threadIdx.x), half = dimension / (4 * kPerVector) % 2;
    const uint32_t step = dimension / (8 * kPerVector) * kPerVector + dimension / 4 % kPerVector;
    auto& places = block.shared.q;
    auto* target = reinterpret_cast<uint16_t*>(&places[0][step / 2][0][half]) + step % 2 * 4 + dimension % 4;
    const DecodeParams& p = block.p;
    const uint16_t* q =
        p.q + unit.row * p.q_row_stride + static_cast<int64_t>(unit.head) * p.group * p.q_head_stride + dimension;
    constexpr uint32_t kRowStride = sizeof(places[0][0][0]) / 2, kTileStride = sizeof(places[0]) / 2;
#pragma unroll
    for (uint32_t r = 0; r < S::kRows; ++r) {
        target[r / 8 * kTileStride + r % 8 * kRowStride] =
            r < static_cast<uint32_t>(p.group) ? q[r * p.q_head_stride] : uint16_t{0};
    }
}

// Addresses of a leaf's tiles to the ring; each lane looks up one tile. One warp does it a leaf ahead, another one
// for each leaf, so that no load of K or V waits for the block table.
template <typename S>
__device__ __forceinline__ void look_up_tiles(const XqaBlock<S>& block, const WorkUnit& unit, int32_t request,
                                              uint32_t leaf) {
    if (block.lane.index >= S::kLeafTiles) return;
    const uint32_t tile = leaf * S::kLeafTiles + block.lane.index;
    if (tile * kTileTokens >= static_cast<uint32_t>(unit.length)) return;
    const PagedKv& kv = block.p.kv;
    const TilePlace place = tile_place(kv, request, tile);
    block.shared.key_tiles[leaf % kTileStages][block.lane.index] = tile_address(kv.k, place, unit.head);
    block.shared.value_tiles[leaf % kTileStages][block.lane.index] = tile_address(kv.v, place, unit.head);
}

}  // namespace sm70::decode
