// prefill: fused attention of a tile of 128 query rows over long keys, scores and probabilities in registers.
//
// A row is a (query, head) pair: the heads of a KV head's group are packed, query by query, so any group size fills
// tiles. 8 warps, each with 16 rows of its own through both products; nothing but Q, K and V goes through shared
// memory.
//
//   scores   S[16 x 128] of a warp = Q K^T: quad-pair qp takes keys 32 t + 8 qp .. + 7, t = 0..3. 64 registers.
//   softmax  in FP32, base 2. P = 2^(S - maximum) is rounded to FP16 where it becomes an operand, and summed as
//            rounded. Only the weights of the first 32 keys are waited for: those of the next are made beside the
//            products of the ones before.
//   values   O[16 x D] += P V: quad-pair qp takes dimensions 64 i + 16 qp .. + 15. 128 registers at D 256. A quad-pair
//            has P of its own keys only: the others' come by shuffle, which costs what loading them would.
//
// K comes in slices of 128 keys x 32 dimensions, V in slices of 8 KB (16 keys at D 256), through two slots of shared
// memory with one barrier a slice. A thread has half of its part of a slice on the way: loaded half a slice before it
// is stored, stored a slice before it is used.
//
// Shared memory at D 256: Q 64 KB, slots 16 KB, what threads need once a tile 12 KB. Fragment loads are LDS.128, free
// of bank conflicts by swizzle and padding. For 128 keys, a sub-core (2 warps) and the SM's one port:
//
//   tensor cores  16384 cycles: 4096 HMMA steps of 2 cycles a warp
//   port          12288 cycles: Q and K 6144, P (shuffles) 1024, V 4096, storing slices 1024
//   issue         10600 slots: 8192 HMMA, 650 loads and shuffles, 130 exponentials, the rest of the softmax
//   XU             1024 cycles: 128 exponentials
//
// The tensor cores are the bound. What is lost beside them, and what was tried: docs/lab/prefill.md.
//
// Plain tiles have neither masks nor ends: all but the last few. The tensor core truncates what it adds up: O is taken
// out into an FP32 slot in global memory every kFoldTiles tiles and starts again from zero.
#pragma once

#include <cuda_fp16.h>

#include "device/load.cuh"
#include "device/registers.cuh"
#include "ops/prefill/rows.cuh"

namespace sm70::prefill {

// What the main loop needs now and then: in shared memory, where it takes no registers.
struct Range {
    int32_t number;                // of the item
    int32_t plain_tiles;           // from the first
    int32_t edge_tiles, edge_key;  // those after them, and their first key
    int32_t edge_keys;             // what lies past them is not loaded, and zero in a slice
};
static_assert(sizeof(Range) <= kRangeBytes);

// What a thread needs once a tile.
struct ThreadState {
    float4 maximum, sum;   // of its rows
    const char* next_key;  // where it loads from for the next tile
    float probe;           // 0, or NaN once a score was not finite
    int32_t unused;        // makes the size a multiple of 16 bytes
};
static_assert(sizeof(ThreadState) * kThreads == kRowBytes);

template <typename S>
class Attend : private Rows<S> {
    using Base = Rows<S>;
    using Base::clear_output, Base::add_folded, Base::rescale_output, Base::row_in_tile, Base::store_rows;
    using Base::lane_, Base::maximum_, Base::output_, Base::p_, Base::sum_, Base::warp_;
    using Base::store_slot, Base::weight_of;

