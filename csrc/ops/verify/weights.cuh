// Weights of verify: scores become P = 2^(S - running maximum), each a high half and a residual half.
#pragma once

#include "ops/verify/scores.cuh"

namespace sm70::verify {

template <typename S>
class VerifyWeights : protected VerifyScores<S> {
    using Base = VerifyScores<S>;

 protected:
    using Base::Base;
    using Base::shared_, Base::lane_, Base::warp_, Base::scores_of, Base::key_of_scores;

    // Raises the running maxima to those of the leaf. The result is the factor by which each row's earlier sums and
    // numerators shrink; 0 for a row without earlier keys.
    __device__ __forceinline__ PerRow<S::kRows> advance(PerRow<S::kRows>& maximum) const {
        PerRow<S::kRows> decay;
#pragma unroll
        for (int i = 0; i < PerRow<S::kRows>::kOwned; ++i) {
            const uint32_t row = min(32 * i + lane_.index, S::kRows - 1u);
            float raised = maximum.owned[i];
#pragma unroll
            for (int w = 0; w < S::kWarps; ++w) raised = fmaxf(raised, shared_.maxima[w][row]);
            decay.owned[i] = exp2_approximate(maximum.owned[i] - reference(raised));
            maximum.owned[i] = raised;
        }
        return decay;
    }

    // P and its sums, to shared memory.
    __device__ __forceinline__ void store_weights(const PerRow<S::kRows>& maximum, const PerRow<S::kRows>& decay) {
        // All loads come before the first store: the compiler cannot know that they do not overlap.
        float tops[2 * S::kRowTiles], sums[2 * S::kRowTiles];
        PerRow<S::kRows> references;
#pragma unroll
        for (int i = 0; i < PerRow<S::kRows>::kOwned; ++i) references.owned[i] = reference(maximum.owned[i]);
#pragma unroll
        for (int i = 0; i < 2 * S::kRowTiles; ++i) {
            tops[i] = references.of(8 * (i / 2), lane_.row(i % 2));
            sums[i] = __fmul_rn(shared_.sums[i][threadIdx.x], decay.of(8 * (i / 2), lane_.row(i % 2)));
        }
#pragma unroll
        for (int tile = 0; tile < S::kTilesPerWarp; ++tile) {
            float4 scores[S::kRowTiles];
#pragma unroll
            for (int r = 0; r < S::kRowTiles; ++r) scores[r] = scores_of(tile, r);
            const uint32_t key = (warp_ * S::kTilesPerWarp + tile) * kTileTokens + key_of_scores();
            auto& step = shared_.weights[key / 4];
#pragma unroll
            for (int r = 0; r < S::kRowTiles; ++r) {
                store_pair(step.rows[8 * r + lane_.row(0)], scores[r].x, scores[r].y, tops[2 * r], sums[2 * r]);
                store_pair(step.rows[8 * r + lane_.row(1)], scores[r].z, scores[r].w, tops[2 * r + 1], sums[2 * r + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * S::kRowTiles; ++i) shared_.sums[i][threadIdx.x] = sums[i];
    }

 private:
    // What is subtracted from scores. Minus infinity would make NaN of scores that are minus infinity too.
    __device__ __forceinline__ static float reference(float maximum) {
        return maximum == negative_infinity() ? 0.0f : maximum;
    }

    // With a residual the high half is truncated: that needs no instruction of the slow XU pipe, and the residual makes
    // up for it.
    __device__ __forceinline__ static __half2 high_halves(float p0, float p1) {
        if constexpr (!S::Numerics::kResidual) return __floats2half2_rn(p0, p1);
        return __halves2half2(__float2half_rz(p0), __float2half_rz(p1));
    }

    // The weights of one row and two keys.
    __device__ __forceinline__ void store_pair(uint4& place, float score0, float score1, float top, float& sum) const {
        const float p0 = exp2_approximate(__fsub_rn(score0, top)), p1 = exp2_approximate(__fsub_rn(score1, top));
        sum = __fadd_rn(sum, __fadd_rn(p0, p1));
        const __half2 high = high_halves(p0, p1);
        const float r0 = __fmul_rn(__fsub_rn(p0, __low2float(high)), 2048.0f);
        const float r1 = __fmul_rn(__fsub_rn(p1, __high2float(high)), 2048.0f);
        const __half2 residual = __floats2half2_rn(r0, r1);
        // Half of the lanes store the residual first, so that the 32 stores go to 32 banks (Step::padding).
        const bool swapped = lane_.quad_pair >= 2;
        auto* words = reinterpret_cast<__half2*>(&place) + (lane_.index & 2) / 2;
        words[swapped ? 2 : 0] = swapped ? residual : high;
        words[swapped ? 0 : 2] = swapped ? high : residual;
    }
};

}  // namespace sm70::verify
