// prefill: fused attention of a tile of 128 query rows over long keys, scores and probabilities in registers.
//
// A row is a (query, head) pair. The query heads of a KV head's group are packed query by query, so that any group size
// fills tiles. Each of the 8 warps has 16 rows of its own through both products; only Q, K and V go through shared
// memory.
//
//   scores   S[16 x 128] of a warp = Q K^T: quad-pair qp takes keys 32 t + 8 qp .. + 7, t = 0..3. 64 registers.
//            (products.cuh)
//   softmax  in FP32, base 2. P = 2^(S - maximum) is rounded to FP16 where it becomes an operand, and summed as
//            rounded. The tensor cores wait only for the weights of the first 32 keys: those of the next 32 are made
//            beside the products of the 32 before. (softmax.cuh)
//   values   O[16 x D] += P V: quad-pair qp takes dimensions 64 i + 16 qp .. + 15. 128 registers at D 256. A quad-pair
//            has P of its own keys only. The others' come by shuffle, which costs what loading them would.
//            (products.cuh)
//   state    O, maximum and sum of each row, stored as outputs, or as a partial state if other blocks have other keys
//            of the tile. (rows.cuh)
//
// K comes in slices of 128 keys x 32 dimensions, V in slices of 8 KB (16 keys at D 256), through a ring of two stages
// in shared memory with one barrier per slice (ring.cuh). A thread has half of its part of a slice in flight: loaded
// half a slice before it is stored, stored a slice before it is used.
//
// Shared memory at D 256: Q 64 KB, the ring 16 KB, what threads need once per tile 12 KB. Fragment loads are LDS.128,
// free of bank conflicts by swizzle and padding. For 128 keys, per sub-core (2 warps), and per SM for its one port:
//
//   tensor cores  16384 cycles: 4096 HMMA steps of 2 cycles per warp
//   port          12288 cycles: Q and K 6144, P (shuffles) 1024, V 4096, storing slices 1024
//   issue         10600 slots: 8192 HMMA, 650 loads and shuffles, 130 exponentials, the rest of the softmax
//   XU             1024 cycles: 128 exponentials
//
// The tensor cores are the bound. The notebook on prefill says what is lost beside them, and what was tried.
//
// Plain tiles, all but the last few, have neither masks nor ends. The tensor core truncates its sums, so every
// kFoldTiles tiles O is folded into an FP32 partial state in global memory, and starts from zero again.
#pragma once

#include "ops/prefill/ring.cuh"
#include "ops/prefill/softmax.cuh"

namespace sm70::prefill {

template <typename T>
class Attend : private Softmax<T> {
    using Base = Softmax<T>;
    using Base::add_folded, Base::clear_output, Base::finish_sums, Base::store_partial_state, Base::store_rows;
    using Base::add_scores, Base::add_values, Base::load_rows, Base::save_rows;
    using Base::collect_nan, Base::exchange_pairs, Base::mask, Base::raise_maximum, Base::weigh_pair;
    using Base::maximum_, Base::p_, Base::sum_, Base::thread_state_;

 public:
    __device__ __forceinline__ Attend(const PrefillParams& p, const SharedMemory<T>& shared)
        : Base(p, shared), query_(shared.query), range_(shared.range), ring_(p, shared) {}

