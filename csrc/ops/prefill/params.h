// Kernel parameters of the prefill operator: plain data shared by the kernels and op.cpp.
#pragma once

#include "device/fast_divide.h"
#include "device/fixed_width.h"

namespace sm70::prefill {

constexpr int32_t kTileRows = 128;  // query rows of a block: (query, head of the group) pairs
constexpr int32_t kTileKeys = 128;
constexpr int32_t kThreads = 256;

// FP16 [tokens, heads, D], in elements; D has stride 1.
struct TokenTensor {
    const uint16_t* data;
    int64_t token_stride, head_stride;
};

// One sequence, or several one behind the other: sequence i has queries cu_q[i] .. cu_q[i + 1] - 1, keys likewise.
struct PrefillParams {
    TokenTensor q, k, v;
    int64_t key_piece_bytes, value_piece_bytes;  // between what a thread loads for one half of a slice and the next
    uint16_t* out;                               // FP16, like q
    int64_t out_token_stride, out_head_stride;
    float* lse;  // FP32 [Hq, tokens], or null
    int64_t lse_token_stride, lse_head_stride;
    const int32_t* cu_seqlens_q;  // [sequences + 1]; null: one sequence of `queries` and `keys`
    const int32_t* cu_seqlens_k;
    float* partial_states;  // states of row tiles: FP32 numerators [128][D], then maximum and sum of each row
    float softmax_scale_log2;
    FastDivisor group;  // query heads of a KV head
    int32_t sequences, kv_heads;
    int32_t queries, keys;             // of a sequence, at most
    int32_t query_tokens, key_tokens;  // of all sequences: what the tensors hold
    int32_t row_tiles;                 // of a sequence and KV head, at most
    int32_t tiles;                     // sequences x kv_heads x row_tiles
    int32_t whole_tiles;               // tiles, from the first, that one block does alone
    int32_t splits;                    // blocks that share the keys of each of the others
    uint32_t causal;
};

struct CombineParams {
    PrefillParams prefill;
    int32_t attend_blocks;  // their own slots come before those of the split tiles
};

SM70_HOST_DEVICE constexpr int64_t partial_state_floats(int64_t head_dim) {
    return kTileRows * (head_dim + 2);
}

// A thread loads 16 bytes at a time: half a slice of all threads together.
constexpr int32_t kKeyPieceKeys = 64;
SM70_HOST_DEVICE constexpr int32_t value_piece_keys(int64_t head_dim) {
    return static_cast<int32_t>(kThreads * 8 / head_dim);
}

// A slot holds a slice of K, 128 keys x 32 dimensions with padding, or of V.
constexpr int32_t kSlotBytes = (kTileKeys + 2) * 64;

constexpr int32_t kRangeBytes = 32;
constexpr int32_t kRowBytes = 3 * kThreads * 16;

// Q, two slots, the state of the rows, and what a block works on.
SM70_HOST_DEVICE constexpr int64_t shared_bytes(int64_t head_dim) {
    return kTileRows * head_dim * 2 + 2 * kSlotBytes + kRowBytes + kRangeBytes;
}

}  // namespace sm70::prefill
