// From softmax states to outputs: what all kernels of the operator share.
#pragma once

#include "device/softmax_output.cuh"
#include "ops/decode/params.h"

namespace sm70::decode {

// The block-table row of a query row.
__device__ __forceinline__ int32_t request_of(const DecodeParams& p, int32_t row) {
    int32_t request = row;
    if (p.row_requests != nullptr) request = p.row_requests[row * p.row_requests_stride];
    if (request < 0 || request >= p.kv.requests) __trap();
    return request;
}

__device__ __forceinline__ float* partial_state_of(const DecodeParams& p, int64_t unit, int64_t head_dim) {
    return p.partial_states + unit * partial_state_floats(p.group, head_dim);
}

__device__ __forceinline__ float2* denominators_of(const DecodeParams& p, float* slot, int64_t head_dim) {
    return reinterpret_cast<float2*>(slot + p.group * head_dim);
}

__device__ __forceinline__ uint16_t* out_of(const DecodeParams& p, int64_t row, int64_t head, int64_t member) {
    return p.out + row * p.out_row_stride + (head * p.group + member) * p.out_head_stride;
}

__device__ __forceinline__ void store_lse(const DecodeParams& p, int64_t row, int64_t head, int64_t member,
                                          float value) {
    if (p.lse == nullptr) return;
    p.lse[row * p.lse_row_stride + (head * p.group + member) * p.lse_head_stride] = value;
}

}  // namespace sm70::decode
