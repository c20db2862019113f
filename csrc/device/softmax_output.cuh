// From the state of a softmax to outputs: what decode and verify do alike, to the bit.
#pragma once

#include <cuda_fp16.h>

#include "device/softmax_state.cuh"
#include "device/tile.cuh"

namespace sm70 {

// The scale in use. A captured graph may change the device's; one that is not positive and finite makes every result
// NaN.
__device__ __forceinline__ float resolve_scale(float host, const float* device) {
    if (device == nullptr) return host;
    const float value = *device;
    return value > 0.0f && value <= 3.402823466e38f ? value : quiet_nan();
}

// What numerators are multiplied by. All kernels of decode and verify that store outputs use this, so that their bits
// are the same.
__device__ __forceinline__ float output_factor(float sum, float scale) {
    return __fdividef(scale, sum);
}

__device__ __forceinline__ uint16_t output_bits(float numerator, float factor) {
    return __half_as_ushort(__float2half_rn(__fmul_rn(numerator, factor)));
}

// Natural logarithm of the softmax denominator.
__device__ __forceinline__ float log_sum_exp(SoftmaxDenominator denominator) {
    constexpr float kLn2 = 0.693147180559945309f;
    return (denominator.maximum + __log2f(denominator.sum)) * kLn2;
}

}  // namespace sm70
