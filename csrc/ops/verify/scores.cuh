// Scores of verify: the products of Q and K, and their maxima.
#pragma once

#include "ops/verify/inputs.cuh"

namespace sm70::verify {

template <typename S>
class VerifyScores : protected VerifyInputs<S> {
    using Base = VerifyInputs<S>;

 protected:
    using Base::Base;
    using Base::key_in_tile;
    using Base::shared_, Base::lane_, Base::warp_, Base::score_scale_, Base::mark_special;

    // Where a thread keeps its four scores of a row tile until it makes weights of them.
    __device__ __forceinline__ float4& scores_of(int tile, int row_tile) {
        if constexpr (S::kScoresReplaceKeys) return reinterpret_cast<float4&>(shared_.keys[row_tile][threadIdx.x]);
        return shared_.scores[tile * S::kRowTiles + row_tile][threadIdx.x];
    }

    // Scores of all rows and the 16 keys of a tile, from K in shared memory; minus infinity past each row's length.
    // Also their maxima.
    __device__ __forceinline__ void score_tile(uint32_t leaf, int tile, bool masked) {
        constexpr Compensation kCompensation = S::Numerics::kCompensation;
        HalfFragment keys[2][S::kKeySectors][2];
        uint32_t special[2] = {0, 0};
#pragma unroll
        for (int sector = 0; sector < S::kKeySectors; ++sector) {
            const uint4 stored = shared_.keys[tile * S::kKeySectors + sector][threadIdx.x];
            const uint32_t words[2][2] = {{stored.x, stored.y}, {stored.z, stored.w}};
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
                for (int w = 0; w < 2; ++w) {
                    special[t] |= S::Special::find(words[t][w]);
                    keys[t][sector][w] = S::Operand::operand(&words[t][w]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            if ((special[t] & kSpecialBits) == 0) continue;
            mark_special(leaf * kLeafTokens + (warp_ * S::kTilesPerWarp + tile) * kTileTokens + key_in_tile(t));
        }
        // A loop over row tiles: unrolled, the code would not fit the instruction cache. The exchanges of one tile run
        // beside the products of the next.
        ScoreSums<kCompensation> even[2], odd[2];
        multiply(0, keys, even);
#pragma unroll 1
        for (int r = 1; r + 1 < S::kRowTiles; r += 2) {
            multiply(r, keys, odd);
            finish_scores(leaf, tile, r - 1, masked, even);
            multiply(r + 1, keys, even);
            finish_scores(leaf, tile, r, masked, odd);
        }
        multiply(S::kRowTiles - 1, keys, odd);
        finish_scores(leaf, tile, S::kRowTiles - 2, masked, even);
        finish_scores(leaf, tile, S::kRowTiles - 1, masked, odd);
    }

    // Key, in the warp's tile of 16, of a lane's scores 0 and 2. Scores 1 and 3 are of the next key.
    __device__ __forceinline__ uint32_t key_of_scores() const {
        return 8 * (lane_.quad_pair & 1) + 4 * (lane_.quad_pair >> 1) + (lane_.index & 2);
    }

 private:
    // The products of a row tile and 16 keys. Each quad-pair has sums over its own dimensions.
    __device__ __forceinline__ void multiply(int r, const HalfFragment (&keys)[2][S::kKeySectors][2],
                                             ScoreSums<S::Numerics::kCompensation> (&sums)[2]) const {
#pragma unroll
        for (int sector = 0; sector < S::kKeySectors; sector += 2) {
            const uint4 a = shared_.q[r][sector][lane_.index], b = shared_.q[r][sector + 1][lane_.index];
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const auto product = [&](float(&accumulator)[8]) {
                    mma_row_col(accumulator, {a.x, a.y}, keys[t][sector][0]);
                    mma_row_col(accumulator, {a.z, a.w}, keys[t][sector][1]);
                    mma_row_col(accumulator, {b.x, b.y}, keys[t][sector + 1][0]);
                    mma_row_col(accumulator, {b.z, b.w}, keys[t][sector + 1][1]);
                };
                if (sector == 0) {
                    sums[t].start(product);
                } else {
                    sums[t].add(product);
                }
            }
        }
    }

    // Scores from the sums of the four quad-pairs.
    __device__ __forceinline__ void finish_scores(uint32_t leaf, int tile, int r, bool masked,
                                                  const ScoreSums<S::Numerics::kCompensation> (&sums)[2]) {
        constexpr Compensation kCompensation = S::Numerics::kCompensation;
        // Quad-pairs 2 i and 2 i + 1 exchange tiles of keys, then the two pairs exchange halves of the columns.
        float half[8], half_excess[8], scores[4];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            half[i] = sums[0].values[i];
            half_excess[i] = sums[0].excess[i];
            join<kCompensation>(half[i], half_excess[i], exchange(sums[1].values[i], 4),
                                exchange_excess(sums[1].excess[i], 4));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            join<kCompensation>(half[i], half_excess[i], exchange(half[i + 4], 8),
                                exchange_excess(half_excess[i + 4], 8));
            const float sum = kCompensation == Compensation::kKahan ? __fsub_rn(half[i], half_excess[i]) : half[i];
            scores[i] = __fmul_rn(sum, score_scale_);
        }
        if (masked) {
            const int32_t key = static_cast<int32_t>(leaf * kLeafTokens +
                                                     (warp_ * S::kTilesPerWarp + tile) * kTileTokens + key_of_scores());
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (key + i % 2 >= shared_.lengths[8 * r + lane_.row(i / 2)]) scores[i] = negative_infinity();
            }
        }
        scores_of(tile, r) = make_float4(scores[0], scores[1], scores[2], scores[3]);
        // Lanes n and n ^ 2 have the same two rows: each takes the maximum of one of them.
        const bool second = (lane_.index & 2) != 0;
        const float maxima[2] = {fmaxf(scores[0], scores[1]), fmaxf(scores[2], scores[3])};
        float maximum = fmaxf(second ? maxima[1] : maxima[0], exchange(second ? maxima[0] : maxima[1], 2));
        maximum = fmaxf(maximum, exchange(maximum, 4));
        maximum = fmaxf(maximum, exchange(maximum, 8));
        if (lane_.quad_pair == 0) {
            float& place = shared_.maxima[warp_][8 * r + lane_.row(second)];
            place = tile == 0 ? maximum : fmaxf(maximum, place);
        }
    }

    __device__ __forceinline__ static float exchange_excess(float value, int distance) {
        if constexpr (S::Numerics::kCompensation == Compensation::kKahan) return exchange(value, distance);
        return value;
    }
};

}  // namespace sm70::verify
