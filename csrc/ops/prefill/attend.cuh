// prefill: fused attention of a tile of 128 query rows over long keys, scores and probabilities in registers.
//
// A row is a (query, head) pair: the heads of a KV head's group are packed, query by query, so any group size fills
// tiles. 8 warps, each with 16 rows of its own through both products; nothing but Q, K and V goes through shared
// memory.
//
//   scores   S[16 x 128] of a warp = Q K^T: quad-pair qp takes keys 32 t + 8 qp .. + 7, t = 0..3. 64 registers.
//   softmax  in FP32, base 2. P = 2^(S - maximum) is rounded to FP16 where it becomes an operand, and summed as
//   rounded. values   O[16 x D] += P V: quad-pair qp takes dimensions 64 i + 16 qp .. + 15. 128 registers at D 256. A
//   quad-pair has
//            P of its own keys only: the others' come by shuffle, which costs what loading them would.
//
// K comes in slices of 128 keys x 32 dimensions, V in slices of 8 KB (16 keys at D 256), through a ring of four 8 KB
// slots: one barrier a slice, each loaded two slices ahead.
//
// Shared memory at D 256: Q 64 KB + ring 32 KB. Fragment loads are LDS.128, free of bank conflicts by the swizzles
// below. Wavefronts for 128 keys and 8 warps: Q and K 6144, P (shuffles) 1024, V 4096, storing slices 1024 = 12288, of
// 16384 tensor cycles: the tensor cores are the bound.
//
// The tensor core truncates what it adds up. O is therefore taken out into an FP32 slot in global memory every
// kFoldTiles tiles and starts again from zero.
#pragma once

#include <cuda_fp16.h>

#include "device/load.cuh"
#include "device/mma.cuh"
#include "device/softmax_state.cuh"
#include "ops/prefill/items.cuh"

namespace sm70::prefill {

constexpr uint32_t kAllLanes = 0xffffffffu;
// 4096 keys: 1024 additions of the tensor core, which lose up to 8e-5 of a sum of one sign.
constexpr int kFoldTiles = 32;
constexpr int kSlotUnits = 512;  // of 16 bytes, in a slot of the ring
// Weights are rounded as P x 2^15: sums and numerators have that factor, which cancels in their quotient.
constexpr float kWeightLog2 = 15.0f;
constexpr float kWeightShift = 112.0f - kWeightLog2;
constexpr float kNoScore = -1e30f;  // finite, so that differences of two are not NaN

template <int kHeadDim_, bool kWide_>
struct Shape {
    static constexpr bool kWide = kWide_;  // K and V in loads of 16 bytes; else of 8
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kUnits = kHeadDim / 8;  // of 16 bytes, in a row
    static constexpr int kKeySlices = kHeadDim / 32;
    static constexpr int kValueKeys = kHeadDim == 64 ? 32 : 16;  // keys of a slice of V
    static constexpr int kValueSlices = kTileKeys / kValueKeys;
    static constexpr int kSlices = kKeySlices + kValueSlices;
    static constexpr int kValueUnits = kHeadDim / 64;  // units of V that a lane takes of a key
    static constexpr int kLoads = 2;                   // 16-byte units a thread loads of a slice, at most
    // Slots, so many that a slice has the same slot in every tile.
    static constexpr int kRing = kSlices % 4 == 0 ? 4 : 3;
    static_assert(kSlices % kRing == 0);
    static constexpr int kValueLoads = kValueKeys * kUnits / kThreads;
};

// The same number, of which the compiler does not know that: what is computed from it is computed again, instead of
// being kept in registers through the main loop.
__device__ __forceinline__ int32_t forgotten(int32_t number) {
    asm volatile("" : "+r"(number));
    return number;
}

template <typename S>
class Attend {
 public:
    __device__ __forceinline__ Attend(const PrefillParams& p, uint4* shared)
        : p_(p), q_(shared), ring_(shared + kTileRows * S::kUnits), warp_(threadIdx.x / 32) {}