 public:
    __device__ __forceinline__ Attend(const PrefillParams& p, uint4* shared)
        : Base(p),
          q_(shared),
          ring_(shared + kTileRows * S::kUnits),
          mine_(reinterpret_cast<ThreadState*>(ring_ + 2 * kSlotUnits) + threadIdx.x),
          range_(reinterpret_cast<Range*>(ring_ + 2 * kSlotUnits + 3 * kThreads)),
          query_lane_(q_ + query_unit(16 * warp_ + lane_.operand_row, 0)),
          key_lane_(ring_ + key_unit(8 * lane_.quad_pair + lane_.operand_row, 0)),
          value_lane_(ring_ + value_unit(lane_.quad, 2 * lane_.quad_pair + lane_.upper)),
          key_store_(ring_ + key_unit(threadIdx.x / 4, threadIdx.x % 4)),
          value_store_(ring_ + value_unit(threadIdx.x / S::kUnits, threadIdx.x % S::kUnits)) {}

    // Returns the number, which it does not keep in a register meanwhile.
    __device__ __forceinline__ int32_t run(int32_t number) {
        int32_t plain_tiles;
        {
            const Item item = item_of(p_, number);
            const Sequence sequence = sequence_of(p_, item.sequence);
            if (item.first_row >= packed_rows(p_, sequence)) return number;
            const int32_t tiles = key_tiles(p_, sequence, item.first_row);
            const int32_t tile = item.split ? part_start(p_, tiles, item.part) : 0;
            const int32_t last_tile = item.split ? part_start(p_, tiles, item.part + 1) : tiles;
            // Plain tiles are those all of whose keys every row sees, and so in the next tile, which they load from.
            // Every row of the tile sees at least what the first sees.
            const int32_t unmasked = min(visible_keys(p_, sequence, item.first_row) / kTileKeys, last_tile);
            plain_tiles = max(unmasked - 1 - tile, 0);
            const int32_t edge_tile = tile + plain_tiles;
            __syncthreads();  // shared memory may still be read for the item before
            if (threadIdx.x == 0) {
                *range_ = {number, plain_tiles, last_tile - edge_tile, edge_tile * kTileKeys,
                           min(sequence.keys, last_tile * kTileKeys) - edge_tile * kTileKeys};
            }
            load_query(item, sequence);
            key_source_ = source_of(p_.k, item, sequence, tile, threadIdx.x / 4, threadIdx.x % 4);
            value_source_ = source_of(p_.v, item, sequence, tile, threadIdx.x / S::kUnits, threadIdx.x % S::kUnits);
        }
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            maximum_[row] = kNoScore;
            sum_[row] = 0.0f;
        }
        save_rows();
        mine_->probe = 0.0f;
        mine_->next_key = key_source_ + 2 * p_.key_piece_bytes;
        clear_output();
        uint4 coming;
        __syncthreads();  // the range is there
        begin_edge(plain_tiles * kTileKeys);
        load_piece<false>(0, 0, coming);
        store_piece(0, 0, coming);
        load_piece<false>(0, 1, coming);
        store_piece(0, 1, coming);
        load_piece<false>(1, 0, coming);
        for (int32_t left = plain_tiles; left > 0;) {
            add_tile<true>(coming, 0);
            --left;
            if (left % kFoldTiles == 0 && left > 0) fold(range_->number, range_->plain_tiles - left > kFoldTiles);
        }
        begin_edge(0);
        for (int32_t key = 0; key < range_->edge_keys; key += kTileKeys) {
            add_tile<false>(coming, range_->edge_key + key);
            keys_left_ -= kTileKeys;
            values_left_ -= kTileKeys;
        }
        finish(range_->number, range_->plain_tiles > kFoldTiles);
        return range_->number;
    }

 private:
    __device__ __forceinline__ void begin_edge(int32_t keys_before) {
        const int32_t keys = keys_before + range_->edge_keys;
        keys_left_ = keys - static_cast<int32_t>(threadIdx.x / 4);
        values_left_ = keys - static_cast<int32_t>(threadIdx.x / S::kUnits);
    }

