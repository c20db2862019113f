// verify on tensor cores: up to 48 rows share one pass over K and V. A row is a query head of one of a request's query
// rows.
//
// A block has D / 32 warps: 8 at D 256, with one block per SM. It reduces chunks (pass_chunks.cuh) leaf by leaf, 128
// keys at a time. For the scores each warp takes a share of the keys; for the values it takes all keys, and 32
// dimensions.
//
//   scores   each of the four quad-pairs has a quarter of the dimensions. A lane of quad-pair qp holds
//            K[key][32 s + 8 qp .. + 7] of two keys for all s as halves, 64 registers, converted once. Q comes from
//            shared memory, and each fragment serves both keys' tiles. A K16 product is over the 16 dimensions of two
//            loads; numerics.cuh says how they are summed. 12 exchanges per row tile add up the quad-pairs and leave
//            each lane two rows x two keys. (scores.cuh)
//   weights  P = 2^(S - running maximum), as a high half and a residual half x 2^11, to shared memory in the order in
//            which lanes take them as A fragments: both in one load of 16 bytes. P is exact to 2^-23 of itself, down to
//            2^-24 to 2^-35 of the largest. (weights.cuh)
//   values   quad-pairs arranged 2 x 2: 16 rows x 16 dimensions per instruction, 48 x 32 per warp. V comes straight
//   from
//            global memory, 8 bytes per lane and k-step, each in flight for 32 keys. High and residual products have
//            fresh accumulators for every 32 keys, since the tensor core truncates its sums (values.cuh has the
//            reason). Folding them takes two FMAs: residual x 2^-11 + high, then state x decay + that. The decay is 1
//            except in the first fold of a leaf. (values.cuh)
//   K        of the next leaf is loaded during the values, two loads for every 32 keys, and waits in shared memory.
//   state    goes to the workspace, as a partial state of each row. (partial_states.cuh)
//
// Shared memory at 48 rows, D 256: Q 24 KB, weights 25 KB, K 32 KB, sums 12 KB, maxima and the rest 2 KB: 95 of 96 KB.
// Registers: 48 of the state, 96 of fresh accumulators, 16 of V in flight, 12 to 24 of weights: 255, nothing spilled.
//
// Bound at 48 rows, D 256, E4M3, per sub-core and leaf of 128 keys: tensor 9216 cycles (scores 3072, values 6144);
// issue about 8900 (HMMA 4608, FADD of the sums 768, conversions and NaN 1900, folds 770, weights 700); DRAM 8500 at
// 850 GB/s and 1.38 GHz; the SM's port 5600. 256K keys are 25.6 leaves per SM: 0.171 ms by the tensor cores, 0.158 by
// DRAM.
#pragma once

#include "ops/verify/partial_states.cuh"

namespace sm70::verify {

template <typename S>
class Verify : private VerifyPartialStates<S> {
    using Base = VerifyPartialStates<S>;
    using Base::find_tile, Base::place_tile, Base::load_keys, Base::load_values, Base::score_tile, Base::advance;
    using Base::shared_, Base::warp_, Base::find_chunk, Base::length_in_pass, Base::shortest_row, Base::load_query;
    using Base::store_weights, Base::add_values, Base::store_partial_states;
    using typename Base::Accumulators;

 public:
    __device__ __forceinline__ Verify(const VerifyParams& p, VerifyShared<S>& shared) : Base(p, shared) {}

    __device__ __forceinline__ void run() {
        // The chunk is kept in shared memory: in registers it would take some that the leaves need.
        if (threadIdx.x == 0) shared_.cursor = {0, 0, static_cast<int32_t>(blockIdx.x)};
        do {
            __syncthreads();  // shared memory may still be read for the last chunk
            if (warp_ == 0) find_chunk();
            __syncthreads();
            if (shared_.chunk.pass.longest == 0) return;
            reduce_chunk();
        } while (!shared_.is_last);
    }

 private:
    // Reduces the keys of a chunk to one state, and stores it.
    __device__ __forceinline__ void reduce_chunk() {
        const PassChunk& chunk = shared_.chunk;
        const uint32_t first = static_cast<uint32_t>(chunk.index) * chunk.pass.leaves;
        const uint32_t last = min(first + chunk.pass.leaves, static_cast<uint32_t>(leaves_of(chunk.pass.longest)));
        const uint32_t longest = static_cast<uint32_t>(chunk.pass.longest);
        if (threadIdx.x < S::kLeafTiles) place_tile(chunk, first, find_tile(chunk, first));
        if (threadIdx.x < S::kRows) shared_.lengths[threadIdx.x] = length_in_pass(chunk, threadIdx.x);
#pragma unroll
        for (int i = 0; i < 2 * S::kRowTiles; ++i) shared_.sums[i][threadIdx.x] = 0.0f;
        __syncthreads();

        // All loads for the first leaf are in flight together.
        uint2 values[S::kFreshTiles][S::kTileSteps];
        {
            uint4 keys[S::kStagedKeys];
#pragma unroll
            for (int load = 0; load < S::kStagedKeys; ++load) keys[load] = load_keys(first, load, longest);
#pragma unroll
            for (int tile = 0; tile < S::kFreshTiles; ++tile) load_values(values[tile], first, tile, longest);
            load_query(chunk);
#pragma unroll
            for (int load = 0; load < S::kStagedKeys; ++load) shared_.keys[load][threadIdx.x] = keys[load];
        }
        __syncthreads();
        PerRow<S::kRows> maximum;
#pragma unroll
        for (float& owned : maximum.owned) owned = negative_infinity();
        Accumulators state = {};
        const uint32_t shortest = shortest_row();

        for (uint32_t leaf = first; leaf < last; ++leaf) {
            const bool more = leaf + 1 < last;
            TilePlace next{};
            if (more && threadIdx.x < S::kLeafTiles) next = find_tile(chunk, leaf + 1);

            const bool masked = (leaf + 1) * kLeafTokens > shortest;
#pragma unroll
            for (int tile = 0; tile < S::kTilesPerWarp; ++tile) score_tile(leaf, tile, masked);
            __syncthreads();
            if (more && threadIdx.x < S::kLeafTiles) place_tile(chunk, leaf + 1, next);
            const PerRow<S::kRows> decay = advance(maximum);
            store_weights(maximum, decay);
            __syncthreads();
            add_values(leaf, more, longest, decay, values, state);
        }
        store_partial_states(chunk, maximum, state);
    }
};

template <typename Format, int kHeadDim, int kRowTiles, typename Numerics = Shipped>
__device__ __forceinline__ void verify(const VerifyParams& p) {
    using S = Traits<Format, kHeadDim, kRowTiles, Numerics>;
    static_assert(sizeof(VerifyShared<S>) == verify_shared_bytes(kHeadDim, kRowTiles));
    extern __shared__ uint4 dynamic_shared[];
    Verify<S>(p, *reinterpret_cast<VerifyShared<S>*>(dynamic_shared)).run();
}

}  // namespace sm70::verify
