// The combine kernel: outputs of all rows. It merges the partial states of a row's chunks in a fixed binary tree over
// the chunks' numbers, and stores zeros for rows without keys.
//
// A block has a row, a KV head and a slice of 128 numerators, four per lane. Its 8 warps take aligned parts of the
// row's chunks, eight chunks at a time so that their loads are in flight together. The first warp merges the results of
// all.
#pragma once

#include "device/ceil_div.h"
#include "device/partial_state.cuh"
#include "device/softmax_output.cuh"
#include "ops/verify/pass_chunks.cuh"

namespace sm70::verify {

constexpr int kCombineWarps = 8;
static_assert(kCombineThreads == 32 * kCombineWarps && kCombineSlice == 4 * 32);
constexpr int kCombineBatch = 8;
constexpr int kCombineLevels = 4;
static_assert((1 << (kCombineLevels - 1)) * kCombineBatch * kCombineWarps >= most_chunks(64));

// Where a lane's four outputs go: a row, a KV head, and an element of that head's [G][D].
struct OutputPlace {
    int32_t request, row, head, head_in_group, dimension;
};

__device__ __forceinline__ void store(const VerifyParams& p, const OutputPlace& at, const uint16_t (&outputs)[4],
                                      float lse) {
    const int64_t head = static_cast<int64_t>(at.head) * p.group + at.head_in_group;
    uint16_t* out = p.out + at.request * p.out_request_stride + at.row * p.out_row_stride + head * p.out_head_stride;
#pragma unroll
    for (int i = 0; i < 4; ++i) out[at.dimension + i] = outputs[i];
    if (at.dimension == 0 && p.lse != nullptr) {
        p.lse[at.request * p.lse_request_stride + at.row * p.lse_row_stride + head * p.lse_head_stride] = lse;
    }
}

__device__ __forceinline__ void combine(const CombineParams& p) {
    __shared__ PartialStateStacks<kCombineWarps, kCombineLevels> stacks;
    const VerifyParams& v = p.verify;
    const int32_t warp = static_cast<int32_t>(threadIdx.x / 32), lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t slice = static_cast<int32_t>(blockIdx.x) % p.slices;
    const int32_t row_and_head = static_cast<int32_t>(blockIdx.x) / p.slices;
    const int32_t head = row_and_head % v.kv_heads, row = row_and_head / v.kv_heads;
    const int32_t element = slice * kCombineSlice + 4 * lane;
    const bool present = element < v.group * p.head_dim;
    const OutputPlace place{row / v.q_rows, row % v.q_rows, head, element / p.head_dim, element % p.head_dim};

    const int32_t length = row_length(v, place.request, place.row);
    if (length == 0) {
        const uint16_t zeros[4] = {};
        if (warp == 0 && present) store(v, place, zeros, negative_infinity());
        return;
    }
    const int32_t chunks = chunks_of(length, leaves_of_chunk(length, p.most_chunks));
    const int32_t batches = ceil_div<int32_t>(chunks, kCombineBatch);
    int32_t batches_of_warp = 1;  // a power of two, so that the warps' parts are subtrees
    while (batches_of_warp * kCombineWarps < batches) batches_of_warp *= 2;
    const int32_t live_warps = ceil_div(batches, batches_of_warp);
    const int64_t floats = partial_state_floats(v.group, p.head_dim);
    const float* states_of_row = v.partial_states + (static_cast<int64_t>(row) * v.kv_heads + head) * v.chunks * floats;

    PartialState state{};
    const auto push = [&](uint32_t to) { stacks.store(warp, to, lane, state); };
    const auto merge = [&](uint32_t from) {
        PartialState left = stacks.load(warp, from, lane);
        merge_partial_states(left, state);
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
                for (int32_t i = 0; i < kCombineBatch; ++i) {
                    states[i] = no_partial_state();
                    if (present && first + i < chunks) {
                        const float* source = states_of_row + (first + i) * floats;
                        states[i] = load_partial_state(source + element,
                                                       source + v.group * p.head_dim + 2 * place.head_in_group);
                    }
                }
                state = merge_batch(states, first, chunks);
            },
            push, merge);
        push(kCombineLevels - 1);  // a level that no warp's own tree uses
    }
    __syncthreads();
    if (warp > 0) return;
    reduce_tree(
        static_cast<uint32_t>(live_warps), [&](uint32_t part) { state = stacks.load(part, kCombineLevels - 1, lane); },
        push, merge);
    if (!present) return;
    const float scale = resolve_scale(v.kv.v_scale, v.kv.v_device_scale) * p.operand_scale_inverse;
    const float factor = output_factor(state.denominator.sum, scale);
    const uint16_t outputs[4] = {output_bits(state.numerators.x, factor), output_bits(state.numerators.y, factor),
                                 output_bits(state.numerators.z, factor), output_bits(state.numerators.w, factor)};
    store(v, place, outputs, log_sum_exp(state.denominator));
}

}  // namespace sm70::verify