    // One tile of keys; first_key is that of an edge tile.
    template <bool kPlain>
    __device__ __forceinline__ void add_tile(uint4& coming, int32_t first_key) {
        float scores[4][2][8] = {};  // of 32 keys each
#pragma unroll
        for (int slice = 0; slice < S::kKeySlices; ++slice) {
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                turn<kPlain>(slice, half, coming);
                add_scores(scores, slice, half);
            }
        }
        load_rows();
        if (!kPlain) {
            probe(scores);
            mask(scores, range_->number, first_key);
        }
        raise_maximum(scores);
        if (kPlain) probe(scores);
        // Weights of 32 keys are made while the tensor cores work on the 32 before.
        uint32_t weights[2][4];
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
                constexpr int kSteps = S::kPieceKeys / 4;
                if (step % kSteps == 0) turn<kPlain>(S::kKeySlices + step / kSteps / 2, step / kSteps % 2, coming);
                add_values(weights, step);
                if (part < 3) weigh_pair(scores[part + 1], number, pairs);
            }
            if (part < 3) exchange_pairs(pairs, weights);
        }
        save_rows();
    }

    // --- shared memory: units of 16 bytes. Everything is at a distance from one of five addresses that is known when
    // compiling: swizzles only touch bits that belong to the lane or the thread.

    // Unit of Q: 8 dimensions of a row.
    __device__ __forceinline__ static constexpr uint32_t query_unit(uint32_t row, uint32_t unit) {
        return unit * kTileRows + row;
    }

    // Unit of a K slice: 8 of its 32 dimensions, of a key. Readers are 4 neighbouring keys of two neighbouring
    // quad-pairs, which are 8 keys apart; writers are two neighbouring keys with all four units.
    __device__ __forceinline__ static constexpr uint32_t key_unit(uint32_t key, uint32_t unit) {
        return unit * kKeyUnitStride + (key ^ (key >> 3 & 1) << 2);
    }

    // Unit of a V slice: 8 dimensions of a key. Readers are 4 neighbouring keys of two neighbouring quad-pairs, which
    // are two units apart; writers are 8 units of one key.
    __device__ __forceinline__ static constexpr uint32_t value_unit(uint32_t key, uint32_t unit) {
        return key * S::kUnits + (unit ^ (key & 1) ^ (key & 2) << 1);
    }

    __device__ __forceinline__ static constexpr int slot_of(int slice) { return slice % 2 * kSlotUnits; }

    // --- global memory

    // Where a thread's first unit of the next slice is.
    __device__ __forceinline__ static const char* source_of(const TokenTensor& tensor, const Item& item,
                                                            const Sequence& sequence, int32_t tile, uint32_t key,
                                                            uint32_t unit) {
        const int64_t token = sequence.first_key + static_cast<int64_t>(tile) * kTileKeys + key;
        return reinterpret_cast<const char*>(tensor.data + token * tensor.token_stride +
                                             item.head * tensor.head_stride + 8 * unit);
    }

    __device__ __forceinline__ static constexpr bool is_key_slice(int slice) {
        return slice < S::kKeySlices || slice >= S::kSlices;  // the latter: of the next tile
    }

    // Before a half of a slice: the same half of the next slice, which has arrived in a register, is stored, and
    // loading of the half after that starts. The slot is free, since a barrier has passed after the slice before this
    // one.
    template <bool kPlain>
    __device__ __forceinline__ void turn(int slice, int half, uint4& coming) {
        if (half == 0) __syncthreads();
        store_piece(slice + 1, half, coming);
        const int next = slice + 1 + half;
        if (next == S::kSlices && half == 1) {
            key_source_ = mine_->next_key;
            mine_->next_key = key_source_ + 2 * p_.key_piece_bytes;
        }
        load_piece<kPlain>(next, 1 - half, coming);
    }

    // Half of a slice: 64 keys of K, or half the keys of V, of which pieces must be loaded one after the other.
    template <bool kPlain>
    __device__ __forceinline__ void load_piece(int slice, int half, uint4& coming) {
        if (is_key_slice(slice)) {
            const char* source = key_source_ + 64 * (slice % S::kSlices) + half * p_.key_piece_bytes;
            const int first = slice / S::kSlices * kTileKeys + kKeyPieceKeys * half;
            load_live<kPlain>(coming, source, keys_left_ > first);
        } else {
            const int first = (2 * (slice - S::kKeySlices) + half) * S::kPieceKeys;
            load_live<kPlain>(coming, value_source_, values_left_ > first);
            value_source_ += p_.value_piece_bytes;
        }
    }

    template <bool kPlain>
    __device__ __forceinline__ void load_live(uint4& coming, const char* source, bool live) const {
        if (!kPlain) coming = make_uint4(0, 0, 0, 0);
        load_16_bytes_over(coming, source, kPlain ? p_.kv_heads > 0 : live, S::kWide);
    }

    __device__ __forceinline__ void store_piece(int slice, int half, const uint4& coming) const {
        if (is_key_slice(slice)) {
            key_store_[slot_of(slice) + 64 * half] = coming;
        } else {
            value_store_[slot_of(slice) + kThreads * half] = coming;
        }
    }

    // Rows past the last are zeros. Elements are read one by one: the layout of q is any.
    __device__ __forceinline__ void load_query(const Item& item, const Sequence& sequence) const {
        auto* target = reinterpret_cast<uint16_t*>(q_);
#pragma unroll 4
        for (int32_t i = static_cast<int32_t>(forgotten(threadIdx.x)); i < kTileRows * S::kHeadDim; i += kThreads) {
            const int32_t row = i / S::kHeadDim, dimension = i % S::kHeadDim, packed = item.first_row + row;
            uint16_t value = 0;
            if (packed < packed_rows(p_, sequence)) {
                const uint32_t query = p_.group.divide(packed), member = p_.group.remainder(packed, query);
                const int64_t head = static_cast<int64_t>(item.head) * p_.group.divisor + member;
                value = p_.q.data[(sequence.first_query + static_cast<int64_t>(query)) * p_.q.token_stride +
                                  head * p_.q.head_stride + dimension];
            }
            target[query_unit(row, dimension / 8) * 8 + dimension % 8] = value;
        }
    }

    // --- the two products

    __device__ __forceinline__ void add_scores(float (&scores)[4][2][8], int slice, int half) const {
#pragma unroll
        for (int unit = 2 * half; unit < 2 * half + 2; ++unit) {
            uint4 a[2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                a[m] = query_lane_[query_unit(8 * m, 4 * slice + unit)];
            }
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const uint4 b = key_lane_[slot_of(slice) + static_cast<int>(key_unit(32 * t, unit))];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    mma_row_col(scores[t][m], {a[m].x, a[m].y}, {b.x, b.y});
                    mma_row_col(scores[t][m], {a[m].z, a[m].w}, {b.z, b.w});
                }
            }
        }
    }

    // Output of four keys more; weights are those of the 32 keys around them.
    __device__ __forceinline__ void add_values(const uint32_t (&weights)[2][4], int step) {
        const int slice = S::kKeySlices + 4 * step / S::kValueKeys, in_slice = step % (S::kValueKeys / 4);
        // The keys are those of quad-pair step / 2 % 4, in its first or second half.
        const int half = step % 2, source = static_cast<int>((forgotten(lane_.index) & 0x13) | (step / 2 % 4) << 2);
        HalfFragment a[2];
#pragma unroll
        for (int m = 0; m < 2; ++m) {
            a[m].low = __shfl_sync(kAllLanes, weights[m][2 * half], source);
            a[m].high = __shfl_sync(kAllLanes, weights[m][2 * half + 1], source);
        }
#pragma unroll
        for (int i = 0; i < S::kValueUnits; ++i) {
            const uint4 b = value_lane_[slot_of(slice) + static_cast<int>(value_unit(4 * in_slice, 8 * i))];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                mma_row_row(output_[m][2 * i], a[m], {b.x, b.y});
                mma_row_row(output_[m][2 * i + 1], a[m], {b.z, b.w});
            }
        }
    }

    // --- softmax

    // The running maximum of a tile's scores; output and sums rescaled to it.
    __device__ __forceinline__ void raise_maximum(const float (&scores)[4][2][8]) {
        float correction[4];
        bool changed = false;
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int m = row / 2, second = 2 * (row % 2);
            float largest = kNoScore;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    largest = fmaxf(largest, fmaxf(scores[t][m][second + i], scores[t][m][second + i + 1]));
                }
            }
