// What a thread of verify knows about its block, and its place in it.
#pragma once

#include "device/softmax_output.cuh"
#include "device/tile.cuh"
#include "ops/verify/traits.cuh"

namespace sm70::verify {

template <typename S>
class VerifyBlock {
 protected:
    __device__ __forceinline__ VerifyBlock(const VerifyParams& p, VerifyShared<S>& shared)
        : p_(p), shared_(shared), warp_(threadIdx.x / 32) {
        score_scale_ =
            p.softmax_scale_log2 * resolve_scale(p.kv.k_scale, p.kv.k_device_scale) * S::Operand::kInverseScale;
    }

    // Numerators: [pair of row tiles][half of 16 dimensions][accumulator element].
    using Accumulators = float[S::kRowPairs][2][8];

    // For the values, a quad-pair takes one row tile of each pair, and one half of the warp's 32 dimensions.
    __device__ __forceinline__ uint32_t tile_of_pair() const { return lane_.quad_pair >> 1; }
    __device__ __forceinline__ uint32_t half_of_dimensions() const { return lane_.quad_pair & 1; }

    // A row of the block: a query row and one of the heads of the group.
    struct Row {
        int32_t query_row, head_in_group;
    };
    __device__ __forceinline__ Row row_at(const PassChunk& chunk, uint32_t row) const {
        const uint32_t index = chunk.row_group * S::kRows + row, query_row = p_.by_group.divide(index);
        return {static_cast<int32_t>(query_row), static_cast<int32_t>(p_.by_group.remainder(index, query_row))};
    }

    // The key has a byte that makes NaN of every row that sees the key.
    __device__ __forceinline__ void mark_special(uint32_t key) {
        atomicMin(&shared_.first_special, static_cast<int32_t>(key));
    }

    static constexpr int32_t kNoKey = 0x7fffffff;

    const VerifyParams& p_;
    VerifyShared<S>& shared_;
    const Lane lane_;
    const uint32_t warp_;
    float score_scale_;
};

}  // namespace sm70::verify
