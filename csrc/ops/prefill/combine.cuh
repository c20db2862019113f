// The combine kernel: the union of the partial states that several blocks have left of a tile of rows.
#pragma once

#include "ops/prefill/rows.cuh"

namespace sm70::prefill {

// A block for each tile whose keys several blocks shared.
template <int kHeadDim>
__device__ __forceinline__ void combine(const CombineParams& p) {
    Rows<Traits<kHeadDim, true>> block(p.prefill);
    const auto shared_tile = static_cast<int32_t>(blockIdx.x);
    WorkItem item = whole_tile(p.prefill, p.prefill.whole_tiles + shared_tile);
    item.partial_state = p.attend_blocks + shared_tile * p.prefill.splits;
    block.combine(item);
}

}  // namespace sm70::prefill
