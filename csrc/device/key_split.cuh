// How rows of keys are divided among blocks, from lengths that only the device knows.
//
// A row is cut into leaves of kLeafTokens keys, counted from its start. A unit is an aligned group of 2^level leaves
// (fewer at the end of a row) for one KV head; a block reduces it to one softmax state. The level is one for the whole
// launch: the smallest that gives no more than `target` units. Since states combine in one tree over the leaves
// (softmax_state.cuh), the level changes who computes what, but no bit of a result.
#pragma once

#include "device/fixed_width.h"
#include "device/key_split.h"

namespace sm70 {

__device__ __forceinline__ int32_t row_length(const KeySplit& p, int32_t row) {
    const int32_t length = p.row_lengths[row * p.row_lengths_stride];
    if (length < 0 || length > p.max_tokens) __trap();
    return length;
}

__device__ __forceinline__ int32_t leaves_of(int32_t length) {
    return static_cast<int32_t>((static_cast<uint32_t>(length) + (kLeafTokens - 1)) / kLeafTokens);
}

// Units of a row and one KV head.
__device__ __forceinline__ int32_t units_of(int32_t length, int32_t level) {
    return (leaves_of(length) + (1 << level) - 1) >> level;
}

// The level of this launch. All threads of the block call it; `totals` is shared memory for kMaxUnitLevels integers.
__device__ __forceinline__ int32_t choose_level(const KeySplit& p, int32_t* totals) {
    if (threadIdx.x < kMaxUnitLevels) totals[threadIdx.x] = 0;
    __syncthreads();
    for (int32_t row = static_cast<int32_t>(threadIdx.x); row < p.rows; row += static_cast<int32_t>(blockDim.x)) {
        const int32_t length = row_length(p, row);
        for (int32_t level = 0; level < p.max_level; ++level) {
            // At a target below 2^30 a total that is cut there is as good as the real one, and can't wrap around.
            const int32_t units = units_of(length, level);
            if (units > 0) atomicAdd(&totals[level], min(units * p.kv_heads, p.target + 1));
        }
    }
    __syncthreads();
    int32_t level = 0;
    while (level < p.max_level && totals[level] > p.target) ++level;
    return level;
}

struct Unit {
    int32_t row, head;
    int32_t length;  // of the row
    int32_t index;   // among the units of the row and head
    int32_t count;   // of units of the row and head
};

// Walks through the units of all rows in order: rows, heads, units of a row. Every warp walks alike.
class UnitCursor {
 public:
    __device__ __forceinline__ UnitCursor(const KeySplit& p, int32_t level) : p_(p), level_(level) { load_window(); }

    // Unit number `unit`, which must not be below an earlier one; false if there are no more.
    __device__ __forceinline__ bool seek(int32_t unit, Unit& found) {
        while (unit >= before_ + __shfl_sync(kAll, inclusive_, 31)) {
            before_ += __shfl_sync(kAll, inclusive_, 31);
            window_ += 32;
            if (window_ >= p_.rows) return false;
            load_window();
        }
        const int32_t in_window = unit - before_;
        const int lane = __ffs(static_cast<int>(__ballot_sync(kAll, in_window < inclusive_))) - 1;
        const int32_t in_row = in_window - __shfl_sync(kAll, inclusive_ - units_ * p_.kv_heads, lane);
        found.row = window_ + lane;
        found.length = __shfl_sync(kAll, length_, lane);
        found.count = __shfl_sync(kAll, units_, lane);
        found.head = in_row / found.count;
        found.index = in_row - found.head * found.count;
        return true;
    }

 private:
    static constexpr uint32_t kAll = 0xffffffffu;

    __device__ __forceinline__ void load_window() {
        const int32_t lane = static_cast<int32_t>(threadIdx.x & 31);
        length_ = window_ + lane < p_.rows ? row_length(p_, window_ + lane) : 0;
        units_ = units_of(length_, level_);
        inclusive_ = units_ * p_.kv_heads;
#pragma unroll
        for (int distance = 1; distance < 32; distance *= 2) {
            const int32_t other = __shfl_up_sync(kAll, inclusive_, static_cast<unsigned>(distance));
            if (lane >= distance) inclusive_ += other;
        }
    }

    const KeySplit& p_;
    int32_t level_;
    int32_t window_ = 0;  // first row of the 32 that the lanes hold
    int32_t before_ = 0;  // units of the rows before it
    int32_t length_, units_, inclusive_;
};

}  // namespace sm70
