// Values of xqa: the products of a leaf's weights and V.
#pragma once

#include "device/load.cuh"
#include "ops/decode/xqa_traits.cuh"

namespace sm70::decode {

template <typename S>
class XqaValues {
 public:
    using ValueVectors = uint4[S::kValueTiles * S::kValueVectors];
    using Numerators = float[S::kRowTiles][8];

    // Tiles first .. first + kValueTiles - 1 of the leaf.
    __device__ __forceinline__ static void load_values(const XqaBlock<S>& block, const WorkUnit& unit, uint32_t leaf,
                                                       uint32_t first, ValueVectors& stored) {
        const uint8_t* const* tiles = block.shared.value_tiles[leaf % kTileStages];
        const Lane& lane = block.lane;
        const int32_t live = block.live_keys(unit, leaf);
        const uint32_t key = 4 * lane.quad_pair + lane.quad;
        const auto offset =
            key * block.p.kv.v.token_bytes + 32 * block.warp * S::Operand::kElementBytes + 16 * lane.upper;
        load_16_bytes_each(
            stored, block.is_whole(live), block.wide,
            [&](int i) { return tiles[first + i / S::kValueVectors] + offset + 32 * (i % S::kValueVectors); },
            [&](int i) {
                const uint32_t tile = first + i / S::kValueVectors;
                return static_cast<int32_t>(tile * kTileTokens + (S::kMasksTail ? key : 0)) < live;
            });
    }

    // Numerators of the leaf over the warp's 32 dimensions. The first tiles of V are loaded.
    __device__ __forceinline__ static void add_values(const XqaBlock<S>& block, const WorkUnit& unit, uint32_t leaf,
                                                      ValueVectors& stored, Numerators& numerators, uint32_t& nan) {
        float sums[S::kRowTiles][4][8] = {};                             // [row tile][tile of 8 dimensions]
        constexpr int kTiles = 4, kVectors = kTiles * S::kValueVectors;  // of an iteration
#pragma unroll S::kUnroll
        for (uint32_t first = 0; first < S::kLeafTiles; first += kTiles) {
#pragma unroll
            for (int pair = 0; pair < kTiles / 2; ++pair) {
                add_tile_pair(block, first / 2 + pair, stored + 2 * pair * S::kValueVectors, sums, nan);
            }
            if (first + kTiles < S::kLeafTiles) {
                if constexpr (S::kValueTiles > kTiles) {
#pragma unroll
                    for (int i = 0; i < kVectors; ++i) stored[i] = stored[kVectors + i];
                } else {
                    load_values(block, unit, leaf, first + kTiles, stored);
                }
            }
        }
        add_quad_pairs(block, sums, numerators);
    }

 private:
    // Two tiles of keys, number `pair` of the leaf.
    __device__ __forceinline__ static void add_tile_pair(const XqaBlock<S>& block, uint32_t pair, const uint4* stored,
                                                         float (&sums)[S::kRowTiles][4][8], uint32_t& nan) {
        HalfFragment values[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t words[4 * S::kValueVectors];
#pragma unroll
            for (int i = 0; i < S::kValueVectors; ++i) {
                const uint4 vector = stored[h * S::kValueVectors + i];
                words[4 * i] = vector.x;
                words[4 * i + 1] = vector.y;
                words[4 * i + 2] = vector.z;
                words[4 * i + 3] = vector.w;
            }
#pragma unroll
            for (int n = 0; n < 4; ++n) values[h][n] = S::Operand::operand(words + n * S::kWordsPerStep);
            if constexpr (S::Operand::kLosesNan) {
#pragma unroll
                for (int w = 0; w < 4; ++w) nan |= S::Operand::nan_bits(words[w]);
            }
        }
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
            const uint4 high = block.shared.high[r][pair][block.lane.operand_row][block.lane.quad_pair];
            const uint4 residual = block.shared.residual[r][pair][block.lane.operand_row][block.lane.quad_pair];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                mma_row_row(sums[r][n], {high.x, high.y}, values[0][n]);
                mma_row_row(sums[r][n], {residual.x, residual.y}, values[0][n]);
                mma_row_row(sums[r][n], {high.z, high.w}, values[1][n]);
                mma_row_row(sums[r][n], {residual.z, residual.w}, values[1][n]);
            }
        }
    }

    // Quad-pairs have different keys. Their sums are added up, those of dimension tile n in quad-pair n.
    __device__ __forceinline__ static void add_quad_pairs(const XqaBlock<S>& block,
                                                          const float (&sums)[S::kRowTiles][4][8],
                                                          Numerators& numerators) {
        const uint32_t quad_pair = block.lane.quad_pair;
        const bool upper_pair = (quad_pair & 2) != 0, odd = (quad_pair & 1) != 0;
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float two[2];
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const auto halves = exchange_halves(sums[r][n][i], sums[r][n + 2][i], upper_pair, 8);
                    two[n] = halves.kept + halves.received;
                }
                numerators[r][i] = (odd ? two[1] : two[0]) + exchange(odd ? two[0] : two[1], 4);
            }
        }
    }
};

}  // namespace sm70::decode
