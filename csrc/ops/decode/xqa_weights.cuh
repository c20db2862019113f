// Weights of xqa: a leaf's scores become P = 2^(S - maximum of the leaf), with maxima and sums over all warps.
#pragma once

#include "ops/decode/xqa_scores.cuh"

namespace sm70::decode {

// Of the lane's two rows in each row tile.
template <typename S>
using XqaRowValues = float[S::kRowTiles][2];

// Maxima of the lane's rows over the warp's keys, to shared memory.
template <typename S>
__device__ __forceinline__ void store_maxima(const XqaBlock<S>& block, const typename XqaScores<S>::Scores& scores) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float maximum = fmaxf(scores[0][r][2 * row], scores[0][r][2 * row + 1]);
#pragma unroll
            for (int i = 1; i < S::kTilesPerWarp; ++i) {
                maximum = fmaxf(maximum, fmaxf(scores[i][r][2 * row], scores[i][r][2 * row + 1]));
            }
            maximum = row_maximum(maximum);
            if (block.lane.leads_its_rows()) block.shared.maximum[8 * r + block.lane.row(row)][block.warp] = maximum;
        }
    }
}

// Maxima over all warps' keys.
template <typename S>
__device__ __forceinline__ void load_maxima(const XqaBlock<S>& block, XqaRowValues<S>& maxima) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const float* of_warps = block.shared.maximum[8 * r + block.lane.row(row)];
            float maximum = of_warps[0];
#pragma unroll
            for (int w = 1; w < S::kWarps; ++w) maximum = fmaxf(maximum, of_warps[w]);
            maxima[r][row] = maximum;
        }
    }
}

// P and its sums over the warp's keys, to shared memory.
template <typename S>
__device__ __forceinline__ void store_weights(const XqaBlock<S>& block, const typename XqaScores<S>::Scores& scores,
                                              const XqaRowValues<S>& maxima) {
    const Lane& lane = block.lane;
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < S::kTilesPerWarp; ++i) {
                const float p0 = exp2_approximate(scores[i][r][2 * row] - maxima[r][row]);
                const float p1 = exp2_approximate(scores[i][r][2 * row + 1] - maxima[r][row]);
                sum += p0 + p1;
                const __half2 high = __floats2half2_rn(p0, p1);
                const __half2 residual = __floats2half2_rn(p0 - __low2float(high), p1 - __high2float(high));
                const uint32_t tile = block.warp * S::kTilesPerWarp + i;
                const uint32_t word = 2 * (tile & 1) + (lane.index & 2) / 2;  // of the uint4
                uint4& high_words = block.shared.high[r][tile / 2][block.lane.row(row)][lane.quad_pair];
                uint4& residual_words = block.shared.residual[r][tile / 2][block.lane.row(row)][lane.quad_pair];
                reinterpret_cast<__half2*>(&high_words)[word] = high;
                reinterpret_cast<__half2*>(&residual_words)[word] = residual;
            }
            sum = row_sum(sum);
            if (block.lane.leads_its_rows()) block.shared.sum[8 * r + block.lane.row(row)][block.warp] = sum;
        }
    }
}

// Denominators of the leaf: maxima as given, sums over all warps' keys.
template <typename S>
__device__ __forceinline__ void load_denominators(const XqaBlock<S>& block, const XqaRowValues<S>& maxima,
                                                  SoftmaxDenominator (&denominators)[S::kRowTiles][2]) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const float* of_warps = block.shared.sum[8 * r + block.lane.row(row)];
            float sum = of_warps[0];
#pragma unroll
            for (int w = 1; w < S::kWarps; ++w) sum += of_warps[w];
            denominators[r][row] = {maxima[r][row], sum};
        }
    }
}

}  // namespace sm70::decode
