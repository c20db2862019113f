// decode on tensor cores: the G query heads of a KV head share one pass over its K and V.
//
// A block has D / 32 warps and reduces units (work_units.cuh) leaf by leaf: 128 keys, of which each warp takes as many
// whole tiles of 16 for the scores, and all of them for its own 32 dimensions of the values.
//
//   scores   lane (n = operand_row, qp = quad_pair) loads K[key n + 8 (qp >> 1)][32 j + 16 (qp & 1) .. + 15] for all j:
//            every sector of a load is used in full. Quad-pairs 2i and 2i + 1 hold the two halves of the same keys'
//            products; one exchange adds them and leaves each lane two rows x two neighbouring keys.
//   weights  P = 2^(S - max of the leaf), as a high half and a residual half, to shared memory in the order in which
//            lanes take them as A fragments. The residual is not scaled: P is at most 1, so it is exact to 2^-25.
//   values   lane loads V[key 16 h + 4 qp + quad][its 16 of the warp's 32 dimensions], h = 0..7. Quad-pairs add up
//            different keys; 24 exchanges a leaf bring their sums together, 8 values to each lane.
//
// What waits for memory is asked for early: where a leaf's tiles are, a leaf ahead; V, before the weights are made.
// What a warp executes for a leaf is kept short by loops, since a sub-core keeps 12 KB of code.
//
// Fragments come straight from global memory, so shared memory holds Q, P, maxima, sums and the stack of the tree. All
// accumulators of the tensor core are fresh for every leaf: what its truncation takes off stays near 1e-6.
//
// Registers: 32 of K or V in flight, 32 of PV accumulators, 8 of the state: 2 blocks of 8 warps an SM at D 256.
// Bound: DRAM. A leaf is 64 KB at D 256 in FP8, 8500 cycles of an SM's share of 850 GB/s at 1.38 GHz; its tensor work
// is 18 % of that, its issue slots about 40 %.
#pragma once

#include "device/load.cuh"
#include "device/paged_kv.cuh"
#include "device/registers.cuh"
#include "ops/decode/finish.cuh"
#include "ops/decode/work_units.cuh"

