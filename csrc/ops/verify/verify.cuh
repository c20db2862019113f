// verify on tensor cores: up to 48 rows, query heads of several query rows of one request, share one pass over K and V.
//
// A block has D / 32 warps, 8 at D 256, one block an SM there. It reduces units (units.cuh) leaf by leaf: 128 keys, of
// which each warp takes a share for the scores of all rows, and all of them for its own 32 dimensions of the values.
//
//   scores   m8n8k4, the four quad-pairs hold a quarter of the dimensions each. A lane of quad-pair qp
//            holds K[key][32 s + 8 qp .. + 7] of two keys for all s as halves, 64 registers, converted once; Q comes
//            from shared memory, each fragment used for both tiles. A K16 product is two loads' 16 dimensions. Sums as
//            numerics.cuh says; 12 exchanges a row tile add the quad-pairs and leave each lane two rows x two keys.
//   weights  P = 2^(S - running maximum), as a high half and a residual half x 2^11, to shared memory in the order in
//            which lanes take them as A fragments: both in one load of 16 bytes. P is exact to 2^-23 of itself, down to
//            2^-24 to 2^-35 of the largest.
//   values   quad-pairs arranged 2 x 2: 16 rows x 16 dimensions an instruction, 48 x 32 a warp. V comes straight from
//            global memory, 8 bytes a lane and k-step, each in flight for 32 keys. High and residual products have
//            fresh accumulators for every 32 keys; residual x 2^-11 + high, then state x decay (the leaf's first time,
//            else 1) + that: one FMA each.
//   K        of the next leaf is loaded during the values, two loads for every 32 keys, and waits in shared memory.
//
// Shared memory at 48 rows, D 256: Q 24 KB, weights 25 KB, K 32 KB, sums 12 KB, maxima and the rest 2 KB: 95 of 96 KB.
// Registers: 48 of the state, 96 of fresh accumulators, 16 of V in flight, 12 to 24 of weights: 255, nothing spilled.
//
// Bound at 48 rows, D 256, E4M3, a leaf of 128 keys and sub-core: tensor 9216 cycles (scores 3072, values 6144); issue
// about 8900 (HMMA 4608, FADD of the sums 768, conversions and NaN 1900, folds 770, weights 700); DRAM 8500 at 850 GB/s
// and 1.38 GHz; the SM's port 5600. 256K keys are 25.6 leaves an SM: 0.171 ms by the tensor cores, 0.158 by DRAM.
#pragma once

#include "device/load.cuh"
#include "device/registers.cuh"
#include "device/softmax_output.cuh"
#include "ops/verify/shape.cuh"
#include "ops/verify/units.cuh"

namespace sm70::verify {

template <typename S>
class Verify {
 public:
    __device__ __forceinline__ Verify(const VerifyParams& p, VerifyShared<S>& shared)
        : p_(p), shared_(shared), warp_(threadIdx.x / 32) {
        score_scale_ =
            p.softmax_scale_log2 * resolve_scale(p.kv.k_scale, p.kv.k_device_scale) * S::Operand::kInverseScale;
    }

    __device__ __forceinline__ void run() {
        // The unit is kept in shared memory: it takes registers that the leaves need.
        if (threadIdx.x == 0) shared_.cursor = {0, 0, static_cast<int32_t>(blockIdx.x)};
        do {
            __syncthreads();  // the last unit is done with shared memory
            if (warp_ == 0) find_unit();
            __syncthreads();
            if (shared_.unit.pass.longest == 0) return;
            reduce_unit();
        } while (!shared_.is_last);
    }

 private:
    // Numerators: [pair of row tiles][half of 16 dimensions][accumulator element].
    using Accumulators = float[S::kRowPairs][2][8];

