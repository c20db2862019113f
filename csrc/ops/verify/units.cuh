// Who computes what: units of work, from lengths that only the device knows.
//
// The rows of a request that share a block, a row group, pass over the keys together if their chunks have the same
// size. They almost always do, since the size changes every 10240 tokens (D 256) and the lengths of a request's rows
// are neighbours; where they don't, or where a row is a stranger, there are several passes, each of the rows of one
// size. A unit is a chunk of a pass and a KV head. Units are numbered through: requests, row groups, passes, heads,
// chunks.
#pragma once

#include "device/leaves.h"
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

    // The unit of the place; false if there are no more. `last` if the next place has none for certain.
    __device__ __forceinline__ bool seek(const VerifyParams& p, int32_t distance, Unit& found, bool& last) {
        const int32_t groups = p.requests * p.row_groups;
        Counted counted = count(p, first_ + lane());
        int32_t inclusive = scan(counted.units);
        while (unit_ >= before_ + __shfl_sync(kAll, inclusive, 31)) {
            before_ += __shfl_sync(kAll, inclusive, 31);
            first_ += 32;
            if (first_ >= groups) return false;
            counted = count(p, first_ + lane());
            inclusive = scan(counted.units);
        }
        last = first_ + 32 >= groups && unit_ + distance >= before_ + __shfl_sync(kAll, inclusive, 31);
        int32_t rest = unit_ - before_;
        const int from = __ffs(static_cast<int>(__ballot_sync(kAll, rest < inclusive))) - 1;
        rest -= __shfl_sync(kAll, inclusive - counted.units, from);
        find_row_group(p, first_ + from, found);
        found.pass = {__shfl_sync(kAll, counted.first.leaves, from), __shfl_sync(kAll, counted.first.longest, from)};
        int32_t chunks = chunks_of(found.pass.longest, found.pass.leaves);
        while (rest >= chunks * p.kv_heads) {
            rest -= chunks * p.kv_heads;
            found.pass = pass_below(p, found, found.pass.leaves);
            chunks = chunks_of(found.pass.longest, found.pass.leaves);
        }
        found.head = p.kv_heads == 1 ? 0 : rest / chunks;
        found.chunk = rest - found.head * chunks;
        return true;
    }

 private:
    static constexpr uint32_t kAll = 0xffffffffu;

    struct Counted {
        Pass first;
        int32_t units;  // of all passes
    };

    struct Rows {
        int32_t first, last;
    };

    __device__ __forceinline__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x & 31); }

    __device__ __forceinline__ static void find_row_group(const VerifyParams& p, int32_t group, Unit& unit) {
        const uint32_t request = p.by_row_groups.divide(static_cast<uint32_t>(group));
        unit.request = static_cast<int32_t>(request);
        unit.row_group = static_cast<int32_t>(p.by_row_groups.remainder(static_cast<uint32_t>(group), request));
    }

    __device__ __forceinline__ static Rows query_rows(const VerifyParams& p, const Unit& unit) {
        const uint32_t row = static_cast<uint32_t>(unit.row_group * kRows);
        return {static_cast<int32_t>(p.by_group.divide(row)),
                min(p.q_rows, static_cast<int32_t>(p.by_group.divide(row + kRows - 1)) + 1)};
    }

    // The pass of the row group with the largest chunks below `leaves`; its longest row has length 0 if there is none.
    __device__ __forceinline__ static Pass pass_below(const VerifyParams& p, const Unit& unit, int32_t leaves) {
        const Rows rows = query_rows(p, unit);
        int32_t longest = 0;
#pragma unroll 1
        for (int32_t row = rows.first; row < rows.last; ++row) {
            const int32_t length = row_length(p, unit.request, row);
            if (leaves_of_chunk(length, kMostChunks) < leaves) longest = max(longest, length);
        }
        return {leaves_of_chunk(longest, kMostChunks), longest};
    }

    __device__ __forceinline__ static Counted count(const VerifyParams& p, int32_t group) {
        Counted counted{};
        if (group >= p.requests * p.row_groups) return counted;
        Unit unit;
        find_row_group(p, group, unit);
        const Rows rows = query_rows(p, unit);
        const int32_t* source = p.seq_lens + unit.request * p.seq_lens_request_stride;
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
        counted.units = chunks_of(longest, counted.first.leaves) * p.kv_heads;
        if (longest == 0) return counted;
        const int32_t least = leaves_of_chunk(static_cast<int32_t>(shortest + 1u), kMostChunks);
        for (Pass pass = counted.first; pass.leaves > least;) {
            pass = pass_below(p, unit, pass.leaves);
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
