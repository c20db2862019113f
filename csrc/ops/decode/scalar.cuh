// decode without tensor cores: FP32 loops over the same leaves, with the same tree and partial states as xqa.cuh. It is
// the baseline for xqa, and serves the cache layouts that xqa does not.
//
// A block has D threads and takes 8 query heads at a time. For the scores a thread takes a key, or half of one at
// D 256; for the weights a warp takes whole rows; for the values a thread takes a dimension.
#pragma once

#include "device/paged_kv.cuh"
#include "ops/decode/outputs.cuh"
#include "ops/decode/work_units.cuh"

namespace sm70::decode {

template <typename Format_, int kHeadDim_>
struct ScalarTraits {
    using Format = Format_;
    using Operand = OperandFormat<Format>;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kThreads = kHeadDim;
    static constexpr int kWarps = kThreads / 32;
    static constexpr int kRows = 8;
    static constexpr int kLeafTiles = kLeafTokens / kTileTokens;
    static constexpr int kParts = kHeadDim > 128 ? kHeadDim / 128 : 1;  // threads of a key
    static constexpr int kPartDims = kHeadDim / kParts;
    static constexpr int kVector = 8 / Operand::kElementBytes;  // elements of 8 bytes
};

template <typename S>
struct ScalarShared {
    float4 q[S::kHeadDim / 4][S::kRows];        // [4 dimensions][row]
    float4 weights[kLeafTokens][S::kRows / 4];  // scores first, then weights
    SoftmaxDenominator denominators[S::kRows];
    const uint8_t* key_tiles[S::kLeafTiles];
    const uint8_t* value_tiles[S::kLeafTiles];
    int32_t totals[kMaxUnitLevels];
};

template <typename S>
struct ScalarLevel {
    float values[S::kRows][S::kThreads];
    SoftmaxDenominator denominators[S::kRows];
};

// 8 stored bytes of any alignment.
__device__ __forceinline__ uint2 load_unaligned_8_bytes(const uint8_t* address, bool aligned) {
    if (aligned) return __ldg(reinterpret_cast<const uint2*>(address));
    uint32_t words[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; ++i) words[i / 4] |= static_cast<uint32_t>(__ldg(address + i)) << (8 * (i % 4));
    return make_uint2(words[0], words[1]);
}

template <typename S>
class Scalar {
 public:
    __device__ __forceinline__ Scalar(const DecodeParams& p, ScalarShared<S>& shared, ScalarLevel<S>* stack)
        : p_(p), shared_(shared), stack_(stack) {
        score_scale_ =
            p.softmax_scale_log2 * resolve_scale(p.kv.k_scale, p.kv.k_device_scale) * S::Operand::kInverseScale;
    }

    __device__ __forceinline__ void run() {
        level_ = level_of_launch(p_.schedule, shared_.totals);
        WorkUnitCursor cursor;
        WorkUnit unit;
        for (int32_t number = static_cast<int32_t>(blockIdx.x); cursor.seek(p_.schedule, level_, number, unit);
             number += static_cast<int32_t>(gridDim.x)) {
            for (int32_t head_in_group = 0; head_in_group < p_.group; head_in_group += S::kRows) {
                reduce_unit(unit, head_in_group);
                store(unit, number, head_in_group);
            }
        }
    }

 private:
    __device__ __forceinline__ float output_scale() const {
        return resolve_scale(p_.kv.v_scale, p_.kv.v_device_scale) * S::Operand::kInverseScale;
    }

    // The unit's state for query heads `head_in_group`.. of the group, to values_ and denominators_.
    __device__ __forceinline__ void reduce_unit(const WorkUnit& unit, int32_t head_in_group) {
        load_query(unit, head_in_group);
        const int32_t request = request_of(p_, unit.row);
        const uint32_t first = static_cast<uint32_t>(unit.index) << level_;
        const uint32_t leaves = min(1u << level_, static_cast<uint32_t>(leaves_of(unit.length)) - first);
        uint32_t nan = 0;
        reduce_tree(
            leaves, [&](uint32_t leaf) { reduce_leaf(unit, request, (first + leaf) * kLeafTokens, nan); },
            [&](uint32_t below) { push(stack_[below]); }, [&](uint32_t below) { merge(stack_[below]); });
        if (__syncthreads_or(static_cast<int>(nan))) {
#pragma unroll
            for (int r = 0; r < S::kRows; ++r) denominators_[r].sum = quiet_nan();
        }
    }