namespace sm70::decode {

// Without kMasksTail_ the last tile of a row is taken whole, keys past the length included: wrong, and there only for
// tests that must see it (test_ops/decode_unmasked).
template <typename Format_, int kHeadDim_, int kRowTiles_, bool kMasksTail_ = true>
struct XqaShape {
    using Format = Format_;
    using Operand = OperandFormat<Format>;
    static constexpr int kHeadDim = kHeadDim_;
    static constexpr int kRowTiles = kRowTiles_;  // tiles of 8 query heads
    static constexpr bool kMasksTail = kMasksTail_;
    static constexpr int kRows = 8 * kRowTiles;
    static constexpr int kWarps = kHeadDim / 32;
    static constexpr int kThreads = 32 * kWarps;
    static constexpr int kLeafTiles = kLeafTokens / kTileTokens;
    static constexpr int kTilesPerWarp = kLeafTiles / kWarps;
    static constexpr int kWordsPerStep = Operand::kElementBytes;  // registers of 4 stored elements, a k-step
    // 16-byte loads of a lane: of K for one tile, of V for one tile.
    static constexpr int kKeyLoads = kHeadDim * Operand::kElementBytes / 32;
    static constexpr int kValueLoads = Operand::kElementBytes;
    static constexpr int kStepsPerLoad = 4 / kWordsPerStep;
    // Loads in flight: of K, going through a warp's tiles, and of V, of a batch of tiles.
    static constexpr int kKeyBatch = 8 / Operand::kElementBytes;
    static constexpr int kValueTiles = 8 / kValueLoads;
    static constexpr int kValues = 8 * kRowTiles;  // numerators of a thread
    // Turns of the loops over K and V that are written out. FP16 has no words to take apart, so its code is short; in a
    // loop it would want more registers than there are.
    static constexpr int kTurnsAtOnce = Operand::kElementBytes == 1 ? 1 : 4;
    // Whether V is on its way while weights are made: FP16's scores leave no registers for that.
    static constexpr bool kLoadsValuesEarly = Operand::kElementBytes == 1 || kRowTiles > 1;
};

// Everything in dynamic shared memory but the stack, which follows.
template <typename S>
struct XqaShared {
    // Q as A fragments: [row tile][k-step pair of a half][row][half] x two k-steps.
    uint4 q[S::kRowTiles][S::kHeadDim / 16][8][2];
    // Weights as A fragments: [row tile][tile pair][row][quad-pair] x two tiles of 4 keys.
    uint4 high[S::kRowTiles][S::kLeafTiles / 2][8][4];
    uint4 residual[S::kRowTiles][S::kLeafTiles / 2][8][4];
    float maximum[S::kRows][S::kWarps];
    float sum[S::kRows][S::kWarps];
    // Where the tiles of leaves are. While one warp writes those of the next leaf, another may read the last one's:
    // three sets, and a fourth since the number of a leaf is then its set.
    const uint8_t* key_tiles[kTileSets][S::kLeafTiles];
    const uint8_t* value_tiles[kTileSets][S::kLeafTiles];
    int32_t totals[kMaxUnitLevels];
};

// One level of the stack: numerators by thread, conflict-free, and the rows' denominators.
template <typename S>
struct XqaLevel {
    float4 values[S::kValues / 4][S::kThreads];
    SoftmaxDenominator denominators[S::kRows];
};

template <typename S>
struct XqaState {
    float values[S::kRowTiles][8];
    SoftmaxDenominator denominators[S::kRowTiles][2];  // of the lane's two rows in each row tile
};

template <typename S>
class Xqa {
 public:
    __device__ __forceinline__ Xqa(const DecodeParams& p, XqaShared<S>& shared, XqaLevel<S>* stack)
        : p_(p), shared_(shared), stack_(stack), warp_(threadIdx.x / 32), wide_(p.kv.alignment == 16) {
        score_scale_ =
            p.softmax_scale_log2 * resolve_scale(p.kv.k_scale, p.kv.k_device_scale) * S::Operand::kInverseScale;
    }

    __device__ __forceinline__ void run() {
        const int32_t of_launch = level_of_launch(p_.schedule, shared_.totals);
        __syncthreads();  // before its place is taken: registers are scarcer than shared memory
        if (threadIdx.x == 0) shared_.totals[0] = of_launch;
        __syncthreads();
        WorkUnitCursor cursor;
        WorkUnit unit;
        for (int32_t number = static_cast<int32_t>(blockIdx.x); cursor.seek(p_.schedule, level(), number, unit);
             number += static_cast<int32_t>(gridDim.x)) {
            XqaState<S> state;
            reduce_unit(unit, state);
            if (unit.count == 1) {
                store_output(unit, state);
            } else {
                store_slot(number, state);
            }
        }
    }

 private:
    __device__ __forceinline__ int32_t level() const { return shared_.totals[0]; }

    __device__ __forceinline__ float output_scale() const {
        return resolve_scale(p_.kv.v_scale, p_.kv.v_device_scale) * S::Operand::kInverseScale;
    }

    // Row of a lane's value i (mod 2 rows) in its row tile: accumulator_row + 2 * second.
    __device__ __forceinline__ uint32_t row_of(int second) const { return lane_.accumulator_row + 2 * second; }

    // Dimension of value i, even i; i + 1 is the next one.
    __device__ __forceinline__ uint32_t dimension_of(uint32_t i) const {
        const uint32_t column = lane_.accumulator_column(i), tile = lane_.quad_pair;
        const uint32_t in_warp = S::kValueLoads == 1
                                     ? 16 * (column >> 2) + 4 * tile + (column & 3)
                                     : 16 * (tile >> 1) + 8 * (column >> 2) + 4 * (tile & 1) + (column & 3);
        return 32 * warp_ + in_warp;
    }

