// Work units of verify: chunks of passes, found from lengths that only the device knows.
//
// The rows of a request that share a block are a row group. They pass over the keys together if their chunks have the
// same size. They almost always do, since the size changes every 10240 tokens (D 256) and the lengths of a request's
// rows are close. If they do not, there are several passes, one for the rows of each size. A work unit is one chunk of
// one pass for one KV head. They are numbered in this order: requests, row groups, passes, heads, chunks.
#pragma once

#include "device/leaves.h"
#include "device/tile.cuh"
#include "ops/verify/params.h"

namespace sm70::verify {

__device__ __forceinline__ int32_t row_length(const VerifyParams& p, int32_t request, int32_t row) {
    const int32_t length = p.seq_lens[request * p.seq_lens_request_stride + row * p.seq_lens_row_stride];
    if (length < 0 || length > p.max_tokens) __trap();
    return length;
}

// Leaves of a chunk of a row of this length.
__device__ __forceinline__ int32_t leaves_of_chunk(int32_t length, int32_t most) {
    return max(1, (leaves_of(length) + most - 1) / most);
}

__device__ __forceinline__ int32_t chunks_of(int32_t length, int32_t leaves) {
    return (leaves_of(length) + leaves - 1) / leaves;
}

// The rows of one row group whose chunks have `leaves` leaves.
struct Pass {
    int32_t leaves;
    int32_t longest;  // of their lengths
};

struct PassChunk {
    int32_t request, row_group, head;
    Pass pass;
    int32_t index;  // among the chunks of the pass and head
};

// Where a walk through the chunks is.
struct CursorPlace {
    int32_t first;   // row group of the window of 32
    int32_t before;  // chunks of the row groups before it
    int32_t number;  // of the chunk
};

// Walks through the chunks of all rows in order. All lanes of a warp walk together.
template <int kRows, int kMostChunks>
class PassChunkCursor {
 public:
    __device__ __forceinline__ explicit PassChunkCursor(const CursorPlace& place)
        : first_(place.first), before_(place.before), number_(place.number) {}

    __device__ __forceinline__ CursorPlace next(int32_t distance) const {
        return {first_, before_, number_ + distance};
    }

    // The chunk at this place; false if there are no more. `last` if there is certainly none at the next place.
    __device__ __forceinline__ bool seek(const VerifyParams& p, int32_t distance, PassChunk& found, bool& last) {
        const int32_t groups = p.requests * p.row_groups;
        Counted counted = count(p, first_ + lane());
        int32_t inclusive = warp_inclusive_sum(counted.chunks);
        while (number_ >= before_ + __shfl_sync(kFullWarp, inclusive, 31)) {
            before_ += __shfl_sync(kFullWarp, inclusive, 31);
            first_ += 32;
            if (first_ >= groups) return false;
            counted = count(p, first_ + lane());
            inclusive = warp_inclusive_sum(counted.chunks);
        }
        last = first_ + 32 >= groups && number_ + distance >= before_ + __shfl_sync(kFullWarp, inclusive, 31);
        int32_t rest = number_ - before_;
        const int from = __ffs(static_cast<int>(__ballot_sync(kFullWarp, rest < inclusive))) - 1;
        rest -= __shfl_sync(kFullWarp, inclusive - counted.chunks, from);
        find_row_group(p, first_ + from, found);
        found.pass = {__shfl_sync(kFullWarp, counted.first.leaves, from),
                      __shfl_sync(kFullWarp, counted.first.longest, from)};
        int32_t chunks = chunks_of(found.pass.longest, found.pass.leaves);
        while (rest >= chunks * p.kv_heads) {
            rest -= chunks * p.kv_heads;
            found.pass = pass_below(p, found, found.pass.leaves);
            chunks = chunks_of(found.pass.longest, found.pass.leaves);
        }
        found.head = p.kv_heads == 1 ? 0 : rest / chunks;
        found.index = rest - found.head * chunks;
        return true;
    }

 private:
    struct Counted {
        Pass first;
        int32_t chunks;  // of all passes
    };

    struct Rows {
        int32_t first, last;
    };

    __device__ __forceinline__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x & 31); }

    __device__ __forceinline__ static void find_row_group(const VerifyParams& p, int32_t group, PassChunk& chunk) {
        const uint32_t request = p.by_row_groups.divide(static_cast<uint32_t>(group));
        chunk.request = static_cast<int32_t>(request);
        chunk.row_group = static_cast<int32_t>(p.by_row_groups.remainder(static_cast<uint32_t>(group), request));
    }

    __device__ __forceinline__ static Rows query_rows(const VerifyParams& p, const PassChunk& chunk) {
        const uint32_t row = static_cast<uint32_t>(chunk.row_group * kRows);
        return {static_cast<int32_t>(p.by_group.divide(row)),
                min(p.q_rows, static_cast<int32_t>(p.by_group.divide(row + kRows - 1)) + 1)};
    }

    // The pass of the row group with the largest chunks below `leaves`; its longest row has length 0 if there is none.
    __device__ __forceinline__ static Pass pass_below(const VerifyParams& p, const PassChunk& chunk, int32_t leaves) {
        const Rows rows = query_rows(p, chunk);
        int32_t longest = 0;
#pragma unroll 1
        for (int32_t row = rows.first; row < rows.last; ++row) {
            const int32_t length = row_length(p, chunk.request, row);
            if (leaves_of_chunk(length, kMostChunks) < leaves) longest = max(longest, length);
        }
        return {leaves_of_chunk(longest, kMostChunks), longest};
    }

    __device__ __forceinline__ static Counted count(const VerifyParams& p, int32_t group) {
        Counted counted{};
        if (group >= p.requests * p.row_groups) return counted;
        PassChunk chunk;
        find_row_group(p, group, chunk);
        const Rows rows = query_rows(p, chunk);
        const int32_t* source = p.seq_lens + chunk.request * p.seq_lens_request_stride;
        int32_t longest = 0;
        uint32_t shortest = 0xffffffffu;
#pragma unroll 4
        for (int32_t row = rows.first; row < rows.last; ++row) {
            const int32_t length = source[row * p.seq_lens_row_stride];
            if (static_cast<uint32_t>(length) > static_cast<uint32_t>(p.max_tokens)) __trap();
            longest = max(longest, length);
            shortest = min(shortest, static_cast<uint32_t>(length) - 1u);  // 0 is no length
        }
        counted.first = {leaves_of_chunk(longest, kMostChunks), longest};
        counted.chunks = chunks_of(longest, counted.first.leaves) * p.kv_heads;
        if (longest == 0) return counted;
        const int32_t least = leaves_of_chunk(static_cast<int32_t>(shortest + 1u), kMostChunks);
        for (Pass pass = counted.first; pass.leaves > least;) {
            pass = pass_below(p, chunk, pass.leaves);
            counted.chunks += chunks_of(pass.longest, pass.leaves) * p.kv_heads;
        }
        return counted;
    }

    int32_t first_, before_, number_;  // as in CursorPlace
};

}  // namespace sm70::verify
