// Values of verify: the products of weights and V, folded into the FP32 state.
//
// Why fresh accumulators: the tensor core truncates every sum instead of rounding it, so an accumulator that it adds to
// for a whole row loses a little each time, always toward zero. For a row of 256K keys with values of one sign that is
// a relative error of -5.4e-3. An accumulator that starts from zero and lives for 32 keys only has eight such steps.
// It is then folded into the long-lived FP32 state by an FMA, which rounds to nearest, so that errors do not pile up:
// -2e-9 at 256K keys. (Measured with the verify_controls kernels: the notebook on verify has the table, operator
// "verify" in the operators' contract the exact order of operations.) The high and the residual products need
// accumulators of their own, since the residual is scaled by 2^11.
#pragma once

#include "ops/verify/weights.cuh"

namespace sm70::verify {

template <typename S>
class VerifyValues : protected VerifyWeights<S> {
    using Base = VerifyWeights<S>;

 protected:
    using Base::Base;
    using Base::p_, Base::shared_, Base::lane_, Base::tile_of_pair, Base::load_keys;
    using Base::value_source, Base::mark_special_values;
    using typename Base::Accumulators;

    // Folds the leaf's values into the state. Meanwhile K and the first values of the next leaf are in flight.
    __device__ __forceinline__ void add_values(uint32_t leaf, bool more, uint32_t longest,
                                               const PerRow<S::kRows>& decay,
                                               uint2 (&values)[S::kFreshTiles][S::kTileSteps], Accumulators& state) {
        constexpr bool kLongLived = S::Numerics::kValueSums == ValueSums::kLongLived;
        uint4 keys = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (uint32_t first = 0; first < S::kLeafTiles; first += S::kFreshTiles) {
            Accumulators high = {}, residual = {};
            if constexpr (kLongLived) start_from_state(high, state, decay, first == 0);
#pragma unroll
            for (int half = 0; half < S::kFreshTiles; ++half) {
                add_tile(leaf, first + half, more, longest, keys, values[half], high, residual);
            }
            float factors[S::kRowPairs][2];
            find_factors(factors, decay, first == 0);
            for_each_element(state, [&](float& sum, int pair, int b, int i) {
                float fresh = high[pair][b][i];
                if constexpr (S::Numerics::kResidual) fresh = __fmaf_rn(residual[pair][b][i], 0x1p-11f, fresh);
                sum = kLongLived ? fresh : __fmaf_rn(sum, factors[pair][i / 2 % 2], fresh);
            });
        }
        if (more) shared_.keys[S::kStagedKeys - 1][threadIdx.x] = keys;
    }

 private:
    // By how much the numerators of the lane's rows shrink: at the leaf's first fold, since its maxima may be higher
    // than the earlier ones.
    __device__ __forceinline__ void find_factors(float (&factors)[S::kRowPairs][2], const PerRow<S::kRows>& decay,
                                                 bool first) const {
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) factors[pair][0] = factors[pair][1] = 1.0f;
        if (!first) return;
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                factors[pair][second] = decay.of(16 * pair, 8 * tile_of_pair() + lane_.row(second));
            }
        }
    }

    // Adds 16 keys. By now the K that the last call loaded has arrived, and goes to shared memory; this call loads
    // more.
    __device__ __forceinline__ void add_tile(uint32_t leaf, uint32_t tile, bool more, uint32_t longest, uint4& keys,
                                             uint2 (&values)[S::kTileSteps], Accumulators& high,
                                             Accumulators& residual) {
        // Keeps the compiler from moving loads and conversions of one tile into the code of another: registers are few.
        __syncwarp();
        // Before the next loads start: they share a scoreboard with this one, and the store would wait for them too.
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

    // A control of the tests: the accumulator starts from the state instead of zero.
    __device__ __forceinline__ void start_from_state(Accumulators& to, const Accumulators& from,
                                                     const PerRow<S::kRows>& decay, bool first) const {
        float factors[S::kRowPairs][2];
        find_factors(factors, decay, first);
        for_each_element(to, [&](float& element, int pair, int b, int i) {
            element = __fmul_rn(from[pair][b][i], factors[pair][i / 2 % 2]);
        });
    }
};

}  // namespace sm70::verify
