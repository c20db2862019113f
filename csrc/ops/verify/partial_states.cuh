// What a block of verify leaves in the workspace: the partial states of the rows of a chunk.
#pragma once

#include "ops/verify/values.cuh"

namespace sm70::verify {

template <typename S>
class VerifyPartialStates : protected VerifyValues<S> {
    using Base = VerifyValues<S>;

 protected:
    using Base::Base;
    using Base::half_of_dimensions, Base::row_at;
    using Base::p_, Base::shared_, Base::lane_, Base::warp_, Base::tile_of_pair;
    using typename Base::Accumulators;

    // Stores the state of the rows that have keys in the chunk.
    __device__ __forceinline__ void store_partial_states(const PassChunk& chunk, const PerRow<S::kRows>& maximum,
                                                         const Accumulators& state) {
        const uint32_t first_token = static_cast<uint32_t>(chunk.index * chunk.pass.leaves) * kLeafTokens;
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const float sum = row_sum(shared_.sums[2 * r + second][threadIdx.x]);
                if (lane_.leads_its_rows()) shared_.maxima[warp_][8 * r + lane_.row(second)] = sum;
            }
        }
        __syncthreads();
        PerRow<S::kRows> sums;
#pragma unroll
        for (int i = 0; i < PerRow<S::kRows>::kOwned; ++i) {
            const uint32_t row = min(32 * i + lane_.index, S::kRows - 1u);
            float sum = shared_.maxima[0][row];
#pragma unroll
            for (int w = 1; w < S::kWarps; ++w) sum = __fadd_rn(sum, shared_.maxima[w][row]);
            if (shared_.lengths[row] > shared_.first_special) sum = quiet_nan();
            sums.owned[i] = sum;
            if (warp_ == 0 && 32 * i + lane_.index < S::kRows && has_keys(row, first_token)) {
                store_denominator(chunk, row, maximum.owned[i], sum);
            }
        }
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const uint32_t in_pair = 8 * tile_of_pair() + lane_.row(second), row = 16 * pair + in_pair;
                const float sum = sums.of(16 * pair, in_pair);
                // Lanes n and n ^ 2 hold halves of four dimensions of both instructions. Each gets all four of one, so
                // that a store fills sectors.
                const bool upper = (lane_.index & 2) != 0;
                float4 fours[2];
#pragma unroll
                for (int i = 2 * second; i < 8; i += 4) {
                    float kept[2], received[2];
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const float low = partial(state[pair][0][i + j], sum),
                                    high = partial(state[pair][1][i + j], sum);
                        kept[j] = upper ? high : low;
                        received[j] = exchange(upper ? low : high, 2);
                    }
                    fours[i / 4] = upper ? make_float4(received[0], received[1], kept[0], kept[1])
                                         : make_float4(kept[0], kept[1], received[0], received[1]);
                }
                if (!has_keys(row, first_token)) continue;
                float* target = partial_state_of(chunk, row) + row_at(chunk, row).head_in_group * S::kHeadDim +
                                32 * warp_ + 16 * half_of_dimensions() + 2 * (lane_.index & 2);
#pragma unroll
                for (int i = 2 * second; i < 8; i += 4) {
                    *reinterpret_cast<float4*>(target + 2 * (i & 4)) = fours[i / 4];
                }
            }
        }
    }

 private:
    __device__ __forceinline__ bool has_keys(uint32_t row, uint32_t first_token) const {
        return shared_.lengths[row] > static_cast<int32_t>(first_token);
    }

    // A numerator, and a denominator, as the workspace gets them.
    __device__ __forceinline__ static float partial(float numerator, float sum) {
        if constexpr (S::Numerics::kPartials == Partials::kNumerators) return numerator;
        return __half2float(__float2half_rn(__fdividef(numerator, sum) * S::Operand::kInverseScale)) *
               S::Operand::kOperandScale;
    }
    __device__ __forceinline__ void store_denominator(const PassChunk& chunk, uint32_t row, float maximum, float sum) {
        if constexpr (S::Numerics::kPartials == Partials::kNormalisedHalves) {
            maximum += __log2f(sum);
            sum = sum == sum ? 1.0f : sum;
        }
        auto* denominators = reinterpret_cast<float2*>(partial_state_of(chunk, row) + p_.group * S::kHeadDim);
        denominators[row_at(chunk, row).head_in_group] = make_float2(maximum, sum);
    }

    __device__ __forceinline__ float* partial_state_of(const PassChunk& chunk, uint32_t row) const {
        const int64_t query_row = static_cast<int64_t>(chunk.request) * p_.q_rows + row_at(chunk, row).query_row;
        const int64_t number = (query_row * p_.kv_heads + chunk.head) * p_.chunks + chunk.index;
        return p_.partial_states + number * partial_state_floats(p_.group, S::kHeadDim);
    }
};

}  // namespace sm70::verify
