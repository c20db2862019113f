// The state of a softmax over part of a row's keys, and the fixed binary tree in which states merge.
//
// maximum and sum are of scores in base 2: weights are 2^(score - maximum). Values are unnormalised numerators. The
// operations and their order are spelled out, so that every kernel that merges the same states gets the same bits.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// 2^x; subnormal results are zero.
__device__ __forceinline__ float exp2_approximate(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct SoftmaxDenominator {
    float maximum, sum;
};

// Weights of two states in their union.
struct MergeFactors {
    float left, right;
};

// left becomes the union of both. NaN in either sum, or as a factor, makes the result NaN.
__device__ __forceinline__ MergeFactors merge_denominators(SoftmaxDenominator& left, SoftmaxDenominator right) {
    const float maximum = fmaxf(left.maximum, right.maximum);
    const MergeFactors factors{exp2_approximate(left.maximum - maximum), exp2_approximate(right.maximum - maximum)};
    left.sum = __fmaf_rn(left.sum, factors.left, __fmul_rn(right.sum, factors.right));
    left.maximum = maximum;
    return factors;
}

__device__ __forceinline__ float merge_numerators(float left, float right, MergeFactors factors) {
    return __fmaf_rn(left, factors.left, __fmul_rn(right, factors.right));
}

// The tree: states are leaves in the order of their keys; node i of level n + 1 is the union of nodes 2 i and 2 i + 1
// of level n, or the first alone where there is no second. If leaves come one after the other, a stack with one place
// per level is enough: after leaf `index` as many levels are merged as `index` has trailing ones, and the result is
// stored on the level above. At the end, the stored states are merged from the lowest level up. reduce(i) makes leaf i
// the current state; push(level) stores the current state; merge(level) makes it the union of the stored state, whose
// keys come first, and itself.
template <typename Reduce, typename Push, typename Merge>
__device__ __forceinline__ void reduce_tree(uint32_t leaves, Reduce reduce, Push push, Merge merge) {
    for (uint32_t leaf = 0; leaf < leaves; ++leaf) {
        reduce(leaf);
        uint32_t level = 0;
        for (; leaf >> level & 1; ++level) merge(level);
        if (leaf + 1 < leaves) push(level);
    }
    const uint32_t last = leaves - 1;
    const uint32_t merged = __ffs(~static_cast<int>(last)) - 1;
    for (uint32_t level = merged; last >> level; ++level) {
        if (last >> level & 1) merge(level);
    }
}

}  // namespace sm70