    __device__ __forceinline__ void run(int32_t number) {
        int32_t tile, last_tile, masked_from;
        {
            const Item item = item_of(p_, number);
            const Sequence sequence = sequence_of(p_, item.sequence);
            if (item.first_row >= packed_rows(p_, sequence)) return;
            const int32_t tiles = key_tiles(p_, sequence, item.first_row);
            tile = item.split ? part_start(p_, tiles, item.part) : 0;
            last_tile = item.split ? part_start(p_, tiles, item.part + 1) : tiles;
            // Every row of the tile sees at least what the first sees.
            masked_from = visible_keys(p_, sequence, item.first_row);
            __syncthreads();  // shared memory may still be read for the item before
            load_query(item, sequence);
            start_source(key_source_, p_.k, item, sequence, tile, last_tile, threadIdx.x / 4, threadIdx.x % 4);
            start_source(value_source_, p_.v, item, sequence, tile, last_tile, threadIdx.x / S::kUnits,
                         threadIdx.x % S::kUnits);
        }
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            maximum_[row] = kNoScore;
            sum_[row] = 0.0f;
        }
        clear_output();
        probe_ = 0.0f;
        const int32_t first_tile = tile;

        uint4 coming[S::kLoads];
#pragma unroll
        for (int slice = 0; slice < 2; ++slice) {
            begin_slice(slice, coming);
            end_slice(slice, coming);
        }
        for (; tile < last_tile; ++tile) {
            float scores[2][4][8] = {};
#pragma unroll
            for (int slice = 0; slice < S::kKeySlices; ++slice) {
                __syncthreads();
                begin_slice(slice + 2, coming);
                add_scores(scores, slice, ring_ + slice % S::kRing * kSlotUnits);
                end_slice(slice + 2, coming);
            }
            advance(key_source_, p_.k, kTileKeys);
            uint32_t weights[2][4][4];
            probe(scores);
            if ((tile + 1) * kTileKeys > masked_from) mask(scores, number, tile * kTileKeys);
            weigh(scores, weights);
#pragma unroll
            for (int slice = S::kKeySlices; slice < S::kSlices; ++slice) {
                __syncthreads();
                begin_slice(slice + 2, coming);
                add_values(weights, slice - S::kKeySlices, ring_ + slice % S::kRing * kSlotUnits);
                end_slice(slice + 2, coming);
            }
            const int32_t done = tile - first_tile + 1;
            if (done % kFoldTiles == 0 && tile + 1 < last_tile) fold(number, done > kFoldTiles);
        }
        finish(number, last_tile - first_tile > kFoldTiles);
    }

 private:
    // --- shared memory: units of 16 bytes

    // Unit of Q: 8 dimensions of a row.
    __device__ __forceinline__ static uint32_t query_unit(uint32_t row, uint32_t unit) {
        return unit * kTileRows + row;
    }

    // Unit of a K slice: 8 of its 32 dimensions, of a key. Readers are 4 neighbouring keys of two neighbouring
    // quad-pairs, which are 8 keys apart; writers are two neighbouring keys with all four units.
    __device__ __forceinline__ static uint32_t key_unit(uint32_t key, uint32_t unit) {
        return unit * kTileKeys + (key ^ (key >> 3 & 1) << 2 ^ unit << 1);
    }

    // Unit of a V slice: 8 dimensions of a key. Readers are 4 neighbouring keys of two neighbouring quad-pairs, which
    // are two units apart; writers are 8 units of one key.
    __device__ __forceinline__ static uint32_t value_unit(uint32_t key, uint32_t unit) {
        return key * S::kUnits + (unit ^ (key & 1) ^ (key & 2) << 1);
    }

    // --- global memory

    // Where a thread's first unit of the next slice is, and how many keys there are from its key on: no more if not
    // positive. What lies past the last key is not loaded; the slice has zeros there.
    struct Source {
        const uint16_t* address;
        int32_t left;
    };

