// Work units of decode, found from lengths that only the device knows.
//
// A row is cut into leaves of kLeafTokens keys, counted from its start. A work unit is an aligned group of 2^level
// leaves (fewer at the end of a row) for one KV head; a block reduces it to one softmax state. The whole launch has one
// level: the smallest that gives no more than `target` units. Since states merge in one tree over the leaves
// (softmax_state.cuh), the level changes which block computes what, but no bit of a result.
#pragma once

#include "device/fixed_width.h"
#include "device/leaves.h"
#include "device/tile.cuh"
#include "ops/decode/params.h"

namespace sm70::decode {

// The block-table row of a query row.
__device__ __forceinline__ int32_t request_of(const DecodeParams& p, int32_t row) {
    int32_t request = row;
    if (p.row_requests != nullptr) request = p.row_requests[row * p.row_requests_stride];
    if (request < 0 || request >= p.kv.requests) __trap();
    return request;
}

__device__ __forceinline__ int32_t row_length(const RowSchedule& p, int32_t row) {
    const int32_t length = p.seq_lens[row * p.seq_lens_stride];
    if (length < 0 || length > p.max_tokens) __trap();
    return length;
}

// Units of a row and one KV head.
__device__ __forceinline__ int32_t units_of(int32_t length, int32_t level) {
    return (leaves_of(length) + (1 << level) - 1) >> level;
}

// Units of all rows at every level, to shared memory. All threads of the block call it.
__device__ __forceinline__ void count_units(const RowSchedule& p, int32_t (&totals)[kMaxUnitLevels]) {
    if (threadIdx.x < kMaxUnitLevels) totals[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t row = static_cast<int32_t>(threadIdx.x); row < p.rows; row += static_cast<int32_t>(blockDim.x)) {
        const int32_t length = row_length(p, row);
        for (int32_t level = 0; level < p.max_level; ++level) {
            // A total only matters up to the target. Cut there, with a target below 2^30, it cannot wrap around.
            const int32_t units = units_of(length, level);
            if (units > 0) atomicAdd(&totals[level], min(units * p.kv_heads, p.target + 1));
        }
    }
    __syncthreads();
}

// The level of this launch, from those counts.
__device__ __forceinline__ int32_t chosen_level(const RowSchedule& p, const int32_t (&totals)[kMaxUnitLevels]) {
    int32_t level = 0;
    while (level < p.max_level && totals[level] > p.target) ++level;
    return level;
}

// The row of a lane, for at most 32 rows: lane i has row i modulo the power of two that is not below the number of
// rows, so that few exchanges leave the sum over the rows in every lane. A lane without a row has length 0.
__device__ __forceinline__ int32_t row_of_lane(const RowSchedule& p) {
    int32_t span = 1;
    while (span < p.rows) span *= 2;
    return static_cast<int32_t>(threadIdx.x) & (span - 1);
}

__device__ __forceinline__ int32_t sum_over_rows(const RowSchedule& p, int32_t value) {
    for (int32_t distance = 1; distance < p.rows; distance *= 2) value += exchange(value, distance);
    return value;
}

// The level of this launch. All threads of the block call it; `totals` is shared memory that nothing else uses yet.
__device__ __forceinline__ int32_t level_of_launch(const RowSchedule& p, int32_t (&totals)[kMaxUnitLevels]) {
    if (p.rows > 32) {
        count_units(p, totals);
        return chosen_level(p, totals);
    }
    // Few rows need neither shared memory nor a barrier.
    const int32_t row = row_of_lane(p), length = row < p.rows ? row_length(p, row) : 0;
    int32_t level = 0;
    while (level < p.max_level &&
           sum_over_rows(p, min(units_of(length, level) * p.kv_heads, p.target + 1)) > p.target) {
        ++level;
    }
    return level;
}

// Number of the first unit of a row: units of all rows before it. All threads of the block call it.
__device__ __forceinline__ int32_t units_before(const RowSchedule& p, int32_t level, int32_t row, int32_t& sum) {
    if (p.rows <= 32) {
        const int32_t other = row_of_lane(p);
        return sum_over_rows(p, other < row ? units_of(row_length(p, other), level) * p.kv_heads : 0);
    }
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    for (int32_t other = static_cast<int32_t>(threadIdx.x); other < row; other += static_cast<int32_t>(blockDim.x)) {
        const int32_t units = units_of(row_length(p, other), level);
        if (units > 0) atomicAdd(&sum, units * p.kv_heads);
    }
    __syncthreads();
    return sum;
}

struct WorkUnit {
    int32_t row, head;
    int32_t length;  // of the row
    int32_t index;   // among the units of the row and head
    int32_t count;   // of units of the row and head
};

// Walks through the units of all rows in order: rows, heads, units of a row. Every warp walks the same way.
class WorkUnitCursor {
 public:
    // WorkUnit number `unit`, which must not be below an earlier one; false if there are no more.
    __device__ __forceinline__ bool seek(const RowSchedule& p, int32_t level, int32_t unit, WorkUnit& found) {
        if (p.rows == 1) {
            found.row = 0;
            found.length = row_length(p, 0);
            found.count = units_of(found.length, level);
            if (unit >= found.count * p.kv_heads) return false;
            found.head = p.kv_heads == 1 ? 0 : unit / found.count;
            found.index = unit - found.head * found.count;
            return true;
        }
        Window window = load_window(p, level);
        while (unit >= before_ + __shfl_sync(kFullWarp, window.inclusive, 31)) {
            before_ += __shfl_sync(kFullWarp, window.inclusive, 31);
            first_ += 32;
            if (first_ >= p.rows) return false;
            window = load_window(p, level);
        }
        const int32_t in_window = unit - before_;
        const int lane = __ffs(static_cast<int>(__ballot_sync(kFullWarp, in_window < window.inclusive))) - 1;
        const int32_t in_row = in_window - __shfl_sync(kFullWarp, window.inclusive - window.units * p.kv_heads, lane);
        found.row = first_ + lane;
        found.length = __shfl_sync(kFullWarp, window.length, lane);
        found.count = __shfl_sync(kFullWarp, window.units, lane);
        found.head = in_row / found.count;
        found.index = in_row - found.head * found.count;
        return true;
    }

 private:
    // 32 rows, one to a lane. They are read again for every unit: registers are scarcer than this little time.
    struct Window {
        int32_t length, units;
        int32_t inclusive;  // units of the rows up to the lane's, over all heads
    };

    __device__ __forceinline__ Window load_window(const RowSchedule& p, int32_t level) const {
        const int32_t lane = static_cast<int32_t>(threadIdx.x & 31);
        Window window{};
        if (first_ + lane < p.rows) window.length = row_length(p, first_ + lane);
        window.units = units_of(window.length, level);
        window.inclusive = warp_inclusive_sum(window.units * p.kv_heads);
        return window;
    }

    int32_t first_ = 0;   // row of the window
    int32_t before_ = 0;  // units of the rows before it
};

}  // namespace sm70::decode
