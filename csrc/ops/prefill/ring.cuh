// From global to shared memory: Q once per work item, K and V slice by slice through the two stages of the ring.
#pragma once

#include "device/load.cuh"
#include "device/registers.cuh"
#include "ops/prefill/shared.cuh"
#include "ops/prefill/work_items.cuh"

namespace sm70::prefill {

// A thread's part in this: of every half of a slice it loads one vector, and keeps it in a register until it is
// stored half a slice later.
template <typename T>
class Ring {
 public:
    __device__ __forceinline__ Ring(const PrefillParams& p, const SharedMemory<T>& shared)
        : p_(p),
          thread_state_(shared.thread_state),
          key_store_(shared.ring + key_vector(threadIdx.x / 4, threadIdx.x % 4)),
          value_store_(shared.ring + value_vector<T>(threadIdx.x / T::kVectors, threadIdx.x % T::kVectors)) {}

    // Rows past the last are zeros. Elements are read one by one, since q may have any layout.
    __device__ __forceinline__ void load_query(const WorkItem& item, const Sequence& sequence, uint4* query) const {
        auto* target = reinterpret_cast<uint16_t*>(query);
#pragma unroll 4
        for (int32_t i = static_cast<int32_t>(forgotten(threadIdx.x)); i < kTileRows * T::kHeadDim; i += kThreads) {
            const int32_t row = i / T::kHeadDim, dimension = i % T::kHeadDim, packed = item.first_row + row;
            uint16_t value = 0;
            if (packed < packed_rows(p_, sequence)) {
                const uint32_t query_row = p_.group.divide(packed),
                               head_in_group = p_.group.remainder(packed, query_row);
                const int64_t head = static_cast<int64_t>(item.head) * p_.group.divisor + head_in_group;
                value = p_.q.data[(sequence.first_query + static_cast<int64_t>(query_row)) * p_.q.token_stride +
                                  head * p_.q.head_stride + dimension];
            }
            target[query_vector(row, dimension / 8) * 8 + dimension % 8] = value;
        }
    }

    __device__ __forceinline__ void set_sources(const WorkItem& item, const Sequence& sequence, int32_t tile) {
        key_source_ = source_of(p_.k, item, sequence, tile, threadIdx.x / 4, threadIdx.x % 4);
        value_source_ = source_of(p_.v, item, sequence, tile, threadIdx.x / T::kVectors, threadIdx.x % T::kVectors);
    }

    __device__ __forceinline__ void store_next_key() const {
        thread_state_->next_key = key_source_ + 2 * p_.key_vector_stride_bytes;
    }

    // `keys` are what is left of the range from the current tile's first key on.
    __device__ __forceinline__ void set_keys_left(int32_t keys) {
        keys_left_ = keys - static_cast<int32_t>(threadIdx.x / 4);
        values_left_ = keys - static_cast<int32_t>(threadIdx.x / T::kVectors);
    }
    __device__ __forceinline__ void next_tile() {
        keys_left_ -= kTileKeys;
        values_left_ -= kTileKeys;
    }

    // The first slice to its stage, and the first load of the second.
    __device__ __forceinline__ void fill(uint4& vector) {
        load<false>(0, 0, vector);
        store(0, 0, vector);
        load<false>(0, 1, vector);
        store(0, 1, vector);
        load<false>(1, 0, vector);
    }

    // Before a half of a slice is used: the same half of the next slice, which has arrived in a register, is stored,
    // and the load of the half after that one starts. The stage is free, since a barrier has passed since the slice
    // before this one.
    template <bool kPlain>
    __device__ __forceinline__ void advance(int slice, int half, uint4& vector) {
        if (half == 0) __syncthreads();
        store(slice + 1, half, vector);
        const int next = slice + 1 + half;
        if (next == T::kSlices && half == 1) {
            key_source_ = thread_state_->next_key;
            store_next_key();
        }
        load<kPlain>(next, 1 - half, vector);
    }

 private:
    // Where a thread's first vector of the next slice is.
    __device__ __forceinline__ static const char* source_of(const RaggedTensor& tensor, const WorkItem& item,
                                                            const Sequence& sequence, int32_t tile, uint32_t key,
                                                            uint32_t vector) {
        const int64_t token = sequence.first_key + static_cast<int64_t>(tile) * kTileKeys + key;
        return reinterpret_cast<const char*>(tensor.data + token * tensor.token_stride +
                                             item.head * tensor.head_stride + 8 * vector);
    }

    __device__ __forceinline__ static constexpr bool is_key_slice(int slice) {
        return slice < T::kKeySlices || slice >= T::kSlices;  // the latter: of the next tile
    }

    // The thread's vector of half a slice: 64 keys of K, or half the keys of V. Halves of V must be loaded in order.
    template <bool kPlain>
    __device__ __forceinline__ void load(int slice, int half, uint4& vector) {
        if (is_key_slice(slice)) {
            const char* source = key_source_ + 64 * (slice % T::kSlices) + half * p_.key_vector_stride_bytes;
            const int first = slice / T::kSlices * kTileKeys + kHalfSliceKeys * half;
            load_live<kPlain>(vector, source, keys_left_ > first);
        } else {
            const int first = (2 * (slice - T::kKeySlices) + half) * T::kHalfSliceValueKeys;
            load_live<kPlain>(vector, value_source_, values_left_ > first);
            value_source_ += p_.value_vector_stride_bytes;
        }
    }

    // In plain tiles every key is live; the condition that is always true keeps the load early (device/load.cuh).
    template <bool kPlain>
    __device__ __forceinline__ void load_live(uint4& vector, const char* source, bool live) const {
        if (!kPlain) vector = make_uint4(0, 0, 0, 0);
        load_16_bytes_over(vector, source, kPlain ? p_.kv_heads > 0 : live, T::kWide);
    }

    __device__ __forceinline__ void store(int slice, int half, const uint4& vector) const {
        if (is_key_slice(slice)) {
            key_store_[stage_of(slice) + 64 * half] = vector;
        } else {
            value_store_[stage_of(slice) + kThreads * half] = vector;
        }
    }

    const PrefillParams& p_;
    ThreadState* thread_state_;
    uint4 *const key_store_, *const value_store_;
    const char *key_source_, *value_source_;
    int32_t keys_left_, values_left_;  // from the tile's first key, less those before the thread's own
};

}  // namespace sm70::prefill
