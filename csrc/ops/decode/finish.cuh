// From softmax states to outputs: what all kernels of the operator share.
#pragma once

#include <cuda_fp16.h>

#include "device/softmax_state.cuh"
#include "ops/decode/params.h"

namespace sm70::decode {

// A scale that a captured graph may change; one that is not positive and finite makes everything NaN.
__device__ __forceinline__ float resolve_scale(float host, const float* device) {
    if (device == nullptr) return host;
    const float value = *device;
    return value > 0.0f && value <= 3.402823466e38f ? value : __int_as_float(0x7fffffff);
}

// The block-table row of a query row.
__device__ __forceinline__ int32_t request_of(const DecodeParams& p, int32_t row) {
    int32_t request = row;
    if (p.row_requests != nullptr) request = p.row_requests[row * p.row_requests_stride];
    if (request < 0 || request >= p.kv.requests) __trap();
    return request;
}

__device__ __forceinline__ float* slot_of(const DecodeParams& p, int64_t unit, int64_t head_dim) {
    return p.slots + unit * slot_floats(p.group, head_dim);
}

__device__ __forceinline__ float2* denominators_of(const DecodeParams& p, float* slot, int64_t head_dim) {
    return reinterpret_cast<float2*>(slot + p.group * head_dim);
}

__device__ __forceinline__ uint16_t* out_of(const DecodeParams& p, int64_t row, int64_t head, int64_t member) {
    return p.out + row * p.out_row_stride + (head * p.group + member) * p.out_head_stride;
}

// What numerators are multiplied by. Every kernel that makes outputs uses this, so that their bits are the same.
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

__device__ __forceinline__ void store_lse(const DecodeParams& p, int64_t row, int64_t head, int64_t member,
                                          float value) {
    if (p.lse == nullptr) return;
    p.lse[row * p.lse_row_stride + (head * p.group + member) * p.lse_head_stride] = value;
}

}  // namespace sm70::decode