    __device__ __forceinline__ void reduce_unit(const WorkUnit& unit, XqaState<S>& state) {
        const int32_t request = request_of(p_, unit.row);
        const uint32_t first = static_cast<uint32_t>(unit.index) << level();
        const uint32_t leaves = min(1u << level(), static_cast<uint32_t>(leaves_of(unit.length)) - first);
        if (warp_ == 0) place_tiles(unit, request, first);
        load_query(unit);
        __syncthreads();
        uint32_t nan = 0;
        reduce_tree(
            leaves, [&](uint32_t leaf) { reduce_leaf(unit, request, first + leaf, leaf + 1 < leaves, state, nan); },
            [&](uint32_t below) { push(stack_[below], state); }, [&](uint32_t below) { merge(stack_[below], state); });
        if (__syncthreads_or(static_cast<int>(nan))) {
#pragma unroll
            for (int tile = 0; tile < S::kRowTiles; ++tile) {
                state.denominators[tile][0].sum = state.denominators[tile][1].sum = __int_as_float(0x7fffffff);
            }
        }
    }

    // Rows past the group are zeros. A thread has a dimension, and with it a place in XqaShared::q.
    __device__ __forceinline__ void load_query(const WorkUnit& unit) {
        static_assert(S::kThreads == S::kHeadDim);
        // The half of the quad-pairs that takes a dimension, and its k-step there: 16 bytes of each load of K.
        constexpr uint32_t kPerLoad = S::kStepsPerLoad;
        const uint32_t dimension = forgotten(threadIdx.x), half = dimension / (4 * kPerLoad) % 2;
        const uint32_t step = dimension / (8 * kPerLoad) * kPerLoad + dimension / 4 % kPerLoad;
        auto* target = reinterpret_cast<uint16_t*>(&shared_.q[0][step / 2][0][half]) + step % 2 * 4 + dimension % 4;
        const uint16_t* q = p_.q + unit.row * p_.q_row_stride +
                            static_cast<int64_t>(unit.head) * p_.group * p_.q_head_stride + dimension;
        constexpr uint32_t kRowStride = sizeof(shared_.q[0][0][0]) / 2, kTileStride = sizeof(shared_.q[0]) / 2;
#pragma unroll
        for (uint32_t r = 0; r < S::kRows; ++r) {
            target[r / 8 * kTileStride + r % 8 * kRowStride] =
                r < static_cast<uint32_t>(p_.group) ? q[r * p_.q_head_stride] : uint16_t{0};
        }
    }

    // Where the tiles of a leaf are: a lane has a tile. The block table is read a leaf ahead, by one warp in turn, so
    // that no load of K or V waits for it.
    __device__ __forceinline__ void place_tiles(const WorkUnit& unit, int32_t request, uint32_t leaf) {
        if (lane_.index >= S::kLeafTiles) return;
        const uint32_t tile = leaf * S::kLeafTiles + lane_.index;
        if (tile * kTileTokens >= static_cast<uint32_t>(unit.length)) return;
        const TilePlace place = tile_place(p_.kv, request, tile);
        shared_.key_tiles[leaf % kTileSets][lane_.index] = tile_address(p_.kv.k, place, unit.head);
        shared_.value_tiles[leaf % kTileSets][lane_.index] = tile_address(p_.kv.v, place, unit.head);
    }