    // The lane's two rows in a row tile of scores, and in one of values: accumulator_row + 2 * second.
    __device__ __forceinline__ uint32_t row_of(int second) const { return lane_.accumulator_row + 2 * second; }
    // Of a pair of row tiles, the one that the lane's quad-pair takes; its half of the warp's 32 dimensions.
    __device__ __forceinline__ uint32_t tile_of_pair() const { return lane_.quad_pair >> 1; }
    __device__ __forceinline__ uint32_t half_of_dimensions() const { return lane_.quad_pair & 1; }

    // A row of the block: query row and head of its group.
    struct Row {
        int32_t query_row, member;
    };
    __device__ __forceinline__ Row row_at(const Unit& unit, uint32_t row) const {
        const uint32_t index = unit.row_group * S::kRows + row, query_row = p_.by_group.divide(index);
        return {static_cast<int32_t>(query_row), static_cast<int32_t>(p_.by_group.remainder(index, query_row))};
    }

    // By a warp. Without a unit the longest row has length 0.
    __device__ __forceinline__ void find_unit() {
        const auto distance = static_cast<int32_t>(gridDim.x);
        UnitCursor<S::kRows, S::kMostChunks> cursor{shared_.cursor};
        Unit unit{};
        bool last = false;
        if (!cursor.seek(p_, distance, unit, last)) unit.pass.longest = 0;
        __syncwarp();
        if (lane_.index == 0) {
            shared_.cursor = cursor.next(distance);
            shared_.unit = unit;
            shared_.is_last = last;
            shared_.first_special = kNoKey;
        }
    }

    __device__ __forceinline__ void reduce_unit() {
        const Unit& unit = shared_.unit;
        const uint32_t first = static_cast<uint32_t>(unit.chunk) * unit.pass.leaves;
        const uint32_t last = min(first + unit.pass.leaves, static_cast<uint32_t>(leaves_of(unit.pass.longest)));
        const uint32_t longest = static_cast<uint32_t>(unit.pass.longest);
        if (threadIdx.x < S::kLeafTiles) place_tile(unit, first, find_tile(unit, first));
        if (threadIdx.x < S::kRows) shared_.lengths[threadIdx.x] = length_in_pass(unit, threadIdx.x);
#pragma unroll
        for (int i = 0; i < 2 * S::kRowTiles; ++i) shared_.sums[i][threadIdx.x] = 0.0f;
        __syncthreads();

        // All that the first leaf needs is on its way at once.
        uint2 values[S::kFreshTiles][S::kTileSteps];
        {
            uint4 keys[S::kStagedKeys];
#pragma unroll
            for (int load = 0; load < S::kStagedKeys; ++load) keys[load] = load_keys(first, load, longest);
#pragma unroll
            for (int tile = 0; tile < S::kFreshTiles; ++tile) load_values(values[tile], first, tile, longest);
            load_query(unit);
#pragma unroll
            for (int load = 0; load < S::kStagedKeys; ++load) shared_.keys[load][threadIdx.x] = keys[load];
        }
        __syncthreads();
        PerRow<S::kRows> maximum;
#pragma unroll
        for (float& owned : maximum.owned) owned = __int_as_float(0xff800000);
        Accumulators state = {};
        const uint32_t shortest = shortest_row();

        for (uint32_t leaf = first; leaf < last; ++leaf) {
            const bool more = leaf + 1 < last;
            TilePlace next{};
            if (more && threadIdx.x < S::kLeafTiles) next = find_tile(unit, leaf + 1);

            const bool masked = (leaf + 1) * kLeafTokens > shortest;
#pragma unroll
            for (int tile = 0; tile < S::kTilesPerWarp; ++tile) score_tile(leaf, tile, masked);
            __syncthreads();
            if (more && threadIdx.x < S::kLeafTiles) place_tile(unit, leaf + 1, next);
            const PerRow<S::kRows> decay = advance(maximum);
            store_weights(maximum, decay);
            __syncthreads();
            add_values(leaf, more, longest, decay, values, state);
        }
        finish(unit, maximum, state);
    }

