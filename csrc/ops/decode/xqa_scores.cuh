// Scores of xqa: the products of Q and a leaf's K.
#pragma once

#include "device/load.cuh"
#include "ops/decode/xqa_traits.cuh"

namespace sm70::decode {

template <typename S>
class XqaScores {
 public:
    // [tile of the warp][row tile] x the lane's rows 0, 0, 1, 1, two neighbouring keys of each.
    using Scores = float[S::kTilesPerWarp][S::kRowTiles][4];
    using KeyVectors = uint4[S::kKeyBatch];

    __device__ __forceinline__ explicit XqaScores(const XqaBlock<S>& block) {
        const DecodeParams& p = block.p;
        scale_ = p.softmax_scale_log2 * resolve_scale(p.kv.k_scale, p.kv.k_device_scale) * S::Operand::kInverseScale;
    }

    // Vectors first .. first + kKeyBatch - 1 of the warp's tiles.
    __device__ __forceinline__ void load_keys(const XqaBlock<S>& block, const WorkUnit& unit, uint32_t leaf,
                                              uint32_t first, KeyVectors& stored) const {
        const uint8_t* const* tiles = block.shared.key_tiles[leaf % kTileStages];
        const Lane& lane = block.lane;
        const int32_t live = block.live_keys(unit, leaf);
        const uint32_t key = forgotten(lane.operand_row) + 8 * (lane.quad_pair >> 1);
        const auto offset = key * block.p.kv.k.token_bytes + 16 * (lane.quad_pair & 1) + 32 * (first % S::kKeyVectors);
        const uint32_t first_tile = block.warp * S::kTilesPerWarp + first / S::kKeyVectors;
        load_16_bytes_each(
            stored, block.is_whole(live), block.wide,
            [&](int i) { return tiles[first_tile + i / S::kKeyVectors] + offset + 32 * (i % S::kKeyVectors); },
            [&](int i) {
                const uint32_t tile = first_tile + i / S::kKeyVectors;
                return static_cast<int32_t>(tile * kTileTokens + (S::kMasksTail ? key : 0)) < live;
            });
    }

    // Scores of the warp's tiles, scaled; minus infinity past the length. The first batch of K is loaded. An iteration
    // takes four vectors: what a warp executes per leaf should be little more than the 12 KB of code that a sub-core
    // keeps.
    __device__ __forceinline__ void score_tiles(const XqaBlock<S>& block, const WorkUnit& unit, uint32_t leaf,
                                                KeyVectors& stored, Scores& scores, uint32_t& nan) {
        constexpr int kVectors = 4, kAllVectors = S::kTilesPerWarp * S::kKeyVectors;
        constexpr int kTiles = S::kKeyVectors < kVectors ? kVectors / S::kKeyVectors : 1;  // that are finished at once
        const int32_t live = block.live_keys(unit, leaf);
        clear_sums();
#pragma unroll S::kUnroll
        for (uint32_t first = 0; first < kAllVectors; first += kVectors) {
            float finished[kTiles][S::kRowTiles][4];
#pragma unroll
            for (int vector = 0; vector < kVectors; vector += 2) {
                add_products(block, &block.shared.q[0][first % S::kKeyVectors * (S::kStepsPerVector / 2)],
                             vector % S::kKeyVectors, stored[vector], stored[vector + 1], nan);
                if ((vector + 2) % S::kKeyVectors == 0) {
                    const int tile = vector / S::kKeyVectors;
                    finish_scores(block, live, block.warp * S::kTilesPerWarp + first / S::kKeyVectors + tile,
                                  finished[tile]);
                    clear_sums();
                }
            }
            if constexpr (S::kKeyVectors > kVectors) {
                if ((first + kVectors) % S::kKeyVectors == 0) {
                    finish_scores(block, live, block.warp * S::kTilesPerWarp + first / S::kKeyVectors, finished[0]);
                    clear_sums();
                }
            }
            if ((first + kVectors) % S::kKeyVectors == 0 || S::kKeyVectors <= kVectors) append(finished, scores);
            if (first + kVectors < kAllVectors) {
                if constexpr (S::kKeyBatch > kVectors) {
#pragma unroll
                    for (int i = 0; i < kVectors; ++i) stored[i] = stored[kVectors + i];
                } else {
                    load_keys(block, unit, leaf, first + kVectors, stored);
                }
            }
        }
    }

