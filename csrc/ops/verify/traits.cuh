// Sizes, shared memory and lane maps of the verify kernels: what scores, weights and values agree on.
#pragma once

#include "device/paged_kv.cuh"
#include "device/tile.cuh"
#include "ops/verify/numerics.cuh"
#include "ops/verify/params.h"
#include "ops/verify/pass_chunks.cuh"
#include "ops/verify/special_bytes.cuh"

namespace sm70::verify {

template <typename Format_, int kHeadDim_, int kRowTiles_, typename Numerics_>
struct Traits {
    using Format = Format_;
    using Operand = OperandFormat<Format>;
    using Special = SpecialBytes<Format>;
    using Numerics = Numerics_;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kRowTiles = kRowTiles_;  // tiles of 8 rows: 2, 4 or 6
    static constexpr int kRows = 8 * kRowTiles;
    static constexpr int kMostChunks = Numerics::kValueSums == ValueSums::kLongLived ? 1 : most_chunks(kHeadDim);
    static constexpr int kWarps = kHeadDim / 32;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kLeafTiles = kLeafTokens / kTileTokens;
    static constexpr int kTilesPerWarp = kLeafTiles / kWarps;  // of the scores
    static constexpr int kKeySectors = kHeadDim / 32;          // of a key
    static constexpr int kStagedKeys = 8;                      // vectors of K, per leaf and thread
    static constexpr int kSteps = kLeafTokens / 4;             // k-steps of the values
    static constexpr int kTileSteps = kTileTokens / 4;
    static constexpr int kFreshTiles = 2;            // 32 keys: what fresh accumulators take
    static constexpr int kRowPairs = kRowTiles / 2;  // of row tiles: what one instruction of the values takes
    // Scores of a thread, in fours. Where they take no more room than its K, they take the place of K.
    static constexpr int kScores = kTilesPerWarp * kRowTiles;
    static constexpr bool kScoresReplaceKeys = scores_replace_keys(kHeadDim);
    static_assert(kTilesPerWarp * kKeySectors == kStagedKeys && kStagedKeys == kLeafTiles && kRowTiles % 2 == 0);
    static_assert(!kScoresReplaceKeys || kScores <= kStagedKeys);
};

template <typename S>
struct VerifyShared {
    // Q as A fragments: [row tile][eight dimensions of a load][lane] x two k-steps.
    uint4 q[S::kRowTiles][S::kHeadDim / 32][32];
    // Weights as A fragments: of a row and four keys the high halves, then the residual ones. The padding keeps the
    // k-steps and rows that a store goes to in different banks.
    struct Step {
        uint4 rows[S::kRows];
        uint4 padding;
    } weights[S::kSteps];
    uint4 keys[S::kStagedKeys][S::kThreads];  // K of the next leaf, by the thread that will use it; then its scores
    float4 scores[S::kScoresReplaceKeys ? 1 : S::kScores][S::kScoresReplaceKeys ? 1 : S::kThreads];
    float sums[2 * S::kRowTiles][S::kThreads];  // of the weights of a thread's keys, by its rows
    float maxima[S::kWarps][S::kRows];
    int32_t lengths[S::kRows];                   // 0: not a row of this pass
    const uint8_t* key_tiles[2][S::kLeafTiles];  // by the parity of the leaf
    const uint8_t* value_tiles[2][S::kLeafTiles];
    PassChunk chunk;
    CursorPlace cursor;
    int32_t is_last;
    int32_t first_special;  // key with a byte that makes results NaN
    int32_t padding;
};

// One number per row, kept once in each warp: that of row r by lane r mod 32.
template <int kRows>
struct PerRow {
    static constexpr int kOwned = (kRows + 31) / 32;
    float owned[kOwned];

    // All lanes call it for the same 32 rows, each lane for one of them.
    __device__ __forceinline__ float of(uint32_t first, uint32_t in_tile) const {
        return __shfl_sync(kFullWarp, owned[first / 32], static_cast<int>((first + in_tile) & 31));
    }
};

}  // namespace sm70::verify