    __device__ __forceinline__ void start_source(Source& source, const TokenTensor& tensor, const Item& item,
                                                 const Sequence& sequence, int32_t tile, int32_t last_tile,
                                                 uint32_t key, uint32_t unit) const {
        const int32_t first = tile * kTileKeys + static_cast<int32_t>(key);
        source.address = tensor.data + (sequence.first_key + static_cast<int64_t>(first)) * tensor.token_stride +
                         item.head * tensor.head_stride + 8 * unit;
        source.left = min(sequence.keys, last_tile * kTileKeys) - first;
    }

    __device__ __forceinline__ void advance(Source& source, const TokenTensor& tensor, int32_t keys) const {
        source.address += keys * tensor.token_stride;
        source.left -= keys;
    }

    __device__ __forceinline__ static uint4 load_unit(const uint16_t* address, bool live) {
        return load_16_bytes(address, live, S::kWide);
    }

    __device__ __forceinline__ static constexpr bool is_key_slice(int slice) {
        return slice < S::kKeySlices || slice >= S::kSlices;  // the latter: of the next tile
    }

    // Starts loading a slice. Slices of V must be begun one after the other.
    __device__ __forceinline__ void begin_slice(int slice, uint4 (&coming)[S::kLoads]) {
        if (is_key_slice(slice)) {
            const uint16_t* address = key_source_.address + 32 * (slice % S::kSlices);
            coming[0] = load_unit(address, key_source_.left > 0);
            coming[1] = load_unit(address + 64 * p_.k.token_stride, key_source_.left > 64);
        } else {
#pragma unroll
            for (int i = 0; i < S::kValueLoads; ++i) {
                constexpr int kKeysApart = kThreads / S::kUnits;
                coming[i] = load_unit(value_source_.address + kKeysApart * i * p_.v.token_stride,
                                      value_source_.left > kKeysApart * i);
            }
            advance(value_source_, p_.v, S::kValueKeys);
        }
    }

    __device__ __forceinline__ void end_slice(int slice, const uint4 (&coming)[S::kLoads]) const {
        uint4* slot = ring_ + slice % S::kRing * kSlotUnits;
        if (is_key_slice(slice)) {
#pragma unroll
            for (int i = 0; i < 2; ++i) slot[key_unit(threadIdx.x / 4 + 64 * i, threadIdx.x % 4)] = coming[i];
        } else {
#pragma unroll
            for (int i = 0; i < S::kValueLoads; ++i) {
                slot[value_unit(threadIdx.x / S::kUnits + kThreads / S::kUnits * i, threadIdx.x % S::kUnits)] =
                    coming[i];
            }
        }
    }

    // Rows past the last are zeros. Elements are read one by one: the layout of q is any.
    __device__ __forceinline__ void load_query(const Item& item, const Sequence& sequence) const {
        auto* target = reinterpret_cast<uint16_t*>(q_);
#pragma unroll 4
        for (int32_t i = static_cast<int32_t>(threadIdx.x); i < kTileRows * S::kHeadDim; i += kThreads) {
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

    __device__ __forceinline__ void add_scores(float (&scores)[2][4][8], int slice, const uint4* keys) const {
#pragma unroll
        for (int unit = 0; unit < 4; ++unit) {
            uint4 a[2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                a[m] = q_[query_unit(16 * warp_ + 8 * m + lane_.operand_row, 4 * slice + unit)];
            }
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                const uint4 b = keys[key_unit(32 * t + 8 * lane_.quad_pair + lane_.operand_row, unit)];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    mma_row_col(scores[m][t], {a[m].x, a[m].y}, {b.x, b.y});
                    mma_row_col(scores[m][t], {a[m].z, a[m].w}, {b.z, b.w});
                }
            }
        }
    }

