// Checks that attention operators share: heads, head dimensions, outputs and the softmax scale.
#pragma once

#include <initializer_list>

#include "runtime/tensor_checks.h"

namespace sm70::runtime {

constexpr int64_t kMaxGroup = 16;  // query heads per KV head

// FP16 of so many dimensions, the last of them contiguous. `picture`, like "[rows, Hq, D]", names the dimensions.
void require_fp16(const Argument& argument, int64_t dims, const char* picture);

// Query heads that KV heads divide evenly, 1 to kMaxGroup per KV head; a head dimension that kernels are built for.
void require_heads(const Argument& q, int64_t query_heads, int64_t kv_heads, int64_t head_dim, const char* remedy);

// FP16 of q's shape, writable.
void require_output(const Argument& out, const Argument& q, const char* picture);

// FP32 of q's shape without its last dimension, writable. Null, for a call without lse, passes. `dims` says what the
// dimensions are, like {"rows of q", "query heads of q"}.
void require_lse(const Argument* lse, const Argument& q, const char* picture, std::initializer_list<const char*> dims);

// The largest of 16 and 8 that the addresses of all heads are multiples of; smaller ones are refused.
int64_t require_vector_alignment(std::initializer_list<const Argument*> arguments, const char* remedy);

// What scores in base 2 are multiplied by: softmax_scale x log2(e).
float require_softmax_scale_log2(const char* op, double softmax_scale);

}  // namespace sm70::runtime
