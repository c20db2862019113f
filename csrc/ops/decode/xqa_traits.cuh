// Sizes of the xqa kernels, what a block has in shared memory, and what a thread knows about its place in the block.
#pragma once

#include "device/paged_kv.cuh"
#include "device/registers.cuh"
#include "device/softmax_output.cuh"
#include "device/tile.cuh"
#include "ops/decode/params.h"
#include "ops/decode/work_units.cuh"

namespace sm70::decode {

// Without kMasksTail_ the last tile of a row is taken whole, keys past the length included. That is wrong, and there
// only for tests that must see it (test_ops/decode_unmasked).
template <typename Format_, int kHeadDim_, int kRowTiles_, bool kMasksTail_ = true>
struct XqaTraits {
    using Format = Format_;
    using Operand = OperandFormat<Format>;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kRowTiles = kRowTiles_;  // tiles of 8 query heads
    static constexpr bool kMasksTail = kMasksTail_;
    static constexpr int kRows = 8 * kRowTiles;
    static constexpr int kWarps = kHeadDim / 32;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kLeafTiles = kLeafTokens / kTileTokens;
    static constexpr int kTilesPerWarp = kLeafTiles / kWarps;
    static constexpr int kWordsPerStep = Operand::kElementBytes;  // registers per k-step: 4 stored elements
    // Vectors of 16 bytes that a lane loads of one tile, of K and of V.
    static constexpr int kKeyVectors = kHeadDim * Operand::kElementBytes / 32;
    static constexpr int kValueVectors = Operand::kElementBytes;
    static constexpr int kStepsPerVector = 4 / kWordsPerStep;
    // What is in flight: vectors of K, all along a warp's tiles, and tiles of V.
    static constexpr int kKeyBatch = 8 / Operand::kElementBytes;
    static constexpr int kValueTiles = 8 / kValueVectors;
    static constexpr int kValues = 8 * kRowTiles;  // numerators of a thread
    // How far the loops over K and V are unrolled. FP16 has no words to take apart, so its code is short. As a loop it
    // would need more registers than there are.
    static constexpr int kUnroll = Operand::kElementBytes == 1 ? 1 : 4;
    // Whether V is loaded before the weights are made. FP16's scores leave no registers for that.
    static constexpr bool kLoadsValuesEarly = Operand::kElementBytes == 1 || kRowTiles > 1;
};

// All dynamic shared memory except the stack, which follows.
template <typename S>
struct XqaShared {
    // Q as A fragments: [row tile][k-step pair of a half][row][half] x two k-steps.
    uint4 q[S::kRowTiles][S::kHeadDim / 16][8][2];
    // Weights as A fragments: [row tile][tile pair][row][quad-pair] x two tiles of 4 keys.
    uint4 high[S::kRowTiles][S::kLeafTiles / 2][8][4];
    uint4 residual[S::kRowTiles][S::kLeafTiles / 2][8][4];
    float maximum[S::kRows][S::kWarps];
    float sum[S::kRows][S::kWarps];
    // A ring with the addresses of the tiles of leaves. While one warp writes those of the next leaf, another may still
    // read those of the last one, so three stages are needed. With four a leaf's number gives its stage.
    const uint8_t* key_tiles[kTileStages][S::kLeafTiles];
    const uint8_t* value_tiles[kTileStages][S::kLeafTiles];
    int32_t totals[kMaxUnitLevels];
};

template <typename S>
struct XqaBlock {
    const DecodeParams& p;
    XqaShared<S>& shared;
    const Lane lane;
    const uint32_t warp;
    const bool wide;  // loads of 16 bytes, else of 8

    __device__ __forceinline__ XqaBlock(const DecodeParams& params, XqaShared<S>& block_shared)
        : p(params), shared(block_shared), warp(threadIdx.x / 32), wide(params.kv.alignment == 16) {}

    // Dimension of value i, even i; that of value i + 1 is the next one.
    __device__ __forceinline__ uint32_t dimension_of(uint32_t i) const {
        const uint32_t column = lane.accumulator_column(i), tile = lane.quad_pair;
        const uint32_t in_warp = S::kValueVectors == 1
                                     ? 16 * (column >> 2) + 4 * tile + (column & 3)
                                     : 16 * (tile >> 1) + 8 * (column >> 2) + 4 * (tile & 1) + (column & 3);
        return 32 * warp + in_warp;
    }

    // Keys of the row from the leaf's first one on: negative past the row, more than a leaf's before its last leaf.
    __device__ __forceinline__ static int32_t live_keys(const WorkUnit& unit, uint32_t leaf) {
        return unit.length - static_cast<int32_t>(leaf * kLeafTokens);
    }

    // Whether every load of a leaf is live and 16-byte aligned.
    __device__ __forceinline__ bool is_whole(int32_t live) const {
        return wide && live >= static_cast<int32_t>(kLeafTokens);
    }

    __device__ __forceinline__ float output_scale() const {
        return resolve_scale(p.kv.v_scale, p.kv.v_device_scale) * S::Operand::kInverseScale;
    }
};

}  // namespace sm70::decode