#pragma unroll
            for (int distance = 2; distance < 16; distance *= 2) {
                largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, distance));
            }
            const float maximum = fmaxf(maximum_[row], largest);
            correction[row] = weight_of(maximum_[row], maximum);
            changed |= maximum != maximum_[row];
            maximum_[row] = maximum;
        }
        if (__any_sync(kAllLanes, changed)) {
#pragma unroll
            for (int row = 0; row < 4; ++row) sum_[row] *= correction[row];
            rescale_output(correction);
        }
    }

    // Two weights of the lane's own keys, rounded and summed: `number` 0..7 of the 16 scores of 32 keys.
    __device__ __forceinline__ void weigh_pair(const float (&scores)[2][8], int number, uint32_t (&pairs)[8]) {
        const int m = number / 4, second = number / 2 % 2, four = number % 2, row = 2 * m + second;
        const float* s = &scores[m][2 * second + 4 * four];
        // The difference comes first: beside a score of 2^24, the weight shift and what a product is rounded by would
        // be whole powers of two.
        const float d0 = s[0] - maximum_[row], d1 = s[1] - maximum_[row];
        const float p0 = exp2_approximate(__fmaf_rn(d0, p_.softmax_scale_log2, -kWeightShift));
        const float p1 = exp2_approximate(__fmaf_rn(d1, p_.softmax_scale_log2, -kWeightShift));
        const uint32_t pair = round_weights(p0, p1);
        const __half2 rounded = *reinterpret_cast<const __half2*>(&pair);
        sum_[row] = pinned(sum_[row] + (__low2float(rounded) + __high2float(rounded)));
        pairs[number] = pair;
    }

    // A lane has two columns of two rows; as A fragment it needs one of the rows in full, the lane two away the other:
    // each gives what it does not need.
    __device__ __forceinline__ void exchange_pairs(const uint32_t (&pairs)[8], uint32_t (&weights)[2][4]) const {
        const bool upper_row = (lane_.index & 2) != 0;
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int four = 0; four < 2; ++four) {
                const uint32_t first = pairs[4 * m + four], second = pairs[4 * m + 2 + four];
                const uint32_t kept = upper_row ? second : first;
                const uint32_t got = __shfl_xor_sync(kAllLanes, upper_row ? first : second, 2);
                weights[m][2 * four] = upper_row ? got : kept;
                weights[m][2 * four + 1] = upper_row ? kept : got;
            }
        }
    }

    // Two FP32 weights x 2^(15 - 112) to halves x 2^15. The difference of the exponents' biases is 112, so the bits of
    // a half are those of the float 13 further down: rounding is an addition, and nothing goes through the slow
    // conversion pipe. Weights below 2^-29 are zero.
    __device__ __forceinline__ static uint32_t round_weights(float p0, float p1) {
        const uint32_t low = (__float_as_uint(p0) << 3) + 0x8000u, high = (__float_as_uint(p1) << 3) + 0x8000u;
        return __byte_perm(low, high, 0x7632);
    }

    // Rounding loses NaN, and the maximum passes over it: what is not finite in Q or K is found here. A row of one key
    // and a column of one query show it.
    __device__ __forceinline__ void probe(const float (&scores)[4][2][8]) const {
        float chains[4] = {mine_->probe, 0.0f, 0.0f, 0.0f};
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                chains[t] = __fmaf_rn(scores[t][0][i], 0.0f, __fmaf_rn(scores[t][0][i + 1], 0.0f, chains[t]));
            }
        }
        chains[0] = __fmaf_rn(scores[0][0][2], 0.0f, chains[0]);
        chains[1] = __fmaf_rn(scores[0][1][0], 0.0f, chains[1]);
        chains[2] = __fmaf_rn(scores[0][1][2], 0.0f, chains[2]);
        mine_->probe = (chains[0] + chains[1]) + (chains[2] + chains[3]);
    }

    __device__ __forceinline__ void mask(float (&scores)[4][2][8], int32_t number, int32_t first_key) const {
        const Item item = item_of(p_, number);
        const Sequence sequence = sequence_of(p_, item.sequence);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int m = row / 2, second = 2 * (row % 2);
            const int32_t packed = item.first_row + static_cast<int32_t>(row_in_tile(row));
            const int32_t seen = visible_keys(p_, sequence, packed) - first_key;
#pragma unroll
            for (int t = 0; t < 4; ++t) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if ((i & 2) != second) continue;
                    const auto key = static_cast<int32_t>(32 * t + 8 * lane_.quad_pair + lane_.accumulator_column(i));
                    if (key >= seen) scores[t][m][i] = __int_as_float(0xff800000);
                }
            }
        }
    }

    // --- rows: between tiles their state is in shared memory, thread by thread, where it takes no registers

    __device__ __forceinline__ void save_rows() {
        mine_->maximum = make_float4(maximum_[0], maximum_[1], maximum_[2], maximum_[3]);
        mine_->sum = make_float4(sum_[0], sum_[1], sum_[2], sum_[3]);
    }

    __device__ __forceinline__ void load_rows() {
        const float4 maximum = mine_->maximum, sum = mine_->sum;
        maximum_[0] = maximum.x;
        maximum_[1] = maximum.y;
        maximum_[2] = maximum.z;
        maximum_[3] = maximum.w;
        sum_[0] = sum.x;
        sum_[1] = sum.y;
        sum_[2] = sum.z;
        sum_[3] = sum.w;
    }

    __device__ __forceinline__ void fold(int32_t number, bool again) {
        load_rows();
        const int32_t slot = item_of(p_, number).slot;
        if (again) add_folded(slot);
        store_slot(slot);
        clear_output();
    }

    __device__ __forceinline__ void finish(int32_t number, bool folded) {
        load_rows();
        const Item item = item_of(p_, number);
        if (folded) add_folded(item.slot);
        float probe = mine_->probe;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) probe += __shfl_xor_sync(kAllLanes, probe, distance);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            sum_[row] += probe;
#pragma unroll
            for (int distance = 2; distance < 16; distance *= 2) {
                sum_[row] += __shfl_xor_sync(kAllLanes, sum_[row], distance);
            }
        }
        if (item.split) {
            store_slot(item.slot);
        } else {
            store_rows(item, sequence_of(p_, item.sequence));
        }
    }

    uint4* q_;
    uint4* ring_;
    ThreadState* mine_;
    Range* range_;
    const uint4 *const query_lane_, *const key_lane_, *const value_lane_;
    uint4 *const key_store_, *const value_store_;
    const char *key_source_, *value_source_;
    int32_t keys_left_, values_left_;  // from the tile's first, less those before the thread's own
};

// Tiles that one block does alone, and parts of the keys of those that several share.
template <int kHeadDim, bool kWide>
__device__ __forceinline__ void attend(const PrefillParams& p) {
    extern __shared__ uint4 dynamic_shared[];
    Attend<Shape<kHeadDim, kWide>> block(p, dynamic_shared);
    int32_t number = static_cast<int32_t>(blockIdx.x);
    while (number < item_count(p)) number = block.run(number) + static_cast<int32_t>(gridDim.x);
}

}  // namespace sm70::prefill