    __device__ __forceinline__ void add_values(const uint32_t (&weights)[2][4][4], int slice, const uint4* values) {
#pragma unroll
        for (int step = 0; step < S::kValueKeys / 4; ++step) {
            // Keys 4 of the step lie in block `key / 8` of the tile: quad-pair block % 4, as its half key / 4 % 2.
            const int block = (slice * S::kValueKeys + 4 * step) / 8, half = step % 2;
            const int source = static_cast<int>((lane_.index & 0x13) | (block % 4) << 2);
            HalfFragment a[2];
#pragma unroll
            for (int m = 0; m < 2; ++m) {
                a[m].low = __shfl_sync(kAllLanes, weights[m][block / 4][2 * half], source);
                a[m].high = __shfl_sync(kAllLanes, weights[m][block / 4][2 * half + 1], source);
            }
#pragma unroll
            for (int i = 0; i < S::kValueUnits; ++i) {
                const uint4 b = values[value_unit(4 * step + lane_.quad, 8 * i + 2 * lane_.quad_pair + lane_.upper)];
#pragma unroll
                for (int m = 0; m < 2; ++m) {
                    mma_row_row(output_[m][2 * i], a[m], {b.x, b.y});
                    mma_row_row(output_[m][2 * i + 1], a[m], {b.z, b.w});
                }
            }
        }
    }

    // --- softmax