    __device__ __forceinline__ void reduce_leaf(const WorkUnit& unit, int32_t request, uint32_t leaf, bool another,
                                                XqaState<S>& state, uint32_t& nan) {
        float scores[S::kTilesPerWarp][S::kRowTiles][4];  // rows 0, 0, 2, 2 of the lane; two neighbouring keys
        uint4 keys[S::kKeyBatch];
        load_keys(unit, leaf, 0, keys);
        if (another && warp_ == (leaf + 1) % S::kWarps) place_tiles(unit, request, leaf + 1);
        score_tiles(unit, leaf, keys, scores, nan);
        uint4 values[S::kValueTiles * S::kValueLoads];
        if constexpr (S::kLoadsValuesEarly) load_values(unit, leaf, 0, values);

        // Maxima of the leaf.
        float maxima[S::kRowTiles][2];
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                float maximum = fmaxf(scores[0][r][2 * second], scores[0][r][2 * second + 1]);
#pragma unroll
                for (int i = 1; i < S::kTilesPerWarp; ++i) {
                    maximum = fmaxf(maximum, fmaxf(scores[i][r][2 * second], scores[i][r][2 * second + 1]));
                }
#pragma unroll
                for (int distance = 2; distance < 16; distance *= 2) {
                    maximum = fmaxf(maximum, __shfl_xor_sync(kAll, maximum, distance));
                }
                if ((lane_.index & 14) == 0) shared_.maximum[8 * r + row_of(second)][warp_] = maximum;
                maxima[r][second] = maximum;
            }
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const float* row = shared_.maximum[8 * r + row_of(second)];
                float maximum = row[0];
#pragma unroll
                for (int w = 1; w < S::kWarps; ++w) maximum = fmaxf(maximum, row[w]);
                maxima[r][second] = maximum;
            }
        }
        store_weights(scores, maxima);
        __syncthreads();

#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const float* row = shared_.sum[8 * r + row_of(second)];
                float sum = row[0];
