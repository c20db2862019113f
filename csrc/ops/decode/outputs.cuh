// Where results go: outputs and their log-sum-exp, or partial states in the workspace.
#pragma once

#include "device/softmax_output.cuh"
#include "ops/decode/params.h"

namespace sm70::decode {

// The partial state of work unit number `unit`.
__device__ __forceinline__ float* partial_state_of(const DecodeParams& p, int64_t unit, int64_t head_dim) {
    return p.partial_states + unit * partial_state_floats(p.group, head_dim);
}

// Maximum and sum of each query head of a partial state.
__device__ __forceinline__ float2* denominators_of(const DecodeParams& p, float* partial_state, int64_t head_dim) {
    return reinterpret_cast<float2*>(partial_state + p.group * head_dim);
}

__device__ __forceinline__ uint16_t* out_of(const DecodeParams& p, int64_t row, int64_t head, int64_t head_in_group) {
    return p.out + row * p.out_row_stride + (head * p.group + head_in_group) * p.out_head_stride;
}

__device__ __forceinline__ void store_lse(const DecodeParams& p, int64_t row, int64_t head, int64_t head_in_group,
                                          float value) {
    if (p.lse == nullptr) return;
    p.lse[row * p.lse_row_stride + (head * p.group + head_in_group) * p.lse_head_stride] = value;
}

}  // namespace sm70::decode
