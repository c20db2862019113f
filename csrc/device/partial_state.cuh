// Partial states as the combine kernels merge them: a lane holds four numerators of a row and the row's denominator.
#pragma once

#include "device/partial_state.h"
#include "device/softmax_state.cuh"
#include "device/tile.cuh"

namespace sm70 {

struct PartialState {
    float4 numerators;
    SoftmaxDenominator denominator;
};

// From the workspace. Other blocks wrote it, so the loads bypass L1, which is not coherent.
__device__ __forceinline__ PartialState load_partial_state(const float* numerators, const float* denominator) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(numerators));
    const float2 maximum_and_sum = __ldcg(reinterpret_cast<const float2*>(denominator));
    return {four, {maximum_and_sum.x, maximum_and_sum.y}};
}

// In place of a state that does not exist. It must not be merged: its maximum is 0, not minus infinity.
__device__ __forceinline__ PartialState no_partial_state() {
    return {make_float4(0.0f, 0.0f, 0.0f, 0.0f), {0.0f, 0.0f}};
}

// left becomes the union of both; its keys come first.
__device__ __forceinline__ void merge_partial_states(PartialState& left, const PartialState& right) {
    const MergeFactors factors = merge_denominators(left.denominator, right.denominator);
    left.numerators.x = merge_numerators(left.numerators.x, right.numerators.x, factors);
    left.numerators.y = merge_numerators(left.numerators.y, right.numerators.y, factors);
    left.numerators.z = merge_numerators(left.numerators.z, right.numerators.z, factors);
    left.numerators.w = merge_numerators(left.numerators.w, right.numerators.w, factors);
}

// The union of a batch of neighbouring states, numbers first .. first + kCount - 1, of which those below `end` exist.
// The batch is a subtree of the reduction tree: kCount is a power of two and divides `first`.
template <int kCount, typename Integer>
__device__ __forceinline__ PartialState merge_batch(PartialState (&states)[kCount], Integer first, Integer end) {
#pragma unroll
    for (int step = 1; step < kCount; step *= 2) {
#pragma unroll
        for (int i = 0; i < kCount; i += 2 * step) {
            if (first + i + step < end) merge_partial_states(states[i], states[i + step]);
        }
    }
    return states[0];
}

// The state of the lane that is `distance` lanes up.
__device__ __forceinline__ PartialState shuffle_down(const PartialState& state, unsigned distance) {
    return {make_float4(__shfl_down_sync(kFullWarp, state.numerators.x, distance),
                        __shfl_down_sync(kFullWarp, state.numerators.y, distance),
                        __shfl_down_sync(kFullWarp, state.numerators.z, distance),
                        __shfl_down_sync(kFullWarp, state.numerators.w, distance)),
            {__shfl_down_sync(kFullWarp, state.denominator.maximum, distance),
             __shfl_down_sync(kFullWarp, state.denominator.sum, distance)}};
}

// Stacks of states in shared memory, each with one state per lane of a warp and level. Free of bank conflicts.
template <int kStacks, int kLevels>
struct PartialStateStacks {
    float4 numerators[kStacks][kLevels][32];
    SoftmaxDenominator denominators[kStacks][kLevels][32];

    // Indices keep the caller's integer type, which address arithmetic depends on.
    template <typename Stack, typename Level, typename Index>
    __device__ __forceinline__ void store(Stack stack, Level level, Index lane, const PartialState& state) {
        numerators[stack][level][lane] = state.numerators;
        denominators[stack][level][lane] = state.denominator;
    }
    template <typename Stack, typename Level, typename Index>
    __device__ __forceinline__ PartialState load(Stack stack, Level level, Index lane) const {
        return {numerators[stack][level][lane], denominators[stack][level][lane]};
    }
};

}  // namespace sm70
