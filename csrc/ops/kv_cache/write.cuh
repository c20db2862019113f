// write_paged_kv: FP16 K and V of new tokens into pages of E4M3, E5M2 or FP16.
//
// A thread quantises one vector of K and one of V of one token. stored = round(float32(x / scale)): one correctly
// rounded FP32 division, then one rounding to nearest even.
//
//   D256, Hkv 1, E4M3, a vector: 2 x 32 bytes read, 2 x 16 bytes written. Bound: DRAM, if the division stays cheap:
//   the compiler's division uses the XU once an element and a call on its slow side, so it is done here by two
//   Newton steps with a reciprocal shared by all elements, about 16 instructions an element in all.
#pragma once

#include "ops/kv_cache/vector.cuh"

namespace sm70::kv_cache {

// FP16 values divided by one positive scale, each quotient correctly rounded to FP32.
class Divider {
   public:
    __device__ __forceinline__ explicit Divider(float scale)
        : scale_(scale),
          reciprocal_(__frcp_rn(scale)),
          unit_(scale == 1.0f),
          // Within these bounds no quotient, residual or reciprocal of an FP16 value leaves FP32's normal range.
          in_range_(scale >= 0x1p-60f && scale <= 0x1p60f) {}

    __device__ __forceinline__ bool unit() const { return unit_; }

    __device__ __forceinline__ float operator()(float value) const {
        if (unit_) return value;
        if (!in_range_) return __fdiv_rn(value, scale_);
        // Two steps of q += (x - q s) / s. The first leaves q within one unit of the quotient, and then the second is
        // correctly rounded because the reciprocal is (Markstein, IBM J. Res. Dev. 34, 1990).
        const float q0 = __fmul_rn(value, reciprocal_);
        const float q1 = __fmaf_rn(__fmaf_rn(-q0, scale_, value), reciprocal_, q0);
        const float q2 = __fmaf_rn(__fmaf_rn(-q1, scale_, value), reciprocal_, q1);
        // 0 and infinity have a residual of 0 or NaN: q0 is right for them, and keeps the sign of -0.
        return value == 0.0f || fabsf(value) > 65504.0f ? q0 : q2;
    }

   private:
    float scale_, reciprocal_;
    bool unit_, in_range_;
};

template <typename Format, int kWidth>
__device__ __forceinline__ void quantise(const uint32_t* halves, const Divider& divide, uint32_t* stored) {
    using V = Vector<Format, kWidth>;
    constexpr int kBits = 8 * static_cast<int>(sizeof(typename Format::Storage));
    constexpr int kPerWord = 32 / kBits;
    if (kBits == 16 && divide.unit()) {  // a copy, NaN payloads included
#pragma unroll
        for (int i = 0; i < V::kStoredWords; ++i) stored[i] = halves[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < V::kStoredWords; ++i) stored[i] = 0;
#pragma unroll
    for (int i = 0; i < V::kHalfWords; ++i) {
        const float2 value = __half22float2(half2_from_bits(halves[i]));
        const int element = 2 * i;
        stored[element / kPerWord] |= Format::store1(divide(value.x)) << (element % kPerWord * kBits);
        if constexpr (kWidth > 1) {
            stored[element / kPerWord] |= Format::store1(divide(value.y)) << ((element + 1) % kPerWord * kBits);
        }
    }
}

template <typename Format, int kWidth>
__device__ __forceinline__ void write(const WriteParams& p) {
    using V = Vector<Format, kWidth>;
    using Storage = typename Format::Storage;

    const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    if (item >= p.items) return;
    const int64_t token = item / p.vectors_per_token;
    const int64_t slot = p.slot_mapping[token * p.slot_stride];
    if (slot == -1) return;
    if (slot < 0 || slot >= p.slots) __trap();

    const int32_t vector = static_cast<int32_t>(item - token * p.vectors_per_token);
    const int32_t head = vector / p.vectors_per_head;
    const int32_t element = (vector - head * p.vectors_per_head) * kWidth;
    const uint32_t page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.page_tokens);
    const uint32_t token_in_page = static_cast<uint32_t>(slot) - page * static_cast<uint32_t>(p.page_tokens);

    uint32_t k_halves[V::kHalfWords], v_halves[V::kHalfWords];
    load_words<V::kHalfBytes>(static_cast<const uint16_t*>(p.k.data) + token * p.k.token_stride +
                                  head * p.k.head_stride + element,
                              k_halves);
    load_words<V::kHalfBytes>(static_cast<const uint16_t*>(p.v.data) + token * p.v.token_stride +
                                  head * p.v.head_stride + element,
                              v_halves);
    uint32_t k_stored[V::kStoredWords], v_stored[V::kStoredWords];
    quantise<Format, kWidth>(k_halves, Divider(read_scale(p.k_scale)), k_stored);
    quantise<Format, kWidth>(v_halves, Divider(read_scale(p.v_scale)), v_stored);
    store_words<V::kStoredBytes>(static_cast<Storage*>(p.key_cache.data) + page * p.key_cache.outer_stride +
                                     token_in_page * p.key_cache.token_stride + head * p.key_cache.head_stride +
                                     element,
                                 k_stored);
    store_words<V::kStoredBytes>(static_cast<Storage*>(p.value_cache.data) + page * p.value_cache.outer_stride +
                                     token_in_page * p.value_cache.token_stride + head * p.value_cache.head_stride +
                                     element,
                                 v_stored);
}

}  // namespace sm70::kv_cache
