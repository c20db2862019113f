// Values of verify: the products of weights and V, folded into the FP32 state.
#pragma once

#include "ops/verify/weights.cuh"

namespace sm70::verify {

template <typename S>
class Values : protected Weights<S> {
    using Base = Weights<S>;

 protected:
    using Base::Base;
    using Base::p_, Base::shared_, Base::lane_, Base::row_of, Base::tile_of_pair, Base::load_keys;
    using Base::value_source, Base::mark_special_values;
    using typename Base::Accumulators;

    // The leaf's values into the state. Meanwhile the next leaf's K and first values are on their way.
    __device__ __forceinline__ void add_values(uint32_t leaf, bool more, uint32_t longest,
                                               const PerRow<S::kRows>& decay,
                                               uint2 (&values)[S::kFreshTiles][S::kTileSteps], Accumulators& state) {
        constexpr bool kLongLived = S::Numerics::kValueSums == ValueSums::kLongLived;
        uint4 keys = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (uint32_t first = 0; first < S::kLeafTiles; first += S::kFreshTiles) {
            Accumulators high = {}, residual = {};
            if constexpr (kLongLived) carry_over(high, state, decay, first == 0);
#pragma unroll
            for (int half = 0; half < S::kFreshTiles; ++half) {
                add_tile(leaf, first + half, more, longest, keys, values[half], high, residual);
            }
            float factors[S::kRowPairs][2];
            find_factors(factors, decay, first == 0);
#pragma unroll
            for (int pair = 0; pair < S::kRowPairs; ++pair) {
#pragma unroll
                for (int b = 0; b < 2; ++b) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        float fresh = high[pair][b][i];
                        if constexpr (S::Numerics::kResidual) fresh = __fmaf_rn(residual[pair][b][i], 0x1p-11f, fresh);
                        float& sum = state[pair][b][i];
                        sum = kLongLived ? fresh : __fmaf_rn(sum, factors[pair][i / 2 % 2], fresh);
                    }
                }
            }
        }
        if (more) shared_.keys[S::kStagedKeys - 1][threadIdx.x] = keys;
    }

 private:
    // What the states of the lane's rows count by: the leaf's maxima may be above those before it.
    __device__ __forceinline__ void find_factors(float (&factors)[S::kRowPairs][2], const PerRow<S::kRows>& decay,
                                                 bool first) const {
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) factors[pair][0] = factors[pair][1] = 1.0f;
        if (!first) return;
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                factors[pair][second] = decay.of(16 * pair, 8 * tile_of_pair() + row_of(second));
            }
        }
    }

    // 16 keys. The K that the last call has loaded is there by now, and is put aside; this one loads more.
    __device__ __forceinline__ void add_tile(uint32_t leaf, uint32_t tile, bool more, uint32_t longest, uint4& keys,
                                             uint2 (&values)[S::kTileSteps], Accumulators& high,
                                             Accumulators& residual) {
        // Keeps the compiler from taking loads and conversions of one tile into the code of another: registers are few.
        __syncwarp();
        // Before more loads are on their way: they share what a wait waits for.
        if (more && tile > 0) shared_.keys[tile - 1][threadIdx.x] = keys;
        keys = load_keys(leaf + 1, tile, more ? longest : 0);
        const uint32_t next = tile + S::kFreshTiles;
        const uint32_t next_leaf = leaf + next / S::kLeafTiles, next_tile = next % S::kLeafTiles;
        const uint32_t next_limit = next_leaf == leaf || more ? longest : 0;
        const int32_t next_live = static_cast<int32_t>(next_limit) -
                                  static_cast<int32_t>(next_leaf * kLeafTokens + next_tile * kTileTokens + lane_.quad);
        const uint8_t* source = value_source(next_leaf, next_tile);
        uint32_t special = 0;
#pragma unroll
        for (int step = 0; step < S::kTileSteps; ++step) {
            uint32_t words[2] = {values[step].x, values[step].y};
            special |= S::Special::in_values(words, tile_of_pair());
            const HalfFragment v[2] = {S::Operand::operand(words), S::Operand::operand(words + 1)};
            values[step] = load_8_bytes(source, 4 * step < next_live);
            source += 4 * p_.kv.v.token_bytes;
            const auto& weights = shared_.weights[S::kTileSteps * tile + step].rows;
#pragma unroll
            for (int pair = 0; pair < S::kRowPairs; ++pair) {
                const uint4 w = weights[16 * pair + 8 * tile_of_pair() + lane_.operand_row];
#pragma unroll
                for (int b = 0; b < 2; ++b) {
                    mma_row_row(high[pair][b], {w.x, w.y}, v[b]);
                    if constexpr (S::Numerics::kResidual) mma_row_row(residual[pair][b], {w.z, w.w}, v[b]);
                }
            }
        }
        if ((special & kSpecialBits) != 0) mark_special_values(leaf, tile, longest);
    }

    __device__ __forceinline__ void carry_over(Accumulators& to, const Accumulators& from,
                                               const PerRow<S::kRows>& decay, bool first) const {
        float factors[S::kRowPairs][2];
        find_factors(factors, decay, first);
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) {
#pragma unroll
            for (int b = 0; b < 2; ++b) {
#pragma unroll
                for (int i = 0; i < 8; ++i) to[pair][b][i] = __fmul_rn(from[pair][b][i], factors[pair][i / 2 % 2]);
            }
        }
    }
};

}  // namespace sm70::verify