 private:
    // The newest scores go to the end and push the others forward: all are in order after the last iteration, and no
    // index depends on the iteration.
    template <int kTiles>
    __device__ __forceinline__ static void append(const float (&finished)[kTiles][S::kRowTiles][4], Scores& scores) {
#pragma unroll
        for (int i = 0; i < S::kTilesPerWarp; ++i) {
#pragma unroll
            for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
                for (int j = 0; j < 4; ++j) {
                    const int next = i + kTiles;
                    scores[i][r][j] =
                        next < S::kTilesPerWarp ? scores[next][r][j] : finished[next - S::kTilesPerWarp][r][j];
                }
            }
        }
    }

    // Products of two vectors of K. They are numbers `vector` and `vector` + 1 from the one whose Q is at `query`.
    __device__ __forceinline__ void add_products(const XqaBlock<S>& block, const uint4 (*query)[8][2], int vector,
                                                 const uint4& stored0, const uint4& stored1, uint32_t& nan) {
        const uint32_t half = block.lane.quad_pair & 1;
        // Fresh accumulators: the tensor core truncates every sum. A short chain from zero, added in FP32, keeps that
        // error small.
        float fresh[S::kRowTiles][8] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4& stored = i == 0 ? stored0 : stored1;
            const uint32_t words[4] = {stored.x, stored.y, stored.z, stored.w};
#pragma unroll
            for (int pair = 0; pair < S::kStepsPerVector / 2; ++pair) {
                const int step = 2 * pair * S::kWordsPerStep;
                const HalfFragment b0 = S::Operand::operand(words + step);
                const HalfFragment b1 = S::Operand::operand(words + step + S::kWordsPerStep);
#pragma unroll
                for (int r = 0; r < S::kRowTiles; ++r) {
                    const int query_pair = r * (S::kHeadDim / 16) + (vector + i) * (S::kStepsPerVector / 2) + pair;
                    const uint4 a = query[query_pair][block.lane.operand_row][half];
                    mma_row_col(fresh[r], {a.x, a.y}, b0);
                    mma_row_col(fresh[r], {a.z, a.w}, b1);
                }
            }
            if constexpr (S::Operand::kLosesNan) {
#pragma unroll
                for (int w = 0; w < 4; ++w) nan |= S::Operand::nan_bits(words[w]);
            }
        }
        for_each_element(sums_, [&](float& sum, int r, int i) { sum += fresh[r][i]; });
    }

    __device__ __forceinline__ void clear_sums() {
        for_each_element(sums_, [](float& sum, int, int) { sum = 0.0f; });
    }

    // Each lane keeps four of its eight elements and gets the other half of their products. `live` keys of the leaf.
    __device__ __forceinline__ void finish_scores(const XqaBlock<S>& block, int32_t live, uint32_t tile,
                                                  float (&scores)[S::kRowTiles][4]) const {
        live -= static_cast<int32_t>(tile * kTileTokens);
        const Lane& lane = block.lane;
        const uint32_t half = lane.quad_pair & 1;
        const int32_t column = static_cast<int32_t>(4 * lane.quad_pair + (lane.index & 2));
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const auto halves = exchange_halves(sums_[r][i], sums_[r][i + 4], half != 0, 4);
                const float score = (halves.kept + halves.received) * scale_;
                const int32_t position = S::kMasksTail ? column + (i & 1) : 0;
                scores[r][i] = position < live ? score : negative_infinity();
            }
        }
    }

    float scale_;
    float sums_[S::kRowTiles][8];  // of products of the tile whose scores are being made
};

}  // namespace sm70::decode
