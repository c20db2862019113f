// Shared memory of a block of prefill: Q, two stages of the ring, the state of each thread, and the block's key range.
//
// Vectors are addressed by fixed distances from one of five addresses that each thread computes once: the swizzles only
// touch bits that belong to the lane or the thread.
#pragma once

#include "ops/prefill/traits.cuh"

namespace sm70::prefill {

// What the main loop needs now and then: in shared memory, where it takes no registers.
struct Range {
    int32_t number;                // of the work item
    int32_t plain_tiles;           // from the first one on
    int32_t edge_tiles, edge_key;  // tiles after them (their number is not read), first key
    int32_t edge_keys;             // keys from edge_key on; what lies past them is not loaded, and is zero in a slice
};
static_assert(sizeof(Range) <= kRangeBytes);

// What a thread needs once per tile.
struct ThreadState {
    float4 maximum, sum;   // of its rows
    const char* next_key;  // where it loads from for the next tile
    float zero_or_nan;     // NaN once a score was not finite
    int32_t unused;        // makes the size a multiple of 16 bytes
};
static_assert(sizeof(ThreadState) * kThreads == kThreadStateBytes);

// Number of a vector of Q: 8 dimensions of a row.
__device__ __forceinline__ constexpr uint32_t query_vector(uint32_t row, uint32_t vector) {
    return vector * kTileRows + row;
}

// Number of a vector in a K slice: 8 of its 32 dimensions, of one key. Readers take 4 neighbouring keys for each of two
// neighbouring quad-pairs, which are 8 keys apart; writers take all four vectors of two neighbouring keys.
__device__ __forceinline__ constexpr uint32_t key_vector(uint32_t key, uint32_t vector) {
    return vector * kKeyVectorStride + (key ^ (key >> 3 & 1) << 2);
}

// Number of a vector in a V slice: 8 dimensions of one key. Readers take 4 neighbouring keys for each of two
// neighbouring quad-pairs, which are two vectors apart; writers take 8 vectors of one key.
template <typename T>
__device__ __forceinline__ constexpr uint32_t value_vector(uint32_t key, uint32_t vector) {
    return key * T::kVectors + (vector ^ (key & 1) ^ (key & 2) << 1);
}

// First vector of a slice's stage.
__device__ __forceinline__ constexpr int stage_of(int slice) {
    return slice % 2 * kStageVectors;
}

// The parts of a block's dynamic shared memory.
template <typename T>
struct SharedMemory {
    uint4 *query, *ring;
    ThreadState* thread_state;  // this thread's
    Range* range;

    __device__ __forceinline__ explicit SharedMemory(uint4* start)
        : query(start),
          ring(start + kTileRows * T::kVectors),
          thread_state(reinterpret_cast<ThreadState*>(ring + 2 * kStageVectors) + threadIdx.x),
          range(reinterpret_cast<Range*>(ring + 2 * kStageVectors + 3 * kThreads)) {}
};

}  // namespace sm70::prefill