#pragma unroll
                for (int w = 1; w < S::kWarps; ++w) sum += row[w];
                state.denominators[r][second] = {maxima[r][second], sum};
            }
        }
        if constexpr (!S::kLoadsValuesEarly) load_values(unit, leaf, 0, values);
        add_values(unit, leaf, values, state, nan);
    }

    // Live keys of a leaf, or more.
    __device__ __forceinline__ static int32_t live_keys(const WorkUnit& unit, uint32_t leaf) {
        return unit.length - static_cast<int32_t>(leaf * kLeafTokens);
    }

    __device__ __forceinline__ bool is_whole(int32_t live) const {
        return wide_ && live >= static_cast<int32_t>(kLeafTokens);
    }

    __device__ __forceinline__ uint32_t key_of_lane() const {
        return forgotten(lane_.operand_row) + 8 * (lane_.quad_pair >> 1);
    }

    // Loads first .. first + kKeyBatch - 1.
    __device__ __forceinline__ void load_keys(const WorkUnit& unit, uint32_t leaf, uint32_t first,
                                              uint4 (&stored)[S::kKeyBatch]) {
        const uint8_t* const* tiles = shared_.key_tiles[leaf % kTileSets];
        const int32_t live = live_keys(unit, leaf);
        const uint32_t key = key_of_lane();
        const auto offset = key * p_.kv.k.token_bytes + 16 * (lane_.quad_pair & 1) + 32 * (first % S::kKeyLoads);
        const uint32_t first_tile = warp_ * S::kTilesPerWarp + first / S::kKeyLoads;
        load_16_bytes_each(
            stored, is_whole(live), wide_,
            [&](int i) { return tiles[first_tile + i / S::kKeyLoads] + offset + 32 * (i % S::kKeyLoads); },
            [&](int i) {
                const uint32_t tile = first_tile + i / S::kKeyLoads;
                return static_cast<int32_t>(tile * kTileTokens + (S::kMasksTail ? key : 0)) < live;
            });
    }

    // Scores of the warp's tiles, scaled; minus infinity past the length. The first loads are there. Four loads a turn:
    // what a warp executes for a leaf should not be much more than the 12 KB of code that a sub-core keeps.
    __device__ __forceinline__ void score_tiles(const WorkUnit& unit, uint32_t leaf, uint4 (&stored)[S::kKeyBatch],
                                                float (&scores)[S::kTilesPerWarp][S::kRowTiles][4], uint32_t& nan) {
        constexpr int kTurnLoads = 4, kLoads = S::kTilesPerWarp * S::kKeyLoads;
        constexpr int kTurnTiles =
            S::kKeyLoads < kTurnLoads ? kTurnLoads / S::kKeyLoads : 1;  // that a turn is done with
        const int32_t live = live_keys(unit, leaf);
        clear_sums();
#pragma unroll S::kTurnsAtOnce
        for (uint32_t first = 0; first < kLoads; first += kTurnLoads) {
            float done[kTurnTiles][S::kRowTiles][4];
#pragma unroll
            for (int group = 0; group < kTurnLoads; group += 2) {
                add_products(&shared_.q[0][first % S::kKeyLoads * (S::kStepsPerLoad / 2)], group % S::kKeyLoads,
                             stored[group], stored[group + 1], nan);
                if ((group + 2) % S::kKeyLoads == 0) {
                    const int tile = group / S::kKeyLoads;
                    finish_scores(live, warp_ * S::kTilesPerWarp + first / S::kKeyLoads + tile, done[tile]);
                    clear_sums();
                }
            }
            if constexpr (S::kKeyLoads > kTurnLoads) {
                if ((first + kTurnLoads) % S::kKeyLoads == 0) {
                    finish_scores(live, warp_ * S::kTilesPerWarp + first / S::kKeyLoads, done[0]);
                    clear_sums();
                }
            }
            if ((first + kTurnLoads) % S::kKeyLoads == 0 || S::kKeyLoads <= kTurnLoads) {
                // The newest go to the end, so that all are in order after the last turn.
#pragma unroll
                for (int i = 0; i < S::kTilesPerWarp; ++i) {
#pragma unroll
                    for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
                        for (int j = 0; j < 4; ++j) {
                            const int next = i + kTurnTiles;
                            scores[i][r][j] =
                                next < S::kTilesPerWarp ? scores[next][r][j] : done[next - S::kTilesPerWarp][r][j];
                        }
                    }
                }
            }
            if (first + kTurnLoads < kLoads) {
                if constexpr (S::kKeyBatch > kTurnLoads) {
#pragma unroll
                    for (int i = 0; i < kTurnLoads; ++i) stored[i] = stored[kTurnLoads + i];
                } else {
                    load_keys(unit, leaf, first + kTurnLoads, stored);
                }
            }
        }
    }

    // Products of two loads, numbers `load` and `load` + 1 from the one that `query` is for.
    __device__ __forceinline__ void add_products(const uint4 (*query)[8][2], int load, const uint4& stored0,
                                                 const uint4& stored1, uint32_t& nan) {
        const uint32_t half = lane_.quad_pair & 1;
        // The tensor core truncates every sum; a short chain from zero, added in FP32, keeps that small.
        float fresh[S::kRowTiles][8] = {};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const uint4& q = i == 0 ? stored0 : stored1;
            const uint32_t words[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
            for (int pair = 0; pair < S::kStepsPerLoad / 2; ++pair) {
                const int step = 2 * pair * S::kWordsPerStep;
                const HalfFragment b0 = S::Operand::operand(words + step);
                const HalfFragment b1 = S::Operand::operand(words + step + S::kWordsPerStep);
#pragma unroll
                for (int r = 0; r < S::kRowTiles; ++r) {
                    const int query_pair = r * (S::kHeadDim / 16) + (load + i) * (S::kStepsPerLoad / 2) + pair;
                    const uint4 a = query[query_pair][lane_.operand_row][half];
                    mma_row_col(fresh[r], {a.x, a.y}, b0);
                    mma_row_col(fresh[r], {a.z, a.w}, b1);
                }
            }
            if constexpr (S::Operand::kLosesNan) {
#pragma unroll
                for (int w = 0; w < 4; ++w) nan |= S::Operand::nan_bits(words[w]);
            }
        }
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sums_[r][i] += fresh[r][i];
        }
    }

    __device__ __forceinline__ void clear_sums() {
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sums_[r][i] = 0.0f;
        }
    }

    // Each lane keeps four of its eight elements and gets the other half of their products. `live` keys of the leaf.
    __device__ __forceinline__ void finish_scores(int32_t live, uint32_t tile, float (&scores)[S::kRowTiles][4]) {
        live -= static_cast<int32_t>(tile * kTileTokens);
        const uint32_t half = lane_.quad_pair & 1;
        const int32_t column = static_cast<int32_t>(4 * lane_.quad_pair + (lane_.index & 2));
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float given = half ? sums_[r][i] : sums_[r][i + 4];
                const float kept = half ? sums_[r][i + 4] : sums_[r][i];
                const float score = (kept + __shfl_xor_sync(kAll, given, 4)) * score_scale_;
                const int32_t position = S::kMasksTail ? column + (i & 1) : 0;
                scores[r][i] = position < live ? score : __int_as_float(0xff800000);
            }
        }
    }

    // P and its sums over the warp's keys, to shared memory.
    __device__ __forceinline__ void store_weights(const float (&scores)[S::kTilesPerWarp][S::kRowTiles][4],
                                                  const float (&maxima)[S::kRowTiles][2]) {
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < S::kTilesPerWarp; ++i) {
                    const float p0 = exp2_approximate(scores[i][r][2 * second] - maxima[r][second]);
                    const float p1 = exp2_approximate(scores[i][r][2 * second + 1] - maxima[r][second]);
                    sum += p0 + p1;
                    const __half2 high = __floats2half2_rn(p0, p1);
                    const __half2 residual = __floats2half2_rn(p0 - __low2float(high), p1 - __high2float(high));
                    const uint32_t tile = warp_ * S::kTilesPerWarp + i;
                    const uint32_t word = 2 * (tile & 1) + (lane_.index & 2) / 2;  // of the uint4
                    const uint32_t row = row_of(second);
                    reinterpret_cast<__half2*>(&shared_.high[r][tile / 2][row][lane_.quad_pair])[word] = high;
                    reinterpret_cast<__half2*>(&shared_.residual[r][tile / 2][row][lane_.quad_pair])[word] = residual;
                }
