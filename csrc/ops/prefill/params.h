// Kernel parameters of the prefill operator: plain data shared by the kernels and op.cpp.
#pragma once

#include "device/fast_divide.h"
#include "device/fixed_width.h"

namespace sm70::prefill {

constexpr int32_t kTileRows = 128;  // query rows of a block: (query, head of the group) pairs
constexpr int32_t kTileKeys = 128;
constexpr int32_t kThreads = 256;

// FP16 [tokens, heads, D], in elements; D has stride 1.
struct RaggedTensor {
    const uint16_t* data;
    int64_t token_stride, head_stride;
};

// One sequence, or a ragged batch: sequence i has queries cu_seqlens_q[i] .. cu_seqlens_q[i + 1] - 1, and keys
// likewise.
struct PrefillParams {
    RaggedTensor q, k, v;
    int64_t key_vector_stride_bytes;  // between a thread's vectors of two halves of a slice of K
    int64_t value_vector_stride_bytes;
    uint16_t* out;  // FP16, like q
    int64_t out_token_stride, out_head_stride;
    float* lse;  // FP32 [Hq, tokens], or null
    int64_t lse_token_stride, lse_head_stride;
    const int32_t* cu_seqlens_q;  // [sequences + 1]; null: one sequence of `queries` and `keys`
    const int32_t* cu_seqlens_k;
    float* partial_states;     // of row tiles: FP32 numerators [128][D], then maximum and sum of each row
    float softmax_scale_log2;  // softmax scale x log2(e)
    FastDivisor group;         // query heads of a KV head
    int32_t sequences, kv_heads;
    int32_t queries, keys;             // of a sequence, at most: max_seqlen_q and max_seqlen_k
    int32_t query_tokens, key_tokens;  // of all sequences: what the tensors hold
    int32_t row_tiles;                 // of a sequence and KV head, at most
    int32_t tiles;                     // sequences x kv_heads x row_tiles
    int32_t whole_tiles;               // tiles, from the first, that one block does alone
    int32_t splits;                    // blocks that share the keys of each of the others
    uint32_t causal;
};

struct CombineParams {
    PrefillParams prefill;
    int32_t attend_blocks;  // their own partial states come before those of the split tiles
};

SM70_HOST_DEVICE constexpr int64_t partial_state_floats(int64_t head_dim) {
    return kTileRows * (head_dim + 2);
}

// A thread loads a vector of 16 bytes at a time; all threads together load half a slice: of K 64 keys, of V these.
constexpr int32_t kHalfSliceKeys = 64;
SM70_HOST_DEVICE constexpr int32_t half_slice_value_keys(int64_t head_dim) {
    return static_cast<int32_t>(kThreads * 8 / head_dim);
}

// A stage of the ring holds a slice of K, 128 keys x 32 dimensions with padding, or a slice of V.
constexpr int32_t kStageBytes = (kTileKeys + 2) * 64;

constexpr int32_t kRangeBytes = 32;
constexpr int32_t kThreadStateBytes = 3 * kThreads * 16;

// Q, the two stages of the ring, the state of each thread, and the range of keys.
SM70_HOST_DEVICE constexpr int64_t shared_bytes(int64_t head_dim) {
    return kTileRows * head_dim * 2 + 2 * kStageBytes + kThreadStateBytes + kRangeBytes;
}

}  // namespace sm70::prefill
