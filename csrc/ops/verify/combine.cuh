// Outputs of all rows: the states of their chunks merged in a fixed binary tree over the chunk's number. Zeros for rows
// without keys.
//
// A block has a row, a KV head and a slice of 128 numerators, four to a lane. Its 8 warps take aligned parts of the
// row's chunks, eight chunks at a time so that their loads are in flight together; the first merges what they found.
#pragma once

#include "device/softmax_output.cuh"
#include "ops/verify/units.cuh"

namespace sm70::verify {

constexpr int kCombineWarps = 8;
static_assert(kCombineThreads == 32 * kCombineWarps && kCombineSlice == 4 * 32);
constexpr int kCombineBatch = 8;
constexpr int kCombineLevels = 4;
static_assert((1 << (kCombineLevels - 1)) * kCombineBatch * kCombineWarps >= most_chunks(64));

struct PartialState {
    float4 values;
    SoftmaxDenominator denominator;
};

struct CombineShared {
    float4 values[kCombineWarps][kCombineLevels][32];
    SoftmaxDenominator denominators[kCombineWarps][kCombineLevels][32];
};

// left becomes the union of both.
__device__ __forceinline__ void merge_states(PartialState& left, const PartialState& right) {
    const MergeFactors factors = merge_denominators(left.denominator, right.denominator);
    left.values.x = merge_numerators(left.values.x, right.values.x, factors);
    left.values.y = merge_numerators(left.values.y, right.values.y, factors);
    left.values.z = merge_numerators(left.values.z, right.values.z, factors);
    left.values.w = merge_numerators(left.values.w, right.values.w, factors);
}

// Where a lane's four outputs go: a row of the launch, a KV head, and an element of its [G][D].
struct Place {
    int32_t request, row, head, member, dimension;
};

__device__ __forceinline__ void store(const VerifyParams& p, const Place& at, const uint16_t (&outputs)[4], float lse) {
    const int64_t head = static_cast<int64_t>(at.head) * p.group + at.member;
    uint16_t* out = p.out + at.request * p.out_request_stride + at.row * p.out_row_stride + head * p.out_head_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[at.dimension + i] = outputs[i];
    if (at.dimension == 0 && p.lse != nullptr) {
        p.lse[at.request * p.lse_request_stride + at.row * p.lse_row_stride + head * p.lse_head_stride] = lse;
    }
}

__device__ __forceinline__ void combine(const CombineParams& p) {
    __shared__ CombineShared shared;
    const VerifyParams& v = p.verify;
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t slice = static_cast<int32_t>(blockIdx.x) % p.slices;
    const int32_t row_and_head = static_cast<int32_t>(blockIdx.x) / p.slices;
    const int32_t head = row_and_head % v.kv_heads, row = row_and_head / v.kv_heads;
    const int32_t element = slice * kCombineSlice + 4 * lane;
    const bool present = element < v.group * p.head_dim;
    const Place place{row / v.q_rows, row % v.q_rows, head, element / p.head_dim, element % p.head_dim};

    const int32_t length = row_length(v, place.request, place.row);
    if (length == 0) {
        const uint16_t zeros[4] = {};
        if (warp == 0 && present) store(v, place, zeros, __int_as_float(0xff800000));
        return;
    }
    const int32_t chunks = chunks_of(length, leaves_of_chunk(length, p.most_chunks));
    const int32_t batches = (chunks + kCombineBatch - 1) / kCombineBatch;
    int32_t batches_of_warp = 1;  // a power of two, so that warps have aligned parts
    while (batches_of_warp * kCombineWarps < batches) batches_of_warp *= 2;
    const int32_t live_warps = (batches + batches_of_warp - 1) / batches_of_warp;
    const int64_t slot = partial_state_floats(v.group, p.head_dim);
    const float* states_of_row = v.partial_states + (static_cast<int64_t>(row) * v.kv_heads + head) * v.chunks * slot;

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
                const int32_t first = (first_batch + static_cast<int32_t>(batch)) * kCombineBatch;
                PartialState states[kCombineBatch];
#pragma unroll
                for (int i = 0; i < kCombineBatch; ++i) {
                    states[i] = {make_float4(0.0f, 0.0f, 0.0f, 0.0f), {0.0f, 0.0f}};
                    if (present && first + i < chunks) {
                        const float* source = states_of_row + (first + i) * slot;
                        states[i].values = __ldcg(reinterpret_cast<const float4*>(source + element));
                        const float2 ml =
                            __ldcg(reinterpret_cast<const float2*>(source + v.group * p.head_dim + 2 * place.member));
                        states[i].denominator = {ml.x, ml.y};
                    }
                }
#pragma unroll
                for (int step = 1; step < kCombineBatch; step *= 2) {
#pragma unroll
                    for (int i = 0; i < kCombineBatch; i += 2 * step) {
                        if (first + i + step < chunks) merge_states(states[i], states[i + step]);
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
    if (!present) return;
    const float scale = resolve_scale(v.kv.v_scale, v.kv.v_device_scale) * p.operand_scale_inverse;
    const float factor = output_factor(state.denominator.sum, scale);
    const uint16_t outputs[4] = {output_bits(state.values.x, factor), output_bits(state.values.y, factor),
                                 output_bits(state.values.z, factor), output_bits(state.values.w, factor)};
    store(v, place, outputs, log_sum_exp(state.denominator));
}

}  // namespace sm70::verify