    // Returns the work item's number, which it does not keep in a register meanwhile.
    __device__ __forceinline__ int32_t run(int32_t number) {
        int32_t plain_tiles;
        {
            const WorkItem item = work_item(p_, number);
            const Sequence sequence = sequence_of(p_, item.sequence);
            if (item.first_row >= packed_rows(p_, sequence)) return number;
            const int32_t tiles = key_tiles(p_, sequence, item.first_row);
            const int32_t tile = item.split ? part_start(p_, tiles, item.part) : 0;
            const int32_t last_tile = item.split ? part_start(p_, tiles, item.part + 1) : tiles;
            // In a plain tile, and in the one after it, from which it already loads, every row sees every key. Every
            // row of the tile sees at least what the first sees.
            const int32_t unmasked = min(visible_keys(p_, sequence, item.first_row) / kTileKeys, last_tile);
            plain_tiles = max(unmasked - 1 - tile, 0);
            const int32_t edge_tile = tile + plain_tiles;
            __syncthreads();  // shared memory may still be read for the last work item
            if (threadIdx.x == 0) {
                *range_ = {number, plain_tiles, last_tile - edge_tile, edge_tile * kTileKeys,
                           min(sequence.keys, last_tile * kTileKeys) - edge_tile * kTileKeys};
            }
            ring_.load_query(item, sequence, query_);
            ring_.set_sources(item, sequence, tile);
        }
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            maximum_[row] = kNoScore;
            sum_[row] = 0.0f;
        }
        save_rows();
        thread_state_->zero_or_nan = 0.0f;
        ring_.store_next_key();
        clear_output();
        uint4 vector;     // of K or V, in flight
        __syncthreads();  // the range is there
        ring_.set_keys_left(plain_tiles * kTileKeys + range_->edge_keys);
        ring_.fill(vector);
        for (int32_t left = plain_tiles; left > 0;) {
            add_tile<true>(vector, 0);
            --left;
            if (left % kFoldTiles == 0 && left > 0) fold(range_->number, range_->plain_tiles - left > kFoldTiles);
        }
        ring_.set_keys_left(range_->edge_keys);
        for (int32_t key = 0; key < range_->edge_keys; key += kTileKeys) {
            add_tile<false>(vector, range_->edge_key + key);
            ring_.next_tile();
        }
        finish(range_->number, range_->plain_tiles > kFoldTiles);
        return range_->number;
    }

 private:
    // One tile of keys; `first_key` is that of an edge tile.
    template <bool kPlain>
    __device__ __forceinline__ void add_tile(uint4& vector, int32_t first_key) {
        Scores scores = {};
#pragma unroll
        for (int slice = 0; slice < T::kKeySlices; ++slice) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                ring_.template advance<kPlain>(slice, half, vector);
                add_scores(scores, slice, half);
            }
        }
        load_rows();
        if (!kPlain) {
            collect_nan(scores);
            mask(scores, range_->number, first_key);
        }
        raise_maximum(scores);
        if (kPlain) collect_nan(scores);
        // Weights of 32 keys are made while the tensor cores work on the 32 before.
        Weights weights;
        {
            uint32_t pairs[8];
#pragma unroll
            for (int number = 0; number < 8; ++number) weigh_pair(scores[0], number, pairs);
            exchange_pairs(pairs, weights);
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            uint32_t pairs[8];
#pragma unroll
            for (int number = 0; number < 8; ++number) {
                const int step = 8 * part + number;
                constexpr int kSteps = T::kHalfSliceValueKeys / 4;
                if (step % kSteps == 0) {
                    ring_.template advance<kPlain>(T::kKeySlices + step / kSteps / 2, step / kSteps % 2, vector);
                }
                add_values(weights, step);
                if (part < 3) weigh_pair(scores[part + 1], number, pairs);
            }
            if (part < 3) exchange_pairs(pairs, weights);
        }
        save_rows();
    }

    // O into the block's partial state. `again`: it has been folded before.
    __device__ __forceinline__ void fold(int32_t number, bool again) {
        load_rows();
        const int32_t partial_state = work_item(p_, number).partial_state;
        if (again) add_folded(partial_state);
        store_partial_state(partial_state);
        clear_output();
    }

    __device__ __forceinline__ void finish(int32_t number, bool folded) {
        load_rows();
        const WorkItem item = work_item(p_, number);
        if (folded) add_folded(item.partial_state);
        finish_sums();
        if (item.split) {
            store_partial_state(item.partial_state);
        } else {
            store_rows(item, sequence_of(p_, item.sequence));
        }
    }

    uint4* query_;
    Range* range_;
    Ring<T> ring_;
};

// Work items: tiles that one block does alone, and parts of the keys of those that several share.
template <int kHeadDim, bool kWide>
__device__ __forceinline__ void attend(const PrefillParams& p) {
    using T = Traits<kHeadDim, kWide>;
    extern __shared__ uint4 dynamic_shared[];
    Attend<T> block(p, SharedMemory<T>(dynamic_shared));
    int32_t number = static_cast<int32_t>(blockIdx.x);
    while (number < work_items(p)) number = block.run(number) + static_cast<int32_t>(gridDim.x);
}

}  // namespace sm70::prefill