    __device__ __forceinline__ int32_t length_in_pass(const Unit& unit, uint32_t row) const {
        const Row at = row_at(unit, row);
        if (at.query_row >= p_.q_rows) return 0;
        const int32_t length = row_length(p_, unit.request, at.query_row);
        return leaves_of_chunk(length, S::kMostChunks) == unit.pass.leaves ? length : 0;
    }

    // Of the rows of the pass: up to there no mask is needed.
    __device__ __forceinline__ uint32_t shortest_row() const {
        uint32_t shortest = 0xffffffffu;
        for (uint32_t row = lane_.index; row < S::kRows; row += 32) {
            const uint32_t length = static_cast<uint32_t>(shared_.lengths[row]);
            if (length > 0) shortest = min(shortest, length);
        }
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            shortest = min(shortest, __shfl_xor_sync(kAll, shortest, distance));
        }
        return shortest;
    }

    // Rows past the last are zeros. In the order of VerifyShared::q; a lane's eight dimensions are those of a load of
    // K.
    __device__ __forceinline__ void load_query(const Unit& unit) {
        const uint32_t lane = lane_.index, dimension = 32 * warp_ + 8 * lane_.quad_pair;
        const uint16_t* source =
            p_.q + unit.request * p_.q_request_stride + static_cast<int64_t>(unit.head) * p_.group * p_.q_head_stride;
        uint4 halves[S::kRowTiles];
        if (p_.q_aligned) {
#pragma unroll
            for (int tile = 0; tile < S::kRowTiles; ++tile) {
                const Row at = row_at(unit, 8 * tile + lane_.operand_row);
                halves[tile] = make_uint4(0, 0, 0, 0);
                if (at.query_row < p_.q_rows) {
                    const uint16_t* q = source + at.query_row * p_.q_row_stride + at.member * p_.q_head_stride;
                    halves[tile] = __ldg(reinterpret_cast<const uint4*>(q + dimension));
                }
            }
#pragma unroll
            for (int tile = 0; tile < S::kRowTiles; ++tile) shared_.q[tile][warp_][lane] = halves[tile];
            return;
        }
#pragma unroll 1
        for (int tile = 0; tile < S::kRowTiles; ++tile) {
            const Row at = row_at(unit, 8 * tile + lane_.operand_row);
            uint32_t words[4] = {};
            if (at.query_row < p_.q_rows) {
                const uint16_t* q = source + at.query_row * p_.q_row_stride + at.member * p_.q_head_stride + dimension;
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = q[2 * i] | static_cast<uint32_t>(q[2 * i + 1]) << 16;
            }
            shared_.q[tile][warp_][lane] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }

    // Thread t finds tile t of a leaf, and places its addresses for all.
    __device__ __forceinline__ TilePlace find_tile(const Unit& unit, uint32_t leaf) const {
        const uint32_t tile = leaf * S::kLeafTiles + threadIdx.x;
        if (tile * kTileTokens >= static_cast<uint32_t>(unit.pass.longest)) return {0, 0};
        return tile_place(p_.kv, unit.request, tile);
    }
    __device__ __forceinline__ void place_tile(const Unit& unit, uint32_t leaf, TilePlace place) {
        shared_.key_tiles[leaf & 1][threadIdx.x] = tile_address(p_.kv.k, place, unit.head);
        shared_.value_tiles[leaf & 1][threadIdx.x] = tile_address(p_.kv.v, place, unit.head);
    }

    // Key that a lane holds of the two times eight of a tile. Quad-pairs have them in four orders, such that in the
    // exchanges (settle()) all lanes keep and give the same registers.
    __device__ __forceinline__ uint32_t key_in_tile(uint32_t t) const {
        // With 32 rows the compiler would keep these numbers through all loops, and spill others.
        const Lane lane{S::kRowTiles == 4 ? forgotten(lane_.index) : lane_.index};
        return 8 * (t ^ (lane.quad_pair & 1)) + (lane.operand_row ^ (4 * (lane.quad_pair >> 1)));
    }

    // An eighth of a thread's K of a leaf: load l is sector s (32 dimensions, 8 for each quad-pair) of both of its keys
    // in tile u, with l = u kKeySectors + s. Together the lanes read the 16 keys' sectors whole, in two instructions.
    __device__ __forceinline__ uint4 load_keys(uint32_t leaf, uint32_t load, uint32_t longest) const {
        const uint32_t sector = load % S::kKeySectors, tile = warp_ * S::kTilesPerWarp + load / S::kKeySectors;
        const int32_t live =
            static_cast<int32_t>(longest) - static_cast<int32_t>(leaf * kLeafTokens + tile * kTileTokens);
        const uint8_t* source = shared_.key_tiles[leaf & 1][tile] + 32 * sector + 8 * lane_.quad_pair;
        uint2 words[2];
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            const uint32_t key = key_in_tile(t);
            words[t] = load_8_bytes(source + key * p_.kv.k.token_bytes, static_cast<int32_t>(key) < live);
        }
        return make_uint4(words[0].x, words[0].y, words[1].x, words[1].y);
    }

