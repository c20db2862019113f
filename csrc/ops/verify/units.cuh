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

// Walks through the units of all rows in order. Every warp walks alike.
template <int kRows, int kMostChunks>
class UnitCursor {
 public:
    // Unit number `unit`, which must not be below an earlier one; false if there are no more.
    __device__ __forceinline__ bool seek(const VerifyParams& p, int32_t unit, Unit& found) {
        const int32_t groups = p.requests * p.row_groups;
        int32_t units = units_of(p, first_ + lane());
        int32_t inclusive = scan(units);
        while (unit >= before_ + __shfl_sync(kAll, inclusive, 31)) {
            before_ += __shfl_sync(kAll, inclusive, 31);
            first_ += 32;
            if (first_ >= groups) return false;
            units = units_of(p, first_ + lane());
            inclusive = scan(units);
        }
        int32_t rest = unit - before_;
        const int lane_of = __ffs(static_cast<int>(__ballot_sync(kAll, rest < inclusive))) - 1;
        rest -= __shfl_sync(kAll, inclusive - units, lane_of);
        found.request = (first_ + lane_of) / p.row_groups;
        found.row_group = (first_ + lane_of) - found.request * p.row_groups;
        Pass pass{INT32_MAX_, 0};
        while (next_pass(p, found.request, found.row_group, pass)) {
            const int32_t chunks = chunks_of(pass.longest, pass.leaves);
            if (rest < chunks * p.kv_heads) {
                found.head = rest / chunks;
                found.chunk = rest - found.head * chunks;
                break;
            }
            rest -= chunks * p.kv_heads;
        }
        found.pass = pass;
        return true;
    }

 private:
    static constexpr uint32_t kAll = 0xffffffffu;
    static constexpr int32_t INT32_MAX_ = 0x7fffffff;

    __device__ __forceinline__ static int32_t lane() { return static_cast<int32_t>(threadIdx.x & 31); }

    // The pass of the row group with the largest chunks below those of `pass`.
    __device__ __forceinline__ static bool next_pass(const VerifyParams& p, int32_t request, int32_t row_group,
                                                     Pass& pass) {
        const int32_t first = row_group * kRows / p.group;
        const int32_t last = min(p.q_rows, (row_group * kRows + kRows - 1) / p.group + 1);
        int32_t longest = 0;
        for (int32_t row = first; row < last; ++row) {
            const int32_t length = row_length(p, request, row);
            if (leaves_of_chunk(length, kMostChunks) < pass.leaves) longest = max(longest, length);
        }
        pass = {leaves_of_chunk(longest, kMostChunks), longest};
        return longest > 0;
    }

    __device__ __forceinline__ static int32_t units_of(const VerifyParams& p, int32_t group) {
        if (group >= p.requests * p.row_groups) return 0;
        const int32_t request = group / p.row_groups, row_group = group - request * p.row_groups;
        int32_t units = 0;
        Pass pass{INT32_MAX_, 0};
        // The passes after one of the smallest chunks would be empty.
        while (pass.leaves > 1 && next_pass(p, request, row_group, pass)) {
            units += chunks_of(pass.longest, pass.leaves) * p.kv_heads;
        }
        return units;
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

    int32_t first_ = 0;   // row group of the window
    int32_t before_ = 0;  // units of the row groups before it
};

}  // namespace sm70::verify
