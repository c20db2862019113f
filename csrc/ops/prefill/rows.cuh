// The rows of a block: output, maximum and sum in registers, partial states in the workspace, outputs.
#pragma once

#include <cuda_fp16.h>

#include "device/mma.cuh"
#include "device/softmax_state.cuh"
#include "device/tile.cuh"
#include "ops/prefill/traits.cuh"
#include "ops/prefill/work_items.cuh"

namespace sm70::prefill {

template <typename T>
class Rows {
 public:
    __device__ __forceinline__ explicit Rows(const PrefillParams& p) : p_(p), warp_(threadIdx.x / 32) {}

    // Merges the partial states of a tile's parts, in their order, and stores the rows.
    __device__ __forceinline__ void combine(WorkItem item) {
        const Sequence sequence = sequence_of(p_, item.sequence);
        if (item.first_row >= packed_rows(p_, sequence)) return;
        clear_output();
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            maximum_[row] = kNoScore;
            sum_[row] = 0.0f;
        }
        for (int32_t part = 0; part < p_.splits; ++part) {
            float correction[4], scale[4];
#pragma unroll
            for (int row = 0; row < 4; ++row) {
                const float2 other = denominators_of(item.partial_state + part)[row_in_tile(row)];
                const float maximum = fmaxf(maximum_[row], other.x);
                correction[row] = weight_of(maximum_[row], maximum);
                scale[row] = weight_of(other.x, maximum);
                sum_[row] *= correction[row];
                sum_[row] = __fmaf_rn(other.y, scale[row], sum_[row]);
                maximum_[row] = maximum;
            }
            rescale_output(correction);
            add_partial_state(item.partial_state + part, scale);
        }
        store_rows(item, sequence);
    }

 protected:
    // Weight of a score in a row of this maximum; both are as the products gave them, without the softmax scale.
    __device__ __forceinline__ float weight_of(float score, float maximum) const {
        return exp2_approximate((score - maximum) * p_.softmax_scale_log2);
    }

    __device__ __forceinline__ uint32_t row_in_tile(int row) const {
        return 16 * warp_ + 8 * (row / 2) + lane_.accumulator_row + 2 * (row % 2);
    }

    __device__ __forceinline__ void rescale_output(const float (&correction)[4]) {
        for_each_element(output_, [&](float& o, int m, int, int i) { o *= correction[2 * m + (i & 2) / 2]; });
    }

    // --- output

    __device__ __forceinline__ void clear_output() {
        for_each_element(output_, [](float& o, int, int, int) { o = 0.0f; });
    }

    // Numerators of a partial state, in the order of threads: accesses are contiguous, and a thread reads back only its
    // own.
    __device__ __forceinline__ float4* numerators_of(int32_t partial_state) const {
        return reinterpret_cast<float4*>(p_.partial_states + partial_state * partial_state_floats(T::kHeadDim)) +
               threadIdx.x;
    }

    // Maximum and sum of the rows of a partial state.
    __device__ __forceinline__ float2* denominators_of(int32_t partial_state) const {
        return reinterpret_cast<float2*>(p_.partial_states + partial_state * partial_state_floats(T::kHeadDim) +
                                         kTileRows * T::kHeadDim);
    }

    // output += numerators x scale of their row.
    __device__ __forceinline__ void add_partial_state(int32_t partial_state, const float (&scale)[4]) {
        const float4* numerators = numerators_of(partial_state);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * T::kValueVectors; ++n) {
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const float4 old = numerators[((m * 2 * T::kValueVectors + n) * 2 + four) * kThreads];
                    float* o = &output_[m][n][4 * four];
                    o[0] = __fmaf_rn(old.x, scale[2 * m], o[0]);
                    o[1] = __fmaf_rn(old.y, scale[2 * m], o[1]);
                    o[2] = __fmaf_rn(old.z, scale[2 * m + 1], o[2]);
                    o[3] = __fmaf_rn(old.w, scale[2 * m + 1], o[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void store_partial_state(int32_t partial_state) const {
        float4* numerators = numerators_of(partial_state);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * T::kValueVectors; ++n) {
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const float* o = &output_[m][n][4 * four];
                    numerators[((m * 2 * T::kValueVectors + n) * 2 + four) * kThreads] =
                        make_float4(o[0], o[1], o[2], o[3]);
                }
            }
        }
        if (lane_.leads_its_rows()) {
#pragma unroll
            for (int row = 0; row < 4; ++row) {
                denominators_of(partial_state)[row_in_tile(row)] = make_float2(maximum_[row], sum_[row]);
            }
        }
    }

    // Adds what was folded before, rescaled from the maxima that were stored with it.
    __device__ __forceinline__ void add_folded(int32_t partial_state) {
        __syncwarp();
        float scale[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            scale[row] = weight_of(denominators_of(partial_state)[row_in_tile(row)].x, maximum_[row]);
        }
        add_partial_state(partial_state, scale);
        __syncwarp();
    }

    // output_, maximum_ and sum_ to out and lse.
    __device__ __forceinline__ void store_rows(const WorkItem& item, const Sequence& sequence) const {
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int32_t packed = item.first_row + static_cast<int32_t>(row_in_tile(row));
            if (packed >= packed_rows(p_, sequence)) continue;
            const int m = row / 2, second = 2 * (row % 2);
            const uint32_t query = p_.group.divide(packed), head_in_group = p_.group.remainder(packed, query);
            const int64_t token = sequence.first_query + static_cast<int64_t>(query);
            const int64_t head = static_cast<int64_t>(item.head) * p_.group.divisor + head_in_group;
            uint16_t* out = p_.out + token * p_.out_token_stride + head * p_.out_head_stride;
            const float factor = sum_[row] > 0.0f ? __fdividef(1.0f, sum_[row]) : sum_[row];  // zero without keys; NaN
#pragma unroll
            for (int n = 0; n < 2 * T::kValueVectors; ++n) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if ((i & 2) != second) continue;
                    const uint32_t column = lane_.accumulator_column(i);
                    const uint32_t dimension =
                        64 * (n / 2) + 16 * lane_.quad_pair + 8 * (column >> 2) + 4 * (n % 2) + (column & 3);
                    out[dimension] = __half_as_ushort(__float2half_rn(output_[m][n][i] * factor));
                }
            }
            if (p_.lse != nullptr && lane_.leads_its_rows()) {
                constexpr float kLn2 = 0.693147180559945309f;
                p_.lse[token * p_.lse_token_stride + head * p_.lse_head_stride] =
                    __fmaf_rn(maximum_[row], p_.softmax_scale_log2, __log2f(sum_[row]) - kWeightLog2) * kLn2;
            }
        }
    }

    const PrefillParams& p_;
    const Lane lane_;
    const uint32_t warp_;
    float output_[2][2 * T::kValueVectors][8];
    float maximum_[4],
        sum_[4];  // of rows row_in_tile(0..3), of unscaled scores; sums of the lane's own keys until the end
};

}  // namespace sm70::prefill