    // V of a tile: k-step s is keys 4 s + quad; the lane's 8 bytes are four dimensions for each of two instructions.
    __device__ __forceinline__ const uint8_t* value_source(uint32_t leaf, uint32_t tile) const {
        return shared_.value_tiles[leaf & 1][tile] + lane_.quad * p_.kv.v.token_bytes + 32 * warp_ +
               16 * half_of_dimensions() + 8 * lane_.upper;
    }
    __device__ __forceinline__ void load_values(uint2 (&values)[S::kTileSteps], uint32_t leaf, uint32_t tile,
                                                uint32_t longest) const {
        const uint32_t first = leaf * kLeafTokens + tile * kTileTokens + lane_.quad;
#pragma unroll
        for (int step = 0; step < S::kTileSteps; ++step) {
            const uint8_t* source = value_source(leaf, tile) + 4 * step * p_.kv.v.token_bytes;
            values[step] = load_8_bytes(source, first + 4 * step < longest);
        }
    }

    // A byte that makes NaN of the rows that have this key.
    __device__ __forceinline__ void mark_special(uint32_t key) {
        atomicMin(&shared_.first_special, static_cast<int32_t>(key));
    }

    // Which keys of a tile have such a byte in V: it is read again, which is rare.
    __device__ __forceinline__ void mark_special_values(uint32_t leaf, uint32_t tile, uint32_t longest) {
        const uint32_t first = leaf * kLeafTokens + tile * kTileTokens + lane_.quad;
        for (uint32_t step = 0; step < S::kTileSteps; ++step) {
            const uint8_t* source = value_source(leaf, tile) + 4 * step * p_.kv.v.token_bytes;
            const uint2 value = load_8_bytes(source, first + 4 * step < longest);
            const uint32_t found = S::Special::find(value.x) | S::Special::find(value.y);
            if ((found & kSpecialBits) != 0) mark_special(first + 4 * step);
        }
    }

    // Where a thread's four scores of a row tile wait for their weights.
    __device__ __forceinline__ float4& scores_of(int tile, int row_tile) {
        if constexpr (S::kScoresReplaceKeys) return reinterpret_cast<float4&>(shared_.keys[row_tile][threadIdx.x]);
        return shared_.scores[tile * S::kRowTiles + row_tile][threadIdx.x];
    }