#pragma unroll
                for (int distance = 2; distance < 16; distance *= 2) sum += __shfl_xor_sync(kAll, sum, distance);
                if ((lane_.index & 14) == 0) shared_.sum[8 * r + row_of(second)][warp_] = sum;
            }
        }
    }

    __device__ __forceinline__ void load_values(const WorkUnit& unit, uint32_t leaf, uint32_t first,
                                                uint4 (&stored)[S::kValueTiles * S::kValueLoads]) {
        const uint8_t* const* tiles = shared_.value_tiles[leaf % kTileSets];
        const int32_t live = live_keys(unit, leaf);
        const uint32_t key = 4 * lane_.quad_pair + lane_.quad;
        const auto offset = key * p_.kv.v.token_bytes + 32 * warp_ * S::Operand::kElementBytes + 16 * lane_.upper;
        load_16_bytes_each(
            stored, is_whole(live), wide_,
            [&](int i) { return tiles[first + i / S::kValueLoads] + offset + 32 * (i % S::kValueLoads); },
            [&](int i) {
                const uint32_t tile = first + i / S::kValueLoads;
                return static_cast<int32_t>(tile * kTileTokens + (S::kMasksTail ? key : 0)) < live;
            });
    }

    // Numerators of the leaf over the warp's 32 dimensions. The first loads are there.
    __device__ __forceinline__ void add_values(const WorkUnit& unit, uint32_t leaf,
                                               uint4 (&stored)[S::kValueTiles * S::kValueLoads], XqaState<S>& state,
                                               uint32_t& nan) {
        float sums[S::kRowTiles][4][8] = {};  // [row tile][tile of 8 dimensions]
        constexpr int kTurnTiles = 4, kTurnLoads = kTurnTiles * S::kValueLoads;
#pragma unroll S::kTurnsAtOnce
        for (uint32_t first = 0; first < S::kLeafTiles; first += kTurnTiles) {
#pragma unroll
            for (int pair = 0; pair < kTurnTiles / 2; ++pair) {
                add_pair(first / 2 + pair, stored + 2 * pair * S::kValueLoads, sums, nan);
            }
            if (first + kTurnTiles < S::kLeafTiles) {
                if constexpr (S::kValueTiles > kTurnTiles) {
#pragma unroll
                    for (int i = 0; i < kTurnLoads; ++i) stored[i] = stored[kTurnLoads + i];
                } else {
                    load_values(unit, leaf, first + kTurnTiles, stored);
                }
            }
        }
        // Quad-pairs have different keys: their sums are brought together, tile n to quad-pair n.
        const bool upper_pair = (lane_.quad_pair & 2) != 0, odd = (lane_.quad_pair & 1) != 0;
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                float two[2];
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    const float given = upper_pair ? sums[r][n][i] : sums[r][n + 2][i];
                    const float kept = upper_pair ? sums[r][n + 2][i] : sums[r][n][i];
                    two[n] = kept + __shfl_xor_sync(kAll, given, 8);
                }
                state.values[r][i] = (odd ? two[1] : two[0]) + __shfl_xor_sync(kAll, odd ? two[0] : two[1], 4);
            }
        }
    }

    // Two tiles of keys.
    __device__ __forceinline__ void add_pair(uint32_t pair, const uint4* stored, float (&sums)[S::kRowTiles][4][8],
                                             uint32_t& nan) {
        HalfFragment values[2][4];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            uint32_t words[4 * S::kValueLoads];
#pragma unroll
            for (int i = 0; i < S::kValueLoads; ++i) {
                const uint4 q = stored[h * S::kValueLoads + i];
                words[4 * i] = q.x;
                words[4 * i + 1] = q.y;
                words[4 * i + 2] = q.z;
                words[4 * i + 3] = q.w;
            }
#pragma unroll
            for (int n = 0; n < 4; ++n) values[h][n] = S::Operand::operand(words + n * S::kWordsPerStep);
            if constexpr (S::Operand::kLosesNan) {
#pragma unroll
                for (int w = 0; w < 4; ++w) nan |= S::Operand::nan_bits(words[w]);
            }
        }
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
            const uint4 high = shared_.high[r][pair][lane_.operand_row][lane_.quad_pair];
            const uint4 residual = shared_.residual[r][pair][lane_.operand_row][lane_.quad_pair];
