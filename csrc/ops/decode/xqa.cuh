// decode on tensor cores: the G query heads of a KV head share one pass over its K and V.
//
// A block has D / 32 warps and reduces work units (work_units.cuh) leaf by leaf, 128 keys at a time. For the scores
// each warp takes an equal number of the leaf's tiles of 16 keys; for the values it takes all keys, and 32 dimensions.
//
//   scores   lane (n = operand_row, qp = quad_pair) loads K[key n + 8 (qp >> 1)][32 j + 16 (qp & 1) .. + 15] for all j:
//            every sector of a load is used in full. Quad-pairs 2i and 2i + 1 hold the two halves of the same keys'
//            products; one exchange adds them and leaves each lane two rows x two neighbouring keys. (xqa_scores.cuh)
//   weights  P = 2^(S - max of the leaf), as a high half and a residual half, to shared memory in the order in which
//            lanes take them as A fragments. P is at most 1, so its residual needs no scaling to be exact to 2^-25.
//            (xqa_weights.cuh)
//   values   lane loads V[key 16 h + 4 qp + quad][its 16 of the warp's 32 dimensions], h = 0..7. Quad-pairs add up
//            different keys; 24 exchanges per leaf add up their sums, 8 values in each lane. (xqa_values.cuh)
//   state    numerators, maxima and sums of a leaf merge into those of the unit in a binary tree with a stack in shared
//            memory (softmax_state.cuh). The unit's state is stored as outputs if the row has no other unit, else as a
//            partial state for the combine kernel. (xqa_state.cuh)
//
// Loads are issued early: the addresses of a leaf's tiles a leaf ahead, V before the weights are made. Loops keep the
// code of a leaf short, since a sub-core keeps 12 KB of code.
//
// K and V fragments come straight from global memory, so shared memory holds Q, P, maxima, sums, addresses of tiles and
// the stack. The tensor core truncates its sums; accumulators start from zero for every leaf, which keeps that error
// near 1e-6.
//
// Registers: 32 of K or V in flight, 32 of PV accumulators, 8 of the state: 2 blocks of 8 warps per SM at D 256.
// Bound: DRAM. A leaf is 64 KB at D 256 in FP8, 8500 cycles of an SM's share of 850 GB/s at 1.38 GHz. Its tensor work
// takes 18 % of that, its instructions about 40 % of the issue slots.
#pragma once

#include "ops/decode/work_units.cuh"
#include "ops/decode/xqa_inputs.cuh"
#include "ops/decode/xqa_scores.cuh"
#include "ops/decode/xqa_state.cuh"
#include "ops/decode/xqa_values.cuh"
#include "ops/decode/xqa_weights.cuh"

namespace sm70::decode {

template <typename S>
class Xqa {
 public:
    __device__ __forceinline__ Xqa(const DecodeParams& p, XqaShared<S>& shared, XqaStackLevel<S>* stack)
        : block_(p, shared), scores_(block_), stack_(stack) {}

    __device__ __forceinline__ void run() {
        const int32_t of_launch = level_of_launch(block_.p.schedule, block_.shared.totals);
        __syncthreads();  // before its place is taken: registers are scarcer than shared memory
        if (threadIdx.x == 0) block_.shared.totals[0] = of_launch;
        __syncthreads();
        WorkUnitCursor cursor;
        WorkUnit unit;
        for (int32_t number = static_cast<int32_t>(blockIdx.x); cursor.seek(block_.p.schedule, level(), number, unit);
             number += static_cast<int32_t>(gridDim.x)) {
            XqaState<S> state;
            reduce_unit(unit, state);
            if (unit.count == 1) {
                store_output(block_, unit, state);
            } else {
                store_partial_state(block_, number, state);
            }
        }
    }

 private:
    __device__ __forceinline__ int32_t level() const { return block_.shared.totals[0]; }

    __device__ __forceinline__ void reduce_unit(const WorkUnit& unit, XqaState<S>& state) {
        const int32_t request = request_of(block_.p, unit.row);
        const uint32_t first = static_cast<uint32_t>(unit.index) << level();
        const uint32_t leaves = min(1u << level(), static_cast<uint32_t>(leaves_of(unit.length)) - first);
        if (block_.warp == 0) look_up_tiles(block_, unit, request, first);
        load_query(block_, unit);
        __syncthreads();
        uint32_t nan = 0;
        reduce_tree(
            leaves, [&](uint32_t leaf) { reduce_leaf(unit, request, first + leaf, leaf + 1 < leaves, state, nan); },
            [&](uint32_t below) { push_state(block_, stack_[below], state); },
            [&](uint32_t below) { merge_state(block_, stack_[below], state); });
        if (__syncthreads_or(static_cast<int>(nan))) {
#pragma unroll
            for (int tile = 0; tile < S::kRowTiles; ++tile) {
                state.denominators[tile][0].sum = state.denominators[tile][1].sum = quiet_nan();
            }
        }
    }

    // state becomes that of one leaf. The addresses of the leaf's tiles are there; those of the next leaf's are looked
    // up if the unit has one. `nan` collects bits of NaN in K and V, which operands lose.
    __device__ __forceinline__ void reduce_leaf(const WorkUnit& unit, int32_t request, uint32_t leaf, bool has_next,
                                                XqaState<S>& state, uint32_t& nan) {
        typename XqaScores<S>::Scores scores;
        typename XqaScores<S>::KeyVectors keys;
        scores_.load_keys(block_, unit, leaf, 0, keys);
        if (has_next && block_.warp == (leaf + 1) % S::kWarps) look_up_tiles(block_, unit, request, leaf + 1);
        scores_.score_tiles(block_, unit, leaf, keys, scores, nan);
        typename XqaValues<S>::ValueVectors values;
        if constexpr (S::kLoadsValuesEarly) XqaValues<S>::load_values(block_, unit, leaf, 0, values);
        XqaRowValues<S> maxima;
        store_maxima(block_, scores);
        __syncthreads();
        load_maxima(block_, maxima);
        store_weights(block_, scores, maxima);
        __syncthreads();
        load_denominators(block_, maxima, state.denominators);
        if constexpr (!S::kLoadsValuesEarly) XqaValues<S>::load_values(block_, unit, leaf, 0, values);
        XqaValues<S>::add_values(block_, unit, leaf, values, state.numerators, nan);
    }

    const XqaBlock<S> block_;
    XqaScores<S> scores_;
    XqaStackLevel<S>* stack_;
};

template <typename Format, int kHeadDim, int kRowTiles, bool kMasksTail = true>
__device__ __forceinline__ void xqa(const DecodeParams& p) {
    using S = XqaTraits<Format, kHeadDim, kRowTiles, kMasksTail>;
    static_assert(sizeof(XqaShared<S>) == xqa_shared_bytes(kHeadDim, kRowTiles));
    static_assert(sizeof(XqaStackLevel<S>) == xqa_level_bytes(kHeadDim, kRowTiles));
    extern __shared__ uint4 dynamic_shared[];
    auto& shared = *reinterpret_cast<XqaShared<S>*>(dynamic_shared);
    auto* stack = reinterpret_cast<XqaStackLevel<S>*>(&shared + 1);
    Xqa<S>(p, shared, stack).run();
}

}  // namespace sm70::decode