    // Scores of all rows and 16 keys from what is staged, minus infinity past each row's length, and their maxima.
    __device__ __forceinline__ void score_tile(uint32_t leaf, int tile, bool masked) {
        constexpr Compensation kCompensation = S::Numerics::kCompensation;
        HalfFragment keys[2][S::kKeySectors][2];
        uint32_t special[2] = {0, 0};
#pragma unroll
        for (int sector = 0; sector < S::kKeySectors; ++sector) {
            const uint4 stored = shared_.keys[tile * S::kKeySectors + sector][threadIdx.x];
            const uint32_t words[2][2] = {{stored.x, stored.y}, {stored.z, stored.w}};
#pragma unroll
            for (int t = 0; t < 2; ++t) {
#pragma unroll
                for (int w = 0; w < 2; ++w) {
                    special[t] |= S::Special::find(words[t][w]);
                    keys[t][sector][w] = S::Operand::operand(&words[t][w]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < 2; ++t) {
            if ((special[t] & kSpecialBits) == 0) continue;
            mark_special(leaf * kLeafTokens + (warp_ * S::kTilesPerWarp + tile) * kTileTokens + key_in_tile(t));
        }
        // One copy of this code for all row tiles: straight, it would not fit the instruction cache. A tile's exchanges
        // go beside the next one's products.
        ScoreSums<kCompensation> even[2], odd[2];
        multiply(0, keys, even);
#pragma unroll 1
        for (int r = 1; r + 1 < S::kRowTiles; r += 2) {
            multiply(r, keys, odd);
            settle(leaf, tile, r - 1, masked, even);
            multiply(r + 1, keys, even);
            settle(leaf, tile, r, masked, odd);
        }
        multiply(S::kRowTiles - 1, keys, odd);
        settle(leaf, tile, S::kRowTiles - 2, masked, even);
        settle(leaf, tile, S::kRowTiles - 1, masked, odd);
    }

    // A row tile's products with 16 keys, by quad-pairs.
    __device__ __forceinline__ void multiply(int r, const HalfFragment (&keys)[2][S::kKeySectors][2],
                                             ScoreSums<S::Numerics::kCompensation> (&sums)[2]) const {
#pragma unroll
        for (int sector = 0; sector < S::kKeySectors; sector += 2) {
            const uint4 a = shared_.q[r][sector][lane_.index], b = shared_.q[r][sector + 1][lane_.index];
#pragma unroll
            for (int t = 0; t < 2; ++t) {
                const auto product = [&](float(&accumulator)[8]) {
                    mma_row_col(accumulator, {a.x, a.y}, keys[t][sector][0]);
                    mma_row_col(accumulator, {a.z, a.w}, keys[t][sector][1]);
                    mma_row_col(accumulator, {b.x, b.y}, keys[t][sector + 1][0]);
                    mma_row_col(accumulator, {b.z, b.w}, keys[t][sector + 1][1]);
                };
                if (sector == 0) {
                    sums[t].start(product);
                } else {
                    sums[t].add(product);
                }
            }
        }
    }

    // The scores that those are.
    __device__ __forceinline__ void settle(uint32_t leaf, int tile, int r, bool masked,
                                           const ScoreSums<S::Numerics::kCompensation> (&sums)[2]) {
        constexpr Compensation kCompensation = S::Numerics::kCompensation;
        // Quad-pairs 2 i and 2 i + 1 exchange tiles, then pairs halves of the columns.
        float half[8], half_excess[8], scores[4];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            half[i] = sums[0].values[i];
            half_excess[i] = sums[0].excess[i];
            join<kCompensation>(half[i], half_excess[i], exchange(sums[1].values[i], 4),
                                exchange_excess(sums[1].excess[i], 4));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            join<kCompensation>(half[i], half_excess[i], exchange(half[i + 4], 8),
                                exchange_excess(half_excess[i + 4], 8));
            const float sum = kCompensation == Compensation::kKahan ? __fsub_rn(half[i], half_excess[i]) : half[i];
            scores[i] = __fmul_rn(sum, score_scale_);
        }
        if (masked) {
            const int32_t key = static_cast<int32_t>(leaf * kLeafTokens +
                                                     (warp_ * S::kTilesPerWarp + tile) * kTileTokens + key_of_scores());
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (key + i % 2 >= shared_.lengths[8 * r + row_of(i / 2)]) scores[i] = __int_as_float(0xff800000);
            }
        }
        scores_of(tile, r) = make_float4(scores[0], scores[1], scores[2], scores[3]);
        // Of the lane's two rows one goes on with lane n ^ 2's.
        const bool second = (lane_.index & 2) != 0;
        const float maxima[2] = {fmaxf(scores[0], scores[1]), fmaxf(scores[2], scores[3])};
        float maximum = fmaxf(second ? maxima[1] : maxima[0], exchange(second ? maxima[0] : maxima[1], 2));
        maximum = fmaxf(maximum, exchange(maximum, 4));
        maximum = fmaxf(maximum, exchange(maximum, 8));
        if (lane_.quad_pair == 0) {
            float& place = shared_.maxima[warp_][8 * r + row_of(second)];
            place = tile == 0 ? maximum : fmaxf(maximum, place);
        }
    }

    __device__ __forceinline__ static float exchange(float value, int distance) {
        return __shfl_xor_sync(kAll, value, distance);
    }
    __device__ __forceinline__ static float exchange_excess(float value, int distance) {
        if constexpr (S::Numerics::kCompensation == Compensation::kKahan) return exchange(value, distance);
        return value;
    }

    // Key of a lane's scores [0] and [2] in the warp's tile of 16; [1] and [3] are of the next key.
    __device__ __forceinline__ uint32_t key_of_scores() const {
        return 8 * (lane_.quad_pair & 1) + 4 * (lane_.quad_pair >> 1) + (lane_.index & 2);
    }

    // The running maxima with this leaf, and what states of before count by it. A row without keys so far has none.
    __device__ __forceinline__ PerRow<S::kRows> advance(PerRow<S::kRows>& maximum) const {
        PerRow<S::kRows> decay;
#pragma unroll
        for (int i = 0; i < PerRow<S::kRows>::kOwned; ++i) {
            const uint32_t row = min(32 * i + lane_.index, S::kRows - 1u);
            float found = maximum.owned[i];
#pragma unroll
            for (int w = 0; w < S::kWarps; ++w) found = fmaxf(found, shared_.maxima[w][row]);
            decay.owned[i] = exp2_approximate(maximum.owned[i] - reference(found));
            maximum.owned[i] = found;
        }
        return decay;
    }

    // What scores are taken relative to: -inf - -inf would be NaN.
    __device__ __forceinline__ static float reference(float maximum) {
        return maximum == __int_as_float(0xff800000) ? 0.0f : maximum;
    }

    // P to shared memory, and its sums.
    __device__ __forceinline__ void store_weights(const PerRow<S::kRows>& maximum, const PerRow<S::kRows>& decay) {
        // All loads before the first store, which the compiler can't tell from their places.
        float tops[2 * S::kRowTiles], sums[2 * S::kRowTiles];
        PerRow<S::kRows> references;
#pragma unroll
        for (int i = 0; i < PerRow<S::kRows>::kOwned; ++i) references.owned[i] = reference(maximum.owned[i]);
#pragma unroll
        for (int i = 0; i < 2 * S::kRowTiles; ++i) {
            tops[i] = references.of(8 * (i / 2), row_of(i % 2));
            sums[i] = __fmul_rn(shared_.sums[i][threadIdx.x], decay.of(8 * (i / 2), row_of(i % 2)));
        }
#pragma unroll
        for (int tile = 0; tile < S::kTilesPerWarp; ++tile) {
            float4 scores[S::kRowTiles];
#pragma unroll
            for (int r = 0; r < S::kRowTiles; ++r) scores[r] = scores_of(tile, r);
            const uint32_t key = (warp_ * S::kTilesPerWarp + tile) * kTileTokens + key_of_scores();
            auto& step = shared_.weights[key / 4];
#pragma unroll
            for (int r = 0; r < S::kRowTiles; ++r) {
                store_pair(step.rows[8 * r + row_of(0)], scores[r].x, scores[r].y, tops[2 * r], sums[2 * r]);
                store_pair(step.rows[8 * r + row_of(1)], scores[r].z, scores[r].w, tops[2 * r + 1], sums[2 * r + 1]);
            }
        }
#pragma unroll
        for (int i = 0; i < 2 * S::kRowTiles; ++i) shared_.sums[i][threadIdx.x] = sums[i];
    }

    // With a residual, cut: that takes no turn of the slow XU pipe, and the residual makes up for it.
    __device__ __forceinline__ static __half2 high_halves(float p0, float p1) {
        if constexpr (!S::Numerics::kResidual) return __floats2half2_rn(p0, p1);
        return __halves2half2(__float2half_rz(p0), __float2half_rz(p1));
    }

    // The weights of a row and two keys.
    __device__ __forceinline__ void store_pair(uint4& place, float score0, float score1, float top, float& sum) const {
        const float p0 = exp2_approximate(__fsub_rn(score0, top)), p1 = exp2_approximate(__fsub_rn(score1, top));
        sum = __fadd_rn(sum, __fadd_rn(p0, p1));
        const __half2 high = high_halves(p0, p1);
        const float r0 = __fmul_rn(__fsub_rn(p0, __low2float(high)), 2048.0f);
        const float r1 = __fmul_rn(__fsub_rn(p1, __high2float(high)), 2048.0f);
        const __half2 residual = __floats2half2_rn(r0, r1);
        // Half of the lanes store the residual first: so all 32 are in banks of their own (Step::padding).
        const bool swapped = lane_.quad_pair >= 2;
        auto* words = reinterpret_cast<__half2*>(&place) + (lane_.index & 2) / 2;
        words[swapped ? 2 : 0] = swapped ? residual : high;
        words[swapped ? 0 : 2] = swapped ? high : residual;
    }

    // The leaf's values into the state. Meanwhile the next leaf's K and first values are on their way.
    __device__ __forceinline__ void add_values(uint32_t leaf, bool more, uint32_t longest,
                                               const PerRow<S::kRows>& decay,
                                               uint2 (&values)[S::kFreshTiles][S::kTileSteps], Accumulators& state) {
        constexpr bool kCarried = S::Numerics::kValueSums == ValueSums::kCarried;
        uint4 keys = make_uint4(0, 0, 0, 0);
#pragma unroll 1
        for (uint32_t first = 0; first < S::kLeafTiles; first += S::kFreshTiles) {
            Accumulators high = {}, residual = {};
            if constexpr (kCarried) carry(high, state, decay, first == 0);
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
                        sum = kCarried ? fresh : __fmaf_rn(sum, factors[pair][i / 2 % 2], fresh);
                    }
                }
            }
        }
        if (more) shared_.keys[S::kStagedKeys - 1][threadIdx.x] = keys;
    }

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

    __device__ __forceinline__ void carry(Accumulators& to, const Accumulators& from, const PerRow<S::kRows>& decay,
                                          bool first) const {
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

    // The state of the rows that have keys in the chunk, to their slots.
    __device__ __forceinline__ void finish(const Unit& unit, const PerRow<S::kRows>& maximum,
                                           const Accumulators& state) {
        const uint32_t first_token = static_cast<uint32_t>(unit.chunk * unit.pass.leaves) * kLeafTokens;
#pragma unroll
        for (int r = 0; r < S::kRowTiles; ++r) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                float sum = shared_.sums[2 * r + second][threadIdx.x];
#pragma unroll
                for (int distance = 2; distance < 16; distance *= 2) {
                    sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, distance));
                }
                if ((lane_.index & 14) == 0) shared_.maxima[warp_][8 * r + row_of(second)] = sum;
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
            if (shared_.lengths[row] > shared_.first_special) sum = __int_as_float(0x7fffffff);
            sums.owned[i] = sum;
            if (warp_ == 0 && 32 * i + lane_.index < S::kRows && has_keys(row, first_token)) {
                store_denominator(unit, row, maximum.owned[i], sum);
            }
        }
