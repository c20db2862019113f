// Kernel parameters of the verify operator: plain data shared by the kernels and the host.
#pragma once

#include "device/leaves.h"
#include "device/paged_kv.h"
#include "device/partial_state.h"

namespace sm70::verify {

// The most chunks that a row is cut into. A chunk is a run of leaves, counted from the row's start, and no longer than
// it takes to stay within this number. At D 256 that is one chunk for each SM of a V100; smaller heads have smaller
// blocks, so there are more of them. The chunks of a row follow from its own length alone.
SM70_HOST_DEVICE constexpr int32_t most_chunks(int32_t head_dim) {
    return 80 * 256 / head_dim;
}

// Whether a thread's scores of a leaf fit in the place of its part of K.
SM70_HOST_DEVICE constexpr bool scores_replace_keys(int64_t head_dim) {
    return head_dim == 256;
}

// Dynamic shared memory of a block that takes `row_tiles` tiles of 8 rows: the kernels assert that this is the size of
// their struct.
SM70_HOST_DEVICE constexpr int64_t verify_shared_bytes(int64_t head_dim, int64_t row_tiles) {
    const int64_t rows = 8 * row_tiles, warps = head_dim / 32;
    const int64_t query = rows * head_dim * 2, weights = kLeafTokens / 4 * (rows * 16 + 16);
    const int64_t keys = kLeafTokens * head_dim, sums = 2 * row_tiles * head_dim * 4;
    const int64_t scores = scores_replace_keys(head_dim) ? 16 : rows * static_cast<int64_t>(kLeafTokens) * 4;
    return query + weights + keys + scores + sums + rows * warps * 4 + rows * 4 + 2 * 2 * 8 * 8 + 48;
}

struct VerifyParams {
    const uint16_t* q;  // FP16 [B, q_rows, Hq, D]
    int64_t q_request_stride, q_row_stride, q_head_stride;
    uint16_t* out;  // FP16 [B, q_rows, Hq, D]
    int64_t out_request_stride, out_row_stride, out_head_stride;
    float* lse;  // FP32 [B, q_rows, Hq], or null
    int64_t lse_request_stride, lse_row_stride, lse_head_stride;
    const int32_t* seq_lens;  // [B, q_rows]
    int64_t seq_lens_request_stride, seq_lens_row_stride;
    float* partial_states;     // of chunks: [B, q_rows, Hkv, chunks]
    float softmax_scale_log2;  // softmax scale x log2(e)
    int32_t requests, q_rows;
    int32_t group;  // query heads of a KV head
    int32_t kv_heads;
    int32_t row_groups;    // of a request and KV head: the rows of one block are one
    FastDivisor by_group;  // division by them
    FastDivisor by_row_groups;
    int32_t max_tokens;  // longest row that the block table can hold
    int32_t chunks;      // of a row, at most: its partial states in the workspace
    uint32_t q_aligned;  // 16 bytes of q may be loaded at a time
    PagedKv kv;
};

struct CombineParams {
    VerifyParams verify;
    int32_t head_dim;
    float operand_scale_inverse;  // numerators are of value x operand scale
    int32_t slices;               // blocks for each row and KV head
    int32_t most_chunks;          // of a row
};

constexpr int32_t kCombineThreads = 256;
constexpr int32_t kCombineSlice = 128;  // numerators of a block

}  // namespace sm70::verify
