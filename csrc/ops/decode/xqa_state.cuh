// The softmax state of a work unit of xqa, spread over the block's threads: its stack, and what is stored of it.
#pragma once

#include "ops/decode/outputs.cuh"
#include "ops/decode/xqa_traits.cuh"

namespace sm70::decode {

template <typename S>
struct XqaState {
    float numerators[S::kRowTiles][8];
    SoftmaxDenominator denominators[S::kRowTiles][2];  // of the lane's two rows in each row tile
};

// One level of the stack: numerators by thread, free of bank conflicts, and the rows' denominators.
template <typename S>
struct XqaStackLevel {
    float4 numerators[S::kValues / 4][S::kThreads];
    SoftmaxDenominator denominators[S::kRows];
};

template <typename S>
__device__ __forceinline__ void push_state(const XqaBlock<S>& block, XqaStackLevel<S>& level,
                                           const XqaState<S>& state) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
        const float(&n)[8] = state.numerators[r];
        level.numerators[2 * r][threadIdx.x] = make_float4(n[0], n[1], n[2], n[3]);
        level.numerators[2 * r + 1][threadIdx.x] = make_float4(n[4], n[5], n[6], n[7]);
        // Nothing reads these before the next leaf's barriers.
        if (block.warp == 0 && block.lane.leads_its_rows()) {
            level.denominators[8 * r + block.lane.row(0)] = state.denominators[r][0];
            level.denominators[8 * r + block.lane.row(1)] = state.denominators[r][1];
        }
    }
}

// state becomes the union of the level's state, whose keys come first, and itself.
template <typename S>
__device__ __forceinline__ void merge_state(const XqaBlock<S>& block, const XqaStackLevel<S>& level,
                                            XqaState<S>& state) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
        MergeFactors factors[2];
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            SoftmaxDenominator left = level.denominators[8 * r + block.lane.row(row)];
            factors[row] = merge_denominators(left, state.denominators[r][row]);
            state.denominators[r][row] = left;
        }
#pragma unroll
        for (int four = 0; four < 2; ++four) {
            const float4 left = level.numerators[2 * r + four][threadIdx.x];
            float* n = &state.numerators[r][4 * four];
            n[0] = merge_numerators(left.x, n[0], factors[0]);
            n[1] = merge_numerators(left.y, n[1], factors[0]);
            n[2] = merge_numerators(left.z, n[2], factors[1]);
            n[3] = merge_numerators(left.w, n[3], factors[1]);
        }
    }
}

// The partial state of work unit `number`, to the workspace.
template <typename S>
__device__ __forceinline__ void store_partial_state(const XqaBlock<S>& block, int32_t number,
                                                    const XqaState<S>& state) {
    float* target = partial_state_of(block.p, number, S::kHeadDim);
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const int32_t head_in_group = static_cast<int32_t>(8 * r + block.lane.row(row));
            // Four neighbouring dimensions to a lane, so that a store fills whole sectors: lanes index and index ^ 2
            // have two each of columns 0 to 3 and of 4 to 7.
            const bool upper_columns = (block.lane.index & 2) != 0;
            const float* n = &state.numerators[r][2 * row];
            const float other0 = exchange(upper_columns ? n[0] : n[4], 2);
            const float other1 = exchange(upper_columns ? n[1] : n[5], 2);
            if (head_in_group >= block.p.group) continue;
            const float4 four =
                upper_columns ? make_float4(other0, other1, n[4], n[5]) : make_float4(n[0], n[1], other0, other1);
            const uint32_t dimension = upper_columns ? block.dimension_of(4) - 2 : block.dimension_of(0);
            *reinterpret_cast<float4*>(target + head_in_group * S::kHeadDim + dimension) = four;
            if (block.warp == 0 && block.lane.leads_its_rows()) {
                const SoftmaxDenominator d = state.denominators[r][row];
                denominators_of(block.p, target, S::kHeadDim)[head_in_group] = make_float2(d.maximum, d.sum);
            }
        }
    }
}

// Outputs of a row that has no other work unit.
template <typename S>
__device__ __forceinline__ void store_output(const XqaBlock<S>& block, const WorkUnit& unit, const XqaState<S>& state) {
#pragma unroll
    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            const int32_t head_in_group = static_cast<int32_t>(8 * r + block.lane.row(row));
            if (head_in_group >= block.p.group) continue;
            const SoftmaxDenominator d = state.denominators[r][row];
            const float factor = output_factor(d.sum, block.output_scale());
            uint16_t* out = out_of(block.p, unit.row, unit.head, head_in_group);
#pragma unroll
            for (int i = 2 * row; i < 8; i += 4) {
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    out[block.dimension_of(i) + j] = output_bits(state.numerators[r][i + j], factor);
                }
            }
            if (block.warp == 0 && block.lane.leads_its_rows()) {
                store_lse(block.p, unit.row, unit.head, head_in_group, log_sum_exp(d));
            }
        }
    }
}

}  // namespace sm70::decode