#pragma unroll
        for (int pair = 0; pair < S::kRowPairs; ++pair) {
#pragma unroll
            for (int second = 0; second < 2; ++second) {
                const uint32_t in_pair = 8 * tile_of_pair() + row_of(second), row = 16 * pair + in_pair;
                const float sum = sums.of(16 * pair, in_pair);
                // Lanes n and n ^ 2 hold halves of four dimensions in both instructions: each gets four of one, so that
                // a store fills sectors.
                const bool upper = (lane_.index & 2) != 0;
                float4 fours[2];
#pragma unroll
                for (int i = 2 * second; i < 8; i += 4) {
                    float kept[2], given[2];
#pragma unroll
                    for (int j = 0; j < 2; ++j) {
                        const float low = partial(state[pair][0][i + j], sum),
                                    high = partial(state[pair][1][i + j], sum);
                        kept[j] = upper ? high : low;
                        given[j] = __shfl_xor_sync(kAll, upper ? low : high, 2);
                    }
                    fours[i / 4] = upper ? make_float4(given[0], given[1], kept[0], kept[1])
                                         : make_float4(kept[0], kept[1], given[0], given[1]);
                }
                if (!has_keys(row, first_token)) continue;
                float* slot = slot_of(unit, row) + row_at(unit, row).member * S::kHeadDim + 32 * warp_ +
                              16 * half_of_dimensions() + 2 * (lane_.index & 2);
#pragma unroll
                for (int i = 2 * second; i < 8; i += 4) {
                    *reinterpret_cast<float4*>(slot + 2 * (i & 4)) = fours[i / 4];
                }
            }
        }
    }

    __device__ __forceinline__ bool has_keys(uint32_t row, uint32_t first_token) const {
        return shared_.lengths[row] > static_cast<int32_t>(first_token);
    }

    // What the workspace gets of a numerator, and of a denominator.
    __device__ __forceinline__ static float partial(float numerator, float sum) {
        if constexpr (S::Numerics::kPartials == Partials::kNumerators) return numerator;
        return __half2float(__float2half_rn(__fdividef(numerator, sum) * S::Operand::kInverseScale)) *
               S::Operand::kOperandScale;
    }
    __device__ __forceinline__ void store_denominator(const Unit& unit, uint32_t row, float maximum, float sum) {
        if constexpr (S::Numerics::kPartials == Partials::kNormalisedHalves) {
            maximum += __log2f(sum);
            sum = sum == sum ? 1.0f : sum;
        }
        auto* denominators = reinterpret_cast<float2*>(slot_of(unit, row) + p_.group * S::kHeadDim);
        denominators[row_at(unit, row).member] = make_float2(maximum, sum);
    }

    __device__ __forceinline__ float* slot_of(const Unit& unit, uint32_t row) const {
        const int64_t query_row = static_cast<int64_t>(unit.request) * p_.q_rows + row_at(unit, row).query_row;
        const int64_t slot = (query_row * p_.kv_heads + unit.head) * p_.chunks + unit.chunk;
        return p_.partial_states + slot * partial_state_floats(p_.group, S::kHeadDim);
    }

    static constexpr uint32_t kAll = 0xffffffffu;
    static constexpr int32_t kNoKey = 0x7fffffff;

    const VerifyParams& p_;
    VerifyShared<S>& shared_;
    const Lane lane_;
    const uint32_t warp_;
    float score_scale_;
};

template <typename Format, int kHeadDim, int kRowTiles, typename Numerics = Shipped>
__device__ __forceinline__ void verify(const VerifyParams& p) {
    using S = VerifyShape<Format, kHeadDim, kRowTiles, Numerics>;
    static_assert(sizeof(VerifyShared<S>) == verify_shared_bytes(kHeadDim, kRowTiles));
    extern __shared__ uint4 dynamic_shared[];
    Verify<S>(p, *reinterpret_cast<VerifyShared<S>*>(dynamic_shared)).run();
}

}  // namespace sm70::verify