    __device__ __forceinline__ void load_query(const WorkUnit& unit, int32_t head_in_group) {
        const uint16_t* q = p_.q + unit.row * p_.q_row_stride +
                            (static_cast<int64_t>(unit.head) * p_.group + head_in_group) * p_.q_head_stride +
                            threadIdx.x;
        auto* target = reinterpret_cast<float*>(shared_.q);
#pragma unroll
        for (int r = 0; r < S::kRows; ++r) {
            const bool present = head_in_group + r < p_.group;
            const float value = present ? __half2float(__ushort_as_half(q[r * p_.q_head_stride])) : 0.0f;
            target[(threadIdx.x / 4 * S::kRows + r) * 4 + threadIdx.x % 4] = value;
        }
    }

    __device__ __forceinline__ void reduce_leaf(const WorkUnit& unit, int32_t request, uint32_t first_token,
                                                uint32_t& nan) {
        const uint32_t live = min(kLeafTokens, static_cast<uint32_t>(unit.length) - first_token);
        if (threadIdx.x < (live + kTileTokens - 1) / kTileTokens) {
            const TilePlace place = tile_place(p_.kv, request, first_token / kTileTokens + threadIdx.x);
            shared_.key_tiles[threadIdx.x] = tile_address(p_.kv.k, place, unit.head);
            shared_.value_tiles[threadIdx.x] = tile_address(p_.kv.v, place, unit.head);
        }
        __syncthreads();
        for (uint32_t item = threadIdx.x; item < kLeafTokens * S::kParts; item += S::kThreads) score(item, live, nan);
        __syncthreads();
        for (uint32_t row = threadIdx.x / 32; row < S::kRows; row += S::kWarps) weigh(row);
        __syncthreads();
        add_values(live, nan);
        __syncthreads();  // before the next leaf replaces addresses and weights
    }

