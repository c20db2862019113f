// The two products of prefill, by the tensor cores: scores from Q and K, output from weights and V.
#pragma once

#include "device/mma.cuh"
#include "device/registers.cuh"
#include "device/tile.cuh"
#include "ops/prefill/rows.cuh"
#include "ops/prefill/shared.cuh"

namespace sm70::prefill {

// Scores of a warp: four times 32 keys, two times 8 rows.
using Scores = float[4][2][8];
// Weights of 32 keys as A fragments.
using Weights = uint32_t[2][4];

template <typename T>
class Products : protected Rows<T> {
    using Base = Rows<T>;

 protected:
    using Base::lane_, Base::output_, Base::warp_;

    __device__ __forceinline__ Products(const PrefillParams& p, const SharedMemory<T>& shared)
        : Base(p),
          key_(shared.ring + key_vector(8 * lane_.quad_pair + lane_.operand_row, 0)),
          value_(shared.ring + value_vector<T>(lane_.quad, 2 * lane_.quad_pair + lane_.upper)),
          query_(shared.query + query_vector(16 * warp_ + lane_.operand_row, 0)) {}

    // Adds 16 of the 32 dimensions of a K slice.
    __device__ __forceinline__ void add_scores(Scores& scores, int slice, int half) const {
#pragma unroll
        for (int vector = 2 * half; vector < 2 * half + 2; ++vector) {
            uint4 a[2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                a[m] = query_[query_vector(8 * m, 4 * slice + vector)];
            }
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const uint4 b = key_[stage_of(slice) + static_cast<int>(key_vector(32 * t, vector))];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    mma_row_col(scores[t][m], {a[m].x, a[m].y}, {b.x, b.y});
                    mma_row_col(scores[t][m], {a[m].z, a[m].w}, {b.z, b.w});
                }
            }
        }
    }

    // Adds four keys, number `step` of the tile's; `weights` are those of the 32 keys around them.
    __device__ __forceinline__ void add_values(const Weights& weights, int step) {
        const int slice = T::kKeySlices + 4 * step / T::kValueKeys, in_slice = step % (T::kValueKeys / 4);
        // The keys are those of quad-pair step / 2 % 4, in its first or second half.
        const int half = step % 2, source = static_cast<int>((forgotten(lane_.index) & 0x13) | (step / 2 % 4) << 2);
        HalfFragment a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            a[m].low = __shfl_sync(kFullWarp, weights[m][2 * half], source);
            a[m].high = __shfl_sync(kFullWarp, weights[m][2 * half + 1], source);
        }
#pragma unroll
        for (int i = 0; i < T::kValueVectors; ++i) {
            const uint4 b = value_[stage_of(slice) + static_cast<int>(value_vector<T>(4 * in_slice, 8 * i))];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                mma_row_row(output_[m][2 * i], a[m], {b.x, b.y});
                mma_row_row(output_[m][2 * i + 1], a[m], {b.z, b.w});
            }
        }
    }

 private:
    const uint4 *const key_, *const value_, *const query_;  // of the lane, in shared memory
};

}  // namespace sm70::prefill