#pragma unroll
            for (int n = 0; n < 4; ++n) {
                mma_row_row(sums[r][n], {high.x, high.y}, values[0][n]);
                mma_row_row(sums[r][n], {residual.x, residual.y}, values[0][n]);
                mma_row_row(sums[r][n], {high.z, high.w}, values[1][n]);
                mma_row_row(sums[r][n], {residual.z, residual.w}, values[1][n]);
            }
        }
    }

    __device__ __forceinline__ void push(XqaLevel<S>& level, const XqaState<S>& state) {
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
            const float(&v)[8] = state.values[r];
            level.values[2 * r][threadIdx.x] = make_float4(v[0], v[1], v[2], v[3]);
            level.values[2 * r + 1][threadIdx.x] = make_float4(v[4], v[5], v[6], v[7]);
            // Read after the next leaf's barriers.
            if (warp_ == 0 && (lane_.index & 14) == 0) {
                level.denominators[8 * r + row_of(0)] = state.denominators[r][0];
                level.denominators[8 * r + row_of(1)] = state.denominators[r][1];
            }
        }
    }

    // state becomes the union of what waits on the level, whose keys come first, and itself.
    __device__ __forceinline__ void merge(const XqaLevel<S>& level, XqaState<S>& state) {
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
            MergeFactors factors[2];
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                SoftmaxDenominator left = level.denominators[8 * r + row_of(second)];
                factors[second] = merge_denominators(left, state.denominators[r][second]);
                state.denominators[r][second] = left;
            }