    // Scores of one key and 8 query heads; minus infinity past the length.
    __device__ __forceinline__ void score(uint32_t item, uint32_t live, uint32_t& nan) {
        const uint32_t key = item / S::kParts, part = item % S::kParts;
        float scores[S::kRows] = {};
        if (key < live) {
            const uint8_t* source = shared_.key_tiles[key / kTileTokens] + key % kTileTokens * p_.kv.k.token_bytes +
                                    part * S::kPartDims * S::Operand::kElementBytes;
#pragma unroll 4
            for (int vector = 0; vector < S::kPartDims / S::kVector; ++vector) {
                const uint2 stored = load_unaligned_8_bytes(source + 8 * vector, p_.kv.alignment >= 8);
                const uint32_t words[2] = {stored.x, stored.y};
                nan |= S::Operand::nan_bits(words[0]) | S::Operand::nan_bits(words[1]);
#pragma unroll
                for (int four = 0; four < S::kVector / 4; ++four) {
                    const HalfFragment halves = S::Operand::operand(words + four);
                    const float2 k01 = __half22float2(half2_from_bits(halves.low));
                    const float2 k23 = __half22float2(half2_from_bits(halves.high));
                    const auto& q = shared_.q[(part * S::kPartDims + vector * S::kVector) / 4 + four];
#pragma unroll
                    for (int r = 0; r < S::kRows; ++r) {
                        scores[r] = __fmaf_rn(q[r].x, k01.x, scores[r]);
                        scores[r] = __fmaf_rn(q[r].y, k01.y, scores[r]);
                        scores[r] = __fmaf_rn(q[r].z, k23.x, scores[r]);
                        scores[r] = __fmaf_rn(q[r].w, k23.y, scores[r]);
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < S::kRows; ++r) {
#pragma unroll
            for (int distance = 1; distance < S::kParts; distance *= 2) {
                scores[r] += exchange(scores[r], distance);
            }
            scores[r] = key < live ? scores[r] * score_scale_ : negative_infinity();
        }
        if (part == 0) {
            shared_.weights[key][0] = make_float4(scores[0], scores[1], scores[2], scores[3]);
            shared_.weights[key][1] = make_float4(scores[4], scores[5], scores[6], scores[7]);
        }
    }

    // Scores of a row become weights.
    __device__ __forceinline__ void weigh(uint32_t row) {
        constexpr int kPerLane = kLeafTokens / 32;
        auto* weights = reinterpret_cast<float*>(shared_.weights);
        float scores[kPerLane];
        float maximum = negative_infinity(), sum = 0.0f;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
            scores[i] = weights[(32 * i + threadIdx.x % 32) * S::kRows + row];
            maximum = fmaxf(maximum, scores[i]);
        }
        maximum = warp_maximum(maximum);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
            const float weight = exp2_approximate(scores[i] - maximum);
            weights[(32 * i + threadIdx.x % 32) * S::kRows + row] = weight;
            sum += weight;
        }
        sum = warp_sum(sum);
        if (threadIdx.x % 32 == 0) shared_.denominators[row] = {maximum, sum};
    }

    __device__ __forceinline__ void add_values(uint32_t live, uint32_t& nan) {
#pragma unroll
        for (int r = 0; r < S::kRows; ++r) {
            values_[r] = 0.0f;
            denominators_[r] = shared_.denominators[r];
        }
#pragma unroll 4
        for (uint32_t key = 0; key < live; ++key) {
            const uint8_t* source = shared_.value_tiles[key / kTileTokens] + key % kTileTokens * p_.kv.v.token_bytes +
                                    threadIdx.x * S::Operand::kElementBytes;
            uint32_t words[2] = {0, 0};
            if constexpr (S::Operand::kElementBytes == 1) {
                words[0] = __ldg(source);
            } else if (p_.kv.alignment >= 8) {
                words[0] = __ldg(reinterpret_cast<const uint16_t*>(source));
            } else {
                words[0] = __ldg(source) | static_cast<uint32_t>(__ldg(source + 1)) << 8;
            }
            nan |= S::Operand::nan_bits(words[0]);
            const float value = __low2float(half2_from_bits(S::Operand::operand(words).low));
            const float4 low = shared_.weights[key][0], high = shared_.weights[key][1];
            values_[0] = __fmaf_rn(low.x, value, values_[0]);
            values_[1] = __fmaf_rn(low.y, value, values_[1]);
            values_[2] = __fmaf_rn(low.z, value, values_[2]);
            values_[3] = __fmaf_rn(low.w, value, values_[3]);
            values_[4] = __fmaf_rn(high.x, value, values_[4]);
            values_[5] = __fmaf_rn(high.y, value, values_[5]);
            values_[6] = __fmaf_rn(high.z, value, values_[6]);
            values_[7] = __fmaf_rn(high.w, value, values_[7]);
        }
    }

    __device__ __forceinline__ void push(ScalarLevel<S>& level) {
#pragma unroll
        for (int r = 0; r < S::kRows; ++r) {
            level.values[r][threadIdx.x] = values_[r];
            if (threadIdx.x == 0) level.denominators[r] = denominators_[r];  // read after the next leaf's barriers
        }
    }

    __device__ __forceinline__ void merge(const ScalarLevel<S>& level) {
#pragma unroll
        for (int r = 0; r < S::kRows; ++r) {
            SoftmaxDenominator left = level.denominators[r];
            const MergeFactors factors = merge_denominators(left, denominators_[r]);
            denominators_[r] = left;
            values_[r] = merge_numerators(level.values[r][threadIdx.x], values_[r], factors);
        }
    }

    __device__ __forceinline__ void store(const WorkUnit& unit, int32_t number, int32_t first_head) {
        float* partial_state = partial_state_of(p_, number, S::kHeadDim);
#pragma unroll
        for (int r = 0; r < S::kRows; ++r) {
            const int32_t head_in_group = first_head + r;
            if (head_in_group >= p_.group) break;
            const SoftmaxDenominator d = denominators_[r];
            if (unit.count == 1) {
                const float factor = output_factor(d.sum, output_scale());
                out_of(p_, unit.row, unit.head, head_in_group)[threadIdx.x] = output_bits(values_[r], factor);
                if (threadIdx.x == 0) store_lse(p_, unit.row, unit.head, head_in_group, log_sum_exp(d));
            } else {
                partial_state[head_in_group * S::kHeadDim + threadIdx.x] = values_[r];
                if (threadIdx.x == 0)
                    denominators_of(p_, partial_state, S::kHeadDim)[head_in_group] = make_float2(d.maximum, d.sum);
            }
        }
    }

    const DecodeParams& p_;
    ScalarShared<S>& shared_;
    ScalarLevel<S>* stack_;
    float score_scale_;
    int32_t level_ = 0;
    float values_[S::kRows];
    SoftmaxDenominator denominators_[S::kRows];
};

template <typename Format, int kHeadDim>
__device__ __forceinline__ void scalar(const DecodeParams& p) {
    using S = ScalarTraits<Format, kHeadDim>;
    static_assert(sizeof(ScalarShared<S>) == scalar_shared_bytes(kHeadDim));
    static_assert(sizeof(ScalarLevel<S>) == scalar_level_bytes(kHeadDim));
    extern __shared__ uint4 dynamic_shared[];
    auto& shared = *reinterpret_cast<ScalarShared<S>*>(dynamic_shared);
    auto* stack = reinterpret_cast<ScalarLevel<S>*>(&shared + 1);
    Scalar<S>(p, shared, stack).run();
}

}  // namespace sm70::decode