    // Scores to weights, as A fragments of the lane's own keys; running maximum and sum; output rescaled to them.
    __device__ __forceinline__ void weigh(const float (&scores)[2][4][8], uint32_t (&weights)[2][4][4]) {
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
                    largest = fmaxf(largest, fmaxf(scores[m][t][second + i], scores[m][t][second + i + 1]));
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
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int t = 0; t < 4; ++t) {
                uint32_t pairs[2][2];  // [row][columns 0, 1 or 4, 5 of the lane]
#pragma unroll
                for (int second = 0; second < 2; ++second) {
#pragma unroll
                    for (int four = 0; four < 2; ++four) {
                        const float* s = &scores[m][t][2 * second + 4 * four];
                        // The difference comes first: beside a score of 2^24, the weight shift and what a product
                        // is rounded by would be whole powers of two.
                        const float d0 = s[0] - maximum_[2 * m + second], d1 = s[1] - maximum_[2 * m + second];
                        const float p0 = exp2_approximate(__fmaf_rn(d0, p_.softmax_scale_log2, -kWeightShift));
                        const float p1 = exp2_approximate(__fmaf_rn(d1, p_.softmax_scale_log2, -kWeightShift));
                        const uint32_t pair = round_weights(p0, p1);
                        const __half2 rounded = *reinterpret_cast<const __half2*>(&pair);
                        sum_[2 * m + second] += __low2float(rounded) + __high2float(rounded);
                        pairs[second][four] = pair;
                    }
                }
                // The lane needs one of its rows in full, the lane two away the other: each gives what it does not
                // need.
                const bool upper_row = (lane_.index & 2) != 0;
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const uint32_t kept = upper_row ? pairs[1][four] : pairs[0][four];
                    const uint32_t given = upper_row ? pairs[0][four] : pairs[1][four];
                    const uint32_t got = __shfl_xor_sync(kAllLanes, given, 2);
                    weights[m][t][2 * four] = upper_row ? got : kept;
                    weights[m][t][2 * four + 1] = upper_row ? kept : got;
                }
            }
        }
    }

    // Weight of a score in a row of this maximum; both are as the products gave them, without the softmax scale.
    __device__ __forceinline__ float weight_of(float score, float maximum) const {
        return exp2_approximate((score - maximum) * p_.softmax_scale_log2);
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
    __device__ __forceinline__ void probe(const float (&scores)[2][4][8]) {
#pragma unroll
        for (int t = 0; t < 4; ++t) {
#pragma unroll
            for (int i = 0; i < 8; i += 4) {
                probe_ = __fmaf_rn(scores[0][t][i], 0.0f, __fmaf_rn(scores[0][t][i + 1], 0.0f, probe_));
            }
        }
        probe_ = __fmaf_rn(scores[0][0][2], 0.0f, probe_);
        probe_ = __fmaf_rn(scores[1][0][0], 0.0f, __fmaf_rn(scores[1][0][2], 0.0f, probe_));
    }

    __device__ __forceinline__ void mask(float (&scores)[2][4][8], int32_t number, int32_t first_key) const {
        const Item item = item_of(p_, forgotten(number));
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
                    if (key >= seen) scores[m][t][i] = __int_as_float(0xff800000);
                }
            }
        }
    }

    __device__ __forceinline__ uint32_t row_in_tile(int row) const {
        return 16 * warp_ + 8 * (row / 2) + lane_.accumulator_row + 2 * (row % 2);
    }

    __device__ __forceinline__ void rescale_output(const float (&correction)[4]) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * S::kValueUnits; ++n) {
#pragma unroll
                for (int i = 0; i < 8; ++i) output_[m][n][i] *= correction[2 * m + (i & 2) / 2];
            }
        }
    }

    // --- output

    __device__ __forceinline__ void clear_output() {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * S::kValueUnits; ++n) {
#pragma unroll
                for (int i = 0; i < 8; ++i) output_[m][n][i] = 0.0f;
            }
        }
    }

    // Numerators of a slot, thread by thread, so that accesses are contiguous and only this thread needs them.
    __device__ __forceinline__ float4* numerators_of(int32_t slot) const {
        return reinterpret_cast<float4*>(p_.slots + slot * slot_floats(S::kHeadDim)) + threadIdx.x;
    }

    // Maximum and sum of the rows of a slot.
    __device__ __forceinline__ float2* denominators_of(int32_t slot) const {
        return reinterpret_cast<float2*>(p_.slots + slot * slot_floats(S::kHeadDim) + kTileRows * S::kHeadDim);
    }

    // Rows are spread over lanes; this one speaks for its own.
    __device__ __forceinline__ bool speaks_for_rows() const { return (lane_.index & 14) == 0; }

    // output += slot x scale of its row.
    __device__ __forceinline__ void add_slot(int32_t slot, const float (&scale)[4]) {
        const float4* numerators = numerators_of(slot);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * S::kValueUnits; ++n) {
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const float4 old = numerators[((m * 2 * S::kValueUnits + n) * 2 + four) * kThreads];
                    float* o = &output_[m][n][4 * four];
                    o[0] = __fmaf_rn(old.x, scale[2 * m], o[0]);
                    o[1] = __fmaf_rn(old.y, scale[2 * m], o[1]);
                    o[2] = __fmaf_rn(old.z, scale[2 * m + 1], o[2]);
                    o[3] = __fmaf_rn(old.w, scale[2 * m + 1], o[3]);
                }
            }
        }
    }

    __device__ __forceinline__ void store_slot(int32_t slot) const {
        float4* numerators = numerators_of(slot);
#pragma unroll
        for (int m = 0; m < 2; ++m) {
#pragma unroll
            for (int n = 0; n < 2 * S::kValueUnits; ++n) {
#pragma unroll
                for (int four = 0; four < 2; ++four) {
                    const float* o = &output_[m][n][4 * four];
                    numerators[((m * 2 * S::kValueUnits + n) * 2 + four) * kThreads] =
                        make_float4(o[0], o[1], o[2], o[3]);
                }
            }
        }
        if (speaks_for_rows()) {
#pragma unroll
            for (int row = 0; row < 4; ++row) {
                denominators_of(slot)[row_in_tile(row)] = make_float2(maximum_[row], sum_[row]);
            }
        }
    }

    // What was folded before is of the maxima that were stored with it.
    __device__ __forceinline__ void add_folded(int32_t slot) {
        __syncwarp();
        float scale[4];
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            scale[row] = weight_of(denominators_of(slot)[row_in_tile(row)].x, maximum_[row]);
        }
        add_slot(slot, scale);
        __syncwarp();
    }

    __device__ __forceinline__ void fold(int32_t number, bool again) {
        const int32_t slot = item_of(p_, forgotten(number)).slot;
        if (again) add_folded(slot);
        store_slot(slot);
        clear_output();
    }

    __device__ __forceinline__ void finish(int32_t number, bool folded) {
        const Item item = item_of(p_, forgotten(number));
        if (folded) add_folded(item.slot);
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) probe_ += __shfl_xor_sync(kAllLanes, probe_, distance);
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            sum_[row] += probe_;
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

    // output_, maximum_ and sum_ to out and lse.
    __device__ __forceinline__ void store_rows(const Item& item, const Sequence& sequence) const {
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            const int32_t packed = item.first_row + static_cast<int32_t>(row_in_tile(row));
            if (packed >= packed_rows(p_, sequence)) continue;
            const int m = row / 2, second = 2 * (row % 2);
            const uint32_t query = p_.group.divide(packed), member = p_.group.remainder(packed, query);
            const int64_t token = sequence.first_query + static_cast<int64_t>(query);
            const int64_t head = static_cast<int64_t>(item.head) * p_.group.divisor + member;
            uint16_t* out = p_.out + token * p_.out_token_stride + head * p_.out_head_stride;
            const float factor = sum_[row] > 0.0f ? __fdividef(1.0f, sum_[row]) : sum_[row];  // zero without keys; NaN
#pragma unroll
            for (int n = 0; n < 2 * S::kValueUnits; ++n) {
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    if ((i & 2) != second) continue;
                    const uint32_t column = lane_.accumulator_column(i);
                    const uint32_t dimension =
                        64 * (n / 2) + 16 * lane_.quad_pair + 8 * (column >> 2) + 4 * (n % 2) + (column & 3);
                    out[dimension] = __half_as_ushort(__float2half_rn(output_[m][n][i] * factor));
                }
            }
            if (p_.lse != nullptr && speaks_for_rows()) {
                constexpr float kLn2 = 0.693147180559945309f;
                p_.lse[token * p_.lse_token_stride + head * p_.lse_head_stride] =
                    __fmaf_rn(maximum_[row], p_.softmax_scale_log2, __log2f(sum_[row]) - kWeightLog2) * kLn2;
            }
        }
    }

    const PrefillParams& p_;
    uint4* q_;
    uint4* ring_;
    const Lane lane_;
    const uint32_t warp_;
    Source key_source_, value_source_;
    float output_[2][2 * S::kValueUnits][8];
    float maximum_[4], sum_[4];  // of rows row_in_tile(0..3); of unscaled scores; of the lane's own keys until the end
    float probe_;                // 0, or NaN once a score was not finite

 public:
    // Merges the states of a tile's parts, in their order, and stores the rows.
    __device__ __forceinline__ void combine(Item item) {
        const Sequence sequence = sequence_of(p_, item.sequence);
        if (item.first_row >= packed_rows(p_, sequence)) return;
        clear_output();
#pragma unroll
        for (int row = 0; row < 4; ++row) {
            maximum_[row] = kNoScore;
            sum_[row] = 0.0f;
        }
        for (int32_t part = 0; part < p_.splits; ++part) {
            float correction[4], scale[4];
#pragma unroll
            for (int row = 0; row < 4; ++row) {
                const float2 other = denominators_of(item.slot + part)[row_in_tile(row)];
                const float maximum = fmaxf(maximum_[row], other.x);
                correction[row] = weight_of(maximum_[row], maximum);
                scale[row] = weight_of(other.x, maximum);
                sum_[row] *= correction[row];
                sum_[row] = __fmaf_rn(other.y, scale[row], sum_[row]);
                maximum_[row] = maximum;
            }
            rescale_output(correction);
            add_slot(item.slot + part, scale);
        }
        store_rows(item, sequence);
    }
};

// Tiles that one block does alone, and parts of the keys of those that several share.
template <int kHeadDim, bool kWide>
__device__ __forceinline__ void attend(const PrefillParams& p) {
    extern __shared__ uint4 dynamic_shared[];
    Attend<Shape<kHeadDim, kWide>> block(p, dynamic_shared);
    for (int32_t number = static_cast<int32_t>(blockIdx.x); number < item_count(p);
         number += static_cast<int32_t>(gridDim.x)) {
        block.run(number);
    }
}

// A block for each tile that several shared.
template <int kHeadDim>
__device__ __forceinline__ void combine(const CombineParams& p) {
    Attend<Shape<kHeadDim, true>> block(p.prefill, nullptr);
    const auto shared_tile = static_cast<int32_t>(blockIdx.x);
    Item item = tile_item(p.prefill, p.prefill.whole_tiles + shared_tile);
    item.slot = p.attend_blocks + shared_tile * p.prefill.splits;
    block.combine(item);
}

}  // namespace sm70::prefill
