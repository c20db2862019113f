// Steps on tiles that the lanes of a warp hold together: accumulators of the tensor core (mma.cuh), scores, numerators.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

constexpr uint32_t kFullWarp = 0xffffffffu;  // the mask of all 32 lanes

__device__ __forceinline__ float negative_infinity() {
    return __int_as_float(0xff800000);
}

__device__ __forceinline__ float quiet_nan() {
    return __int_as_float(0x7fffffff);
}

// The value of the lane whose index differs in the bits of `distance`.
template <typename Value>
__device__ __forceinline__ Value exchange(Value value, int distance) {
    return __shfl_xor_sync(kFullWarp, value, distance);
}

template <typename Value>
struct ExchangedHalves {
    Value kept, received;
};

// Two lanes, `distance` apart, each hold a lower and an upper value. The lane that `keeps_upper` keeps its upper one
// and receives the other lane's upper one; the other lane has both lower ones then.
template <typename Value>
__device__ __forceinline__ ExchangedHalves<Value> exchange_halves(const Value& lower, const Value& upper,
                                                                  bool keeps_upper, int distance) {
    const Value given = keeps_upper ? lower : upper;
    const Value kept = keeps_upper ? upper : lower;
    return {kept, exchange(given, distance)};
}

// A row of an accumulator is spread over eight lanes: those whose indices differ in bits 1 to 3. After one of these,
// all eight have the result.
__device__ __forceinline__ float row_maximum(float value) {
#pragma unroll
    for (int distance = 2; distance < 16; distance *= 2) value = fmaxf(value, exchange(value, distance));
    return value;
}

__device__ __forceinline__ float row_sum(float value) {
#pragma unroll
    for (int distance = 2; distance < 16; distance *= 2) value += exchange(value, distance);
    return value;
}

// Over all lanes of the warp, for all of them.
__device__ __forceinline__ float warp_maximum(float value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) value = fmaxf(value, exchange(value, distance));
    return value;
}

__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) value += exchange(value, distance);
    return value;
}

// Sum over this lane and the lanes below it.
__device__ __forceinline__ int32_t warp_inclusive_sum(int32_t value) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const int32_t below = __shfl_up_sync(kFullWarp, value, static_cast<unsigned>(distance));
        if (static_cast<int32_t>(threadIdx.x & 31) >= distance) value += below;
    }
    return value;
}

// visit(element, indices...) for every element of an array of one or more dimensions, the last one fastest.
template <typename Element, int kCount, typename Visit, typename... Indices>
__device__ __forceinline__ void for_each_element(Element (&tile)[kCount], Visit visit, Indices... outer) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) visit(tile[i], outer..., i);
}

template <typename Element, int kOuter, int kInner, typename Visit, typename... Indices>
__device__ __forceinline__ void for_each_element(Element (&tile)[kOuter][kInner], Visit visit, Indices... outer) {
#pragma unroll
    for (int i = 0; i < kOuter; ++i) for_each_element(tile[i], visit, outer..., i);
}

}  // namespace sm70
