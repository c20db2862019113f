// The union of what several blocks found about a tile.
#pragma once

#include "ops/prefill/rows.cuh"

namespace sm70::prefill {

// A block for each tile that several shared.
template <int kHeadDim>
__device__ __forceinline__ void combine(const CombineParams& p) {
    Rows<Shape<kHeadDim, true>> block(p.prefill);
    const auto shared_tile = static_cast<int32_t>(blockIdx.x);
    Item item = tile_item(p.prefill, p.prefill.whole_tiles + shared_tile);
    item.slot = p.attend_blocks + shared_tile * p.prefill.splits;
    block.combine(item);
}

}  // namespace sm70::prefill
