// The softmax of prefill: from scores to weights, with running maxima and sums of the block's rows.
#pragma once

#include "device/registers.cuh"
#include "ops/prefill/products.cuh"

namespace sm70::prefill {

template <typename T>
class Softmax : protected Products<T> {
    using Base = Products<T>;

 protected:
    using Base::lane_, Base::maximum_, Base::p_, Base::rescale_output, Base::row_in_tile, Base::sum_, Base::weight_of;

    __device__ __forceinline__ Softmax(const PrefillParams& p, const SharedMemory<T>& shared)
        : Base(p, shared), thread_state_(shared.thread_state) {}

    // Scores of an edge tile: minus infinity for the keys that a row does not see.
    __device__ __forceinline__ void mask(Scores& scores, int32_t number, int32_t first_key) const {
        const WorkItem item = work_item(p_, number);
        const Sequence sequence = sequence_of(p_, item.sequence);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int m = row / 2, second = 2 * (row % 2);
            const int32_t packed = item.first_row + static_cast<int32_t>(row_in_tile(row));
            const int32_t seen = visible_keys(p_, sequence, packed) - first_key;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if ((i & 2) != second) continue;
                    const auto key = static_cast<int32_t>(32 * t + 8 * lane_.quad_pair + lane_.accumulator_column(i));
                    if (key >= seen) scores[t][m][i] = negative_infinity();
                }
            }
        }
    }

    // The running maximum with a tile's scores; output and sums are rescaled to it.
    __device__ __forceinline__ void raise_maximum(const Scores& scores) {
        float correction[4];
        bool changed = false;
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int m = row / 2, second = 2 * (row % 2);
            float largest = kNoScore;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    largest = fmaxf(largest, fmaxf(scores[t][m][second + i], scores[t][m][second + i + 1]));
                }
            }
            const float maximum = fmaxf(maximum_[row], row_maximum(largest));
            correction[row] = weight_of(maximum_[row], maximum);
            changed |= maximum != maximum_[row];
            maximum_[row] = maximum;
        }
        if (__any_sync(kFullWarp, changed)) {
#pragma unroll
            for (int row = 0; row < 4; ++row) sum_[row] *= correction[row];
            rescale_output(correction);
        }
    }

    // Two weights of the lane's own keys, rounded and summed: `number` 0..7 of the 16 scores of 32 keys.
    __device__ __forceinline__ void weigh_pair(const float (&scores)[2][8], int number, uint32_t (&pairs)[8]) {
        const int m = number / 4, second = number / 2 % 2, four = number % 2, row = 2 * m + second;
        const float* s = &scores[m][2 * second + 4 * four];
        // The difference comes first: beside a score of 2^24, the weight shift and the rounding error of a product
        // would be whole powers of two.
        const float d0 = s[0] - maximum_[row], d1 = s[1] - maximum_[row];
        const float p0 = exp2_approximate(__fmaf_rn(d0, p_.softmax_scale_log2, -kWeightShift));
        const float p1 = exp2_approximate(__fmaf_rn(d1, p_.softmax_scale_log2, -kWeightShift));
        const uint32_t pair = round_weights(p0, p1);
        const __half2 rounded = *reinterpret_cast<const __half2*>(&pair);
        sum_[row] = pinned(sum_[row] + (__low2float(rounded) + __high2float(rounded)));
        pairs[number] = pair;
    }

    // A lane has two columns of two rows. As A fragment it needs one of the rows in full, and the lane two away needs
    // the other: each gives what it does not need.
    __device__ __forceinline__ void exchange_pairs(const uint32_t (&pairs)[8], Weights& weights) const {
        const bool upper_row = (lane_.index & 2) != 0;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int four = 0; four < 2; ++four) {
                const uint32_t first = pairs[4 * m + four], second = pairs[4 * m + 2 + four];
                const uint32_t kept = upper_row ? second : first;
                const uint32_t received = exchange(upper_row ? first : second, 2);
                weights[m][2 * four] = upper_row ? received : kept;
                weights[m][2 * four + 1] = upper_row ? kept : received;
            }
        }
    }

    // Rounding loses NaN, and the maximum ignores it. So what is not finite in Q or K is found here: a row of one key
    // and a column of one query show it.
    __device__ __forceinline__ void collect_nan(const Scores& scores) const {
        float chains[4] = {thread_state_->zero_or_nan, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                chains[t] = __fmaf_rn(scores[t][0][i], 0.0f, __fmaf_rn(scores[t][0][i + 1], 0.0f, chains[t]));
            }
        }
        chains[0] = __fmaf_rn(scores[0][0][2], 0.0f, chains[0]);
        chains[1] = __fmaf_rn(scores[0][1][0], 0.0f, chains[1]);
        chains[2] = __fmaf_rn(scores[0][1][2], 0.0f, chains[2]);
        thread_state_->zero_or_nan = (chains[0] + chains[1]) + (chains[2] + chains[3]);
    }

    // Sums over all lanes of a row, NaN where a score was not finite.
    __device__ __forceinline__ void finish_sums() {
        const float zero_or_nan = warp_sum(thread_state_->zero_or_nan);
#pragma unroll
        for (int row = 0; row < 4; ++row) sum_[row] = row_sum(sum_[row] + zero_or_nan);
    }

    // Between tiles, maxima and sums are in shared memory, thread by thread, where they take no registers.
    __device__ __forceinline__ void save_rows() {
        thread_state_->maximum = make_float4(maximum_[0], maximum_[1], maximum_[2], maximum_[3]);
        thread_state_->sum = make_float4(sum_[0], sum_[1], sum_[2], sum_[3]);
    }

    __device__ __forceinline__ void load_rows() {
        const float4 maximum = thread_state_->maximum, sum = thread_state_->sum;
        maximum_[0] = maximum.x;
        maximum_[1] = maximum.y;
        maximum_[2] = maximum.z;
        maximum_[3] = maximum.w;
        sum_[0] = sum.x;
        sum_[1] = sum.y;
        sum_[2] = sum.z;
        sum_[3] = sum.w;
    }

    ThreadState* thread_state_;

 private:
    // Two FP32 weights x 2^(15 - 112) to halves x 2^15. The difference of the exponents' biases is 112, so the bits of
    // a half are those of the float 13 places further down: rounding is an addition, and nothing goes through the slow
    // conversion pipe. Weights below 2^-29 are zero.
    __device__ __forceinline__ static uint32_t round_weights(float p0, float p1) {
        const uint32_t low = (__float_as_uint(p0) << 3) + 0x8000u, high = (__float_as_uint(p1) << 3) + 0x8000u;
        return __byte_perm(low, high, 0x7632);
    }
};

}  // namespace sm70::prefill