#pragma unroll
            for (int quarter = 0; quarter < 2; ++quarter) {
                const float4 left = level.values[2 * r + quarter][threadIdx.x];
                float* v = &state.values[r][4 * quarter];
                v[0] = merge_numerators(left.x, v[0], factors[0]);
                v[1] = merge_numerators(left.y, v[1], factors[0]);
                v[2] = merge_numerators(left.z, v[2], factors[1]);
                v[3] = merge_numerators(left.w, v[3], factors[1]);
            }
        }
    }

    __device__ __forceinline__ void store_slot(int32_t number, const XqaState<S>& state) {
        float* slot = partial_state_of(p_, number, S::kHeadDim);
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const int32_t member = static_cast<int32_t>(8 * r + row_of(second));
                // Four neighbouring dimensions to a lane, so that a store fills whole sectors: lanes index and index ^
                // 2 have two each of columns 0 to 3 and of 4 to 7.
                const bool upper_columns = (lane_.index & 2) != 0;
                const float* v = &state.values[r][2 * second];
                const float other0 = __shfl_xor_sync(kAll, upper_columns ? v[0] : v[4], 2);
                const float other1 = __shfl_xor_sync(kAll, upper_columns ? v[1] : v[5], 2);
                if (member >= p_.group) continue;
                const float4 four =
                    upper_columns ? make_float4(other0, other1, v[4], v[5]) : make_float4(v[0], v[1], other0, other1);
                const uint32_t dimension = upper_columns ? dimension_of(4) - 2 : dimension_of(0);
                *reinterpret_cast<float4*>(slot + member * S::kHeadDim + dimension) = four;
                if (warp_ == 0 && (lane_.index & 14) == 0) {
                    const SoftmaxDenominator d = state.denominators[r][second];
                    denominators_of(p_, slot, S::kHeadDim)[member] = make_float2(d.maximum, d.sum);
                }
            }
        }
    }

    __device__ __forceinline__ void store_output(const WorkUnit& unit, const XqaState<S>& state) {
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const int32_t member = static_cast<int32_t>(8 * r + row_of(second));
                if (member >= p_.group) continue;
                const SoftmaxDenominator d = state.denominators[r][second];
                const float factor = output_factor(d.sum, output_scale());
                uint16_t* out = out_of(p_, unit.row, unit.head, member);
#pragma unroll
                for (int i = 2 * second; i < 8; i += 4) {
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        out[dimension_of(i) + j] = output_bits(state.values[r][i + j], factor);
                    }
                }
                if (warp_ == 0 && (lane_.index & 14) == 0) {
                    store_lse(p_, unit.row, unit.head, member, log_sum_exp(d));
                }
            }
        }
    }

    static constexpr uint32_t kAll = 0xffffffffu;

    const DecodeParams& p_;
    XqaShared<S>& shared_;
    XqaLevel<S>* stack_;
    const Lane lane_;
    const uint32_t warp_;
    const bool wide_;  // loads of 16 bytes; else of 8
    float score_scale_;
    float sums_[S::kRowTiles][8];  // of products of the tile whose scores are being made
};

template <typename Format, int kHeadDim, int kRowTiles, bool kMasksTail = true>
__device__ __forceinline__ void xqa(const DecodeParams& p) {
    using S = XqaShape<Format, kHeadDim, kRowTiles, kMasksTail>;
    static_assert(sizeof(XqaShared<S>) == xqa_shared_bytes(kHeadDim, kRowTiles));
    static_assert(sizeof(XqaLevel<S>) == xqa_level_bytes(kHeadDim, kRowTiles));
    extern __shared__ uint4 dynamic_shared[];
    auto& shared = *reinterpret_cast<XqaShared<S>*>(dynamic_shared);
    auto* stack = reinterpret_cast<XqaLevel<S>*>(&shared + 1);
    Xqa<S>(p, shared, stack).run();
}

}  // namespace sm70::decode
