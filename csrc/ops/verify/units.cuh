// Who computes what: units of work, from lengths that only the device knows.
//
// The rows of a request that share a block, a row group, pass over the keys together if their chunks have the same size.
// They almost always do, since the size changes every 10240 tokens (D 256) and the lengths of a request's rows are
// neighbours; where they don't, or where a row is a stranger, there are several passes, each of the rows of one size.
// A unit is a chunk of a pass and a KV head. Units are numbered through: requests, row groups, passes, heads, chunks.
#pragma once

#include "device/key_split.cuh"
#include "ops/verify/params.h"

namespace sm70::verify {

__device__ __forceinline__ int32_t row_length(const VerifyParams& p, int32_t request, int32_t row) {
    const int32_t length = p.row_lengths[request * p.lengths_request_stride + row * p.lengths_row_stride];
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

struct Unit {
    int32_t request, row_group, head;
    Pass pass;
    int32_t chunk;
};

// Where a walk through the units is.
struct UnitPlace {
    int32_t first;   // row group of the window of 32
    int32_t before;  // units of the row groups before it
    int32_t unit;    // number of the unit
};

// Walks through the units of all rows in order, a warp together.
template <int kRows, int kMostChunks>
class UnitCursor {
 public:
    __device__ __forceinline__ explicit UnitCursor(const UnitPlace& place)
        : first_(place.first), before_(place.before), unit_(place.unit) {}

    __device__ __forceinline__ UnitPlace next(int32_t distance) const { return {first_, before_, unit_ + distance}; }

    // The unit of the place; false if there are no more.
    __device__ __forceinline__ bool seek(const VerifyParams& p, Unit& found) {
        const int32_t unit = unit_;
        const int32_t groups = p.requests * p.row_groups;
        Counted counted = count(p, first_ + lane());
        int32_t inclusive = scan(counted.units);
        while (unit >= before_ + __shfl_sync(kAll, inclusive, 31)) {
            before_ += __shfl_sync(kAll, inclusive, 31);
            first_ += 32;
            if (first_ >= groups) return false;
            counted = count(p, first_ + lane());
            inclusive = scan(counted.units);
        }
        int32_t rest = unit - before_;
        const int from = __ffs(static_cast<int>(__ballot_sync(kAll, rest < inclusive))) - 1;
        rest -= __shfl_sync(kAll, inclusive - counted.units, from);
        find_row_group(p, first_ + from, found);
        found.pass = {__shfl_sync(kAll, counted.first.leaves, from), __shfl_sync(kAll, counted.first.longest, from)};
        int32_t chunks = chunks_of(found.pass.longest, found.pass.leaves);
        while (rest >= chunks * p.kv_heads) {
            rest -= chunks * p.kv_heads;
            found.pass = next_pass(p, found, found.pass.leaves);
            chunks = chunks_of(found.pass.longest, found.pass.leaves);
        }
        found.head = p.kv_heads == 1 ? 0 : rest / chunks;
        found.chunk = rest - found.head * chunks;
        return true;
    }

 private:
    static constexpr uint32_t kAll = 0xffffffffu;
    static constexpr int32_t kAnyLeaves = 0x7fffffff;

    struct Counted {
        Pass first;
        int32_t units;  // of all passes
    };

    __device__ __forceinline__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x & 31); }

    __device__ __forceinline__ static void find_row_group(const VerifyParams& p, int32_t group, Unit& unit) {
        const uint32_t request = p.by_row_groups.divide(static_cast<uint32_t>(group));
        unit.request = static_cast<int32_t>(request);
        unit.row_group = static_cast<int32_t>(p.by_row_groups.remainder(static_cast<uint32_t>(group), request));
    }

    // The pass of the row group with the largest chunks below `leaves`; its longest row has length 0 if there is none.
    // `more` tells whether another may follow.
    __device__ __forceinline__ static Pass next_pass(const VerifyParams& p, const Unit& unit, int32_t leaves,
                                                     bool* more = nullptr) {
        const uint32_t first_row = static_cast<uint32_t>(unit.row_group * kRows);
        const int32_t first = static_cast<int32_t>(p.by_group.divide(first_row));
        const int32_t last = min(p.q_rows, static_cast<int32_t>(p.by_group.divide(first_row + kRows - 1)) + 1);
        int32_t longest = 0, shortest = 0x7fffffff;
#pragma unroll 4
        for (int32_t row = first; row < last; ++row) {
            const int32_t length = row_length(p, unit.request, row);
            if (length > 0 && leaves_of_chunk(length, kMostChunks) < leaves) {
                longest = max(longest, length);
                shortest = min(shortest, length);
            }
        }
        const Pass pass{leaves_of_chunk(longest, kMostChunks), longest};
        if (more != nullptr) *more = longest > 0 && leaves_of_chunk(shortest, kMostChunks) < pass.leaves;
        return pass;
    }

    __device__ __forceinline__ static Counted count(const VerifyParams& p, int32_t group) {
        Counted counted{};
        if (group >= p.requests * p.row_groups) return counted;
        Unit unit;
        find_row_group(p, group, unit);
        bool more;
        counted.first = next_pass(p, unit, kAnyLeaves, &more);
        counted.units = chunks_of(counted.first.longest, counted.first.leaves) * p.kv_heads;
        for (Pass pass = counted.first; more;) {
            pass = next_pass(p, unit, pass.leaves, &more);
            counted.units += chunks_of(pass.longest, pass.leaves) * p.kv_heads;
        }
        return counted;
    }

    __device__ __forceinline__ static int32_t scan(int32_t units) {
        int32_t inclusive = units;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int32_t other = __shfl_up_sync(kAll, inclusive, static_cast<unsigned>(distance));
            if (lane() >= distance) inclusive += other;
        }
        return inclusive;
    }

    int32_t first_, before_, unit_;  // as UnitPlace's
};

}  // namespace sm70::verify
