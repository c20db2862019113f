// What a block of verify loads: its next chunk, lengths of rows, Q, addresses of tiles, K and V.
#pragma once

#include "device/load.cuh"
#include "device/registers.cuh"
#include "ops/verify/block.cuh"

namespace sm70::verify {

template <typename S>
class VerifyInputs : protected VerifyBlock<S> {
    using Base = VerifyBlock<S>;

 protected:
    using Base::Base;
    using Base::mark_special, Base::kNoKey;
    using Base::p_, Base::shared_, Base::lane_, Base::warp_, Base::half_of_dimensions, Base::row_at;
    using typename Base::Row;

    // One warp finds the block's next chunk. If there is none, the longest row has length 0.
    __device__ __forceinline__ void find_chunk() {
        const auto distance = static_cast<int32_t>(gridDim.x);
        PassChunkCursor<S::kRows, S::kMostChunks> cursor{shared_.cursor};
        PassChunk chunk{};
        bool last = false;
        if (!cursor.seek(p_, distance, chunk, last)) chunk.pass.longest = 0;
        __syncwarp();
        if (lane_.index == 0) {
            shared_.cursor = cursor.next(distance);
            shared_.chunk = chunk;
            shared_.is_last = last;
            shared_.first_special = kNoKey;
        }
    }

    // 0 if the row is in another pass, or in none.
    __device__ __forceinline__ int32_t length_in_pass(const PassChunk& chunk, uint32_t row) const {
        const Row at = row_at(chunk, row);
        if (at.query_row >= p_.q_rows) return 0;
        const int32_t length = row_length(p_, chunk.request, at.query_row);
        return leaves_of_chunk(length, S::kMostChunks) == chunk.pass.leaves ? length : 0;
    }

    // The shortest row of the pass: no mask is needed for the keys up to its length.
    __device__ __forceinline__ uint32_t shortest_row() const {
        uint32_t shortest = 0xffffffffu;
        for (uint32_t row = lane_.index; row < S::kRows; row += 32) {
            const uint32_t length = static_cast<uint32_t>(shared_.lengths[row]);
            if (length > 0) shortest = min(shortest, length);
        }
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            shortest = min(shortest, exchange(shortest, distance));
        }
        return shortest;
    }

    // Q to shared memory. Rows past the last are zeros. A lane's eight dimensions are those that it loads of K.
    __device__ __forceinline__ void load_query(const PassChunk& chunk) {
        const uint32_t lane = lane_.index, dimension = 32 * warp_ + 8 * lane_.quad_pair;
        const uint16_t* source =
            p_.q + chunk.request * p_.q_request_stride + static_cast<int64_t>(chunk.head) * p_.group * p_.q_head_stride;
        uint4 halves[S::kRowTiles];
        if (p_.q_aligned) {
#pragma unroll
            for (int tile = 0; tile < S::kRowTiles; ++tile) {
                const Row at = row_at(chunk, 8 * tile + lane_.operand_row);
                halves[tile] = make_uint4(0, 0, 0, 0);
                if (at.query_row < p_.q_rows) {
                    const uint16_t* q = source + at.query_row * p_.q_row_stride + at.head_in_group * p_.q_head_stride;
                    halves[tile] = __ldg(reinterpret_cast<const uint4*>(q + dimension));
                }
            }
#pragma unroll
            for (int tile = 0; tile < S::kRowTiles; ++tile) shared_.q[tile][warp_][lane] = halves[tile];
            return;
        }
#pragma unroll 1
        for (int tile = 0; tile < S::kRowTiles; ++tile) {
            const Row at = row_at(chunk, 8 * tile + lane_.operand_row);
            uint32_t words[4] = {};
            if (at.query_row < p_.q_rows) {
                const uint16_t* q =
                    source + at.query_row * p_.q_row_stride + at.head_in_group * p_.q_head_stride + dimension;
#pragma unroll
                for (int i = 0; i < 4; ++i) words[i] = q[2 * i] | static_cast<uint32_t>(q[2 * i + 1]) << 16;
            }
            shared_.q[tile][warp_][lane] = make_uint4(words[0], words[1], words[2], words[3]);
        }
    }

    // Thread t finds tile t of a leaf, and stores its addresses for all threads.
    __device__ __forceinline__ TilePlace find_tile(const PassChunk& chunk, uint32_t leaf) const {
        const uint32_t tile = leaf * S::kLeafTiles + threadIdx.x;
        if (tile * kTileTokens >= static_cast<uint32_t>(chunk.pass.longest)) return {0, 0};
        return tile_place(p_.kv, chunk.request, tile);
    }
    __device__ __forceinline__ void place_tile(const PassChunk& chunk, uint32_t leaf, TilePlace place) {
        shared_.key_tiles[leaf & 1][threadIdx.x] = tile_address(p_.kv.k, place, chunk.head);
        shared_.value_tiles[leaf & 1][threadIdx.x] = tile_address(p_.kv.v, place, chunk.head);
    }

    // The lane's key among the first or second eight of a tile. Each quad-pair has the keys in another order, so that
    // in the exchanges of finish_scores() all lanes keep and give the same registers.
    __device__ __forceinline__ uint32_t key_in_tile(uint32_t t) const {
        // With 32 rows the compiler would keep these numbers in registers through all loops, and spill others.
        const Lane lane{S::kRowTiles == 4 ? forgotten(lane_.index) : lane_.index};
        return 8 * (t ^ (lane.quad_pair & 1)) + (lane.operand_row ^ (4 * (lane.quad_pair >> 1)));
    }

    // One eighth of the K that a thread loads of a leaf. Load l is sector s of the thread's two keys in tile u, with
    // l = u kKeySectors + s. A sector is 32 dimensions, 8 for each quad-pair. Two instructions of a warp read whole
    // sectors of 16 keys.
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

    // V of a tile. K-step s takes keys 4 s + quad. The lane's 8 bytes are four dimensions for each of two instructions.
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

    // Marks the keys of a tile that have special bytes in V. This is rare, so V is simply read again.
    __device__ __forceinline__ void mark_special_values(uint32_t leaf, uint32_t tile, uint32_t longest) {
        const uint32_t first = leaf * kLeafTokens + tile * kTileTokens + lane_.quad;
        for (uint32_t step = 0; step < S::kTileSteps; ++step) {
            const uint8_t* source = value_source(leaf, tile) + 4 * step * p_.kv.v.token_bytes;
            const uint2 value = load_8_bytes(source, first + 4 * step < longest);
            const uint32_t found = S::Special::find(value.x) | S::Special::find(value.y);
            if ((found & kSpecialBits) != 0) mark_special(first + 4 * step);
        }
    }
};

}  // namespace sm70::verify
