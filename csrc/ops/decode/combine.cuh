// Outputs of the rows that have several units: their states merged, in the tree that the units themselves are part of.
// Also zeros for rows without keys. Rows of one unit are done already.
//
// A block has a row, a KV head and a slice of 128 numerators, four to a lane. Its 8 warps take aligned parts of the
// row's units, eight at a time so that their loads are in flight together, and the first merges what they found.
#pragma once

#include "device/key_split.cuh"
#include "ops/decode/finish.cuh"

namespace sm70::decode {

constexpr int kCombineWarps = 8;
static_assert(kCombineThreads == 32 * kCombineWarps && kCombineSlice == 4 * 32);
constexpr int kCombineBatch = 8;
constexpr int kCombineLevels = 6;
static_assert((1 << (kCombineLevels - 1)) * kCombineBatch * kCombineWarps == kMaxUnitsOfRow);

struct PartialState {
    float4 values;
    SoftmaxDenominator denominator;
};

struct CombineShared {
    float4 values[kCombineWarps][kCombineLevels][32];
    SoftmaxDenominator denominators[kCombineWarps][kCombineLevels][32];
    int32_t totals[kMaxUnitLevels];
    int32_t before;
};

// left becomes the union of both.
__device__ __forceinline__ void merge_states(PartialState& left, const PartialState& right) {
    const MergeFactors factors = merge_denominators(left.denominator, right.denominator);
    left.values.x = merge_numerators(left.values.x, right.values.x, factors);
    left.values.y = merge_numerators(left.values.y, right.values.y, factors);
    left.values.z = merge_numerators(left.values.z, right.values.z, factors);
    left.values.w = merge_numerators(left.values.w, right.values.w, factors);
}

// Number of the first unit of a row: units of all rows before it. All threads of the block call it.
__device__ __forceinline__ int32_t units_before(const KeySplit& p, int32_t level, int32_t row, int32_t* sum) {
    if (threadIdx.x == 0) *sum = 0;
    __syncthreads();
    for (int32_t other = static_cast<int32_t>(threadIdx.x); other < row; other += kCombineThreads) {
        const int32_t units = units_of(row_length(p, other), level);
        if (units > 0) atomicAdd(sum, units * p.kv_heads);
    }
    __syncthreads();
    return *sum;
}

__device__ __forceinline__ void store_outputs(const CombineParams& p, int32_t row, int32_t head, int32_t element,
                                              const PartialState& state) {
    const DecodeParams& d = p.decode;
    const int32_t member = element / p.head_dim, dimension = element % p.head_dim;
    const float scale = resolve_scale(d.kv.v_scale, d.kv.v_device_scale) * p.operand_scale_inverse;
    const float factor = output_factor(state.denominator.sum, scale);
    uint16_t* out = out_of(d, row, head, member) + dimension;
    out[0] = output_bits(state.values.x, factor);
    out[1] = output_bits(state.values.y, factor);
    out[2] = output_bits(state.values.z, factor);
    out[3] = output_bits(state.values.w, factor);
    if (dimension == 0) store_lse(d, row, head, member, log_sum_exp(state.denominator));
}

__device__ __forceinline__ void store_zeros(const CombineParams& p, int32_t row, int32_t head, int32_t element) {
    const int32_t member = element / p.head_dim, dimension = element % p.head_dim;
    uint16_t* out = out_of(p.decode, row, head, member) + dimension;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[i] = 0;
    if (dimension == 0) store_lse(p.decode, row, head, member, __int_as_float(0xff800000));
}

__device__ __forceinline__ void combine(const CombineParams& p) {
    __shared__ CombineShared shared;
    const DecodeParams& d = p.decode;
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t slice = static_cast<int32_t>(blockIdx.x) % p.slices;
    const int32_t row_and_head = static_cast<int32_t>(blockIdx.x) / p.slices;
    const int32_t head = row_and_head % d.split.kv_heads, row = row_and_head / d.split.kv_heads;
    const int32_t element = slice * kCombineSlice + 4 * lane;
    const bool present = element < d.group * p.head_dim;

    const int32_t length = row_length(d.split, row);
    if (length == 0) {
        if (warp == 0 && present) store_zeros(p, row, head, element);
        return;
    }
    count_units(d.split, shared.totals);
    const int32_t level = chosen_level(d.split, shared.totals);
    const int32_t units = units_of(length, level);
    if (units == 1) return;

    const int32_t first = units_before(d.split, level, row, &shared.before) + head * units;
    const int32_t batches = (units + kCombineBatch - 1) / kCombineBatch;
    int32_t batches_of_warp = 1;  // a power of two, so that warps have aligned parts
    while (batches_of_warp * kCombineWarps < batches) batches_of_warp *= 2;
    const int32_t live_warps = (batches + batches_of_warp - 1) / batches_of_warp;

    PartialState state{};
    const auto push = [&](uint32_t to) {
        shared.values[warp][to][lane] = state.values;
        shared.denominators[warp][to][lane] = state.denominator;
    };
    const auto merge = [&](uint32_t from) {
        PartialState left{shared.values[warp][from][lane], shared.denominators[warp][from][lane]};
        merge_states(left, state);
        state = left;
    };
    if (warp < live_warps) {
        const int32_t first_batch = warp * batches_of_warp;
        reduce_tree(
            static_cast<uint32_t>(min(batches_of_warp, batches - first_batch)),
            [&](uint32_t batch) {
                const int32_t first_unit = (first_batch + static_cast<int32_t>(batch)) * kCombineBatch;
                PartialState states[kCombineBatch];
#pragma unroll
                for (int i = 0; i < kCombineBatch; ++i) {
                    if (present && first_unit + i < units) {
                        float* slot = slot_of(d, first + first_unit + i, p.head_dim);
                        states[i].values = __ldcg(reinterpret_cast<const float4*>(slot + element));
                        const float2 ml = __ldcg(denominators_of(d, slot, p.head_dim) + element / p.head_dim);
                        states[i].denominator = {ml.x, ml.y};
                    } else {
                        states[i] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), {0.0f, 0.0f}};
                    }
                }
#pragma unroll
                for (int step = 1; step < kCombineBatch; step *= 2) {
#pragma unroll
                    for (int i = 0; i < kCombineBatch; i += 2 * step) {
                        if (first_unit + i + step < units) merge_states(states[i], states[i + step]);
                    }
                }
                state = states[0];
            },
            push, merge);
        push(kCombineLevels - 1);  // which no warp uses for its own tree
    }
    __syncthreads();
    if (warp > 0) return;
    reduce_tree(
        static_cast<uint32_t>(live_warps),
        [&](uint32_t part) {
            state = {shared.values[part][kCombineLevels - 1][lane],
                     shared.denominators[part][kCombineLevels - 1][lane]};
        },
        push, merge);
    if (present) store_outputs(p, row, head, element, state);
}

}  // namespace sm70::decode
