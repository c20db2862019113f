// write_paged_kv: FP16 K and V of new tokens into pages of E4M3, E5M2 or FP16.
//
// stored = round(float32(x / scale)): one correctly rounded FP32 division, then one rounding to nearest even. A thread
// keeps its place in the token, one vector of K and the same of V, and goes through kPasses tokens, so that addresses
// and reciprocals are paid for once.
//
//   D256, Hkv 1, E4M3, a thread and token: 2 x 16 bytes read, 2 x 8 bytes written. Bound: DRAM, as long as an element
//   costs few instructions: 9 with unit scale, 14 with another. The compiler's own division takes a trip to the XU and
//   a branch an element.
#pragma once

#include "ops/kv_cache/vector.cuh"

namespace sm70::kv_cache {

constexpr uint32_t kTokensInFlight = 2;
static_assert(kPasses % kTokensInFlight == 0);

// Finite FP16 values divided by one positive scale, each quotient correctly rounded to FP32. The sign of a zero may get
// lost, and an infinite or NaN value gives NaN or infinity: the caller treats signs and such values apart.
class Divider {
   public:
    __device__ __forceinline__ explicit Divider(float scale)
        : scale_(scale),
          reciprocal_(__frcp_rn(scale)),
          unit_(scale == 1.0f),
          // Within these bounds no quotient, residual or reciprocal of an FP16 value leaves FP32's normal range.
          in_range_(scale >= 0x1p-60f && scale <= 0x1p60f) {}

    __device__ __forceinline__ bool unit() const { return unit_; }
    __device__ __forceinline__ bool invalid() const { return scale_ != scale_; }  // a bad device scale: read_scale()

    __device__ __forceinline__ float operator()(float value) const {
        if (unit_) return value;
        if (!in_range_) return __fdiv_rn(value, scale_);
        // Two steps of q += (x - q s) / s. The first leaves q within one unit of the quotient, and then the second is
        // correctly rounded because the reciprocal is (Markstein, IBM J. Res. Dev. 34, 1990).
        const float q0 = __fmul_rn(value, reciprocal_);
        const float q1 = __fmaf_rn(__fmaf_rn(-q0, scale_, value), reciprocal_, q0);
        return __fmaf_rn(__fmaf_rn(-q1, scale_, value), reciprocal_, q1);
    }

   private:
    float scale_, reciprocal_;
    bool unit_, in_range_;
};

// Whether a vector holds an infinity or NaN: 0 x those is NaN, and stays it.
template <int kWords>
__device__ __forceinline__ bool any_not_finite(const uint32_t (&halves)[kWords]) {
    __half2 sum = __float2half2_rn(0.0f);
#pragma unroll
    for (int i = 0; i < kWords; ++i) sum = __hfma2(half2_from_bits(halves[i]), __float2half2_rn(0.0f), sum);
    return !__hbeq2(sum, sum);
}

template <typename Format, int kWidth>
__device__ __forceinline__ void quantise(const uint32_t (&halves)[Vector<Format, kWidth>::kHalfWords],
                                         const Divider& divide,
                                         uint32_t (&stored)[Vector<Format, kWidth>::kStoredWords]) {
    using V = Vector<Format, kWidth>;
    constexpr bool kFp8 = sizeof(typename Format::Storage) == 1;
    if constexpr (kFp8) {
#pragma unroll
        for (int i = 0; i < V::kStoredWords; ++i) {
            const uint32_t low = halves[2 * i];
            const uint32_t high = kWidth > 1 ? halves[2 * i + 1] : 0;
            const float2 first = __half22float2(half2_from_bits(low));
            const float2 second = __half22float2(half2_from_bits(high));
            const float quotients[4] = {divide(first.x), divide(first.y), divide(second.x), divide(second.y)};
            stored[i] = store4<Format>(quotients, low, high);
        }
    } else {
#pragma unroll
        for (int i = 0; i < V::kStoredWords; ++i) {
            const float2 value = __half22float2(half2_from_bits(halves[i]));
            const uint32_t quotients = half2_bits(__floats2half2_rn(divide(value.x), divide(value.y)));
            stored[i] = divide.unit() ? halves[i] : (quotients & 0x7fff7fffu) | (halves[i] & 0x80008000u);
        }
    }
    if (!any_not_finite(halves) && !divide.invalid()) return;
    // Infinity came out right for FP8: the division turned it into NaN, and the encoder takes NaN for its largest
    // value. NaN did not. In FP16 both stay what they were.
#pragma unroll
    for (int element = 0; element < kWidth; ++element) {
        const uint32_t half = (halves[element / 2] >> (element % 2 * 16)) & 0xffffu;
        if constexpr (kFp8) {
            if ((half & 0x7fffu) <= 0x7c00u && !divide.invalid()) continue;
            const int shift = element % 4 * 8;
            stored[element / 4] &= ~(0xffu << shift);
            stored[element / 4] |= (Format::kNan | ((half >> 8) & 0x80u)) << shift;
        } else {
            if ((half & 0x7c00u) != 0x7c00u && !divide.invalid()) continue;
            const int shift = element % 2 * 16;
            stored[element / 2] &= ~(0xffffu << shift);
            stored[element / 2] |= (divide.invalid() ? 0x7fffu : half) << shift;
        }
    }
}

// One tensor pair, K or V, as a thread sees it: everything about its vector that does not depend on the token.
template <typename Format, int kWidth>
class Lane {
    using V = Vector<Format, kWidth>;
    using Storage = typename Format::Storage;

   public:
    __device__ __forceinline__ Lane(const TokenTensor& source, const TokenTensor& cache, const Scale& scale,
                                    uint32_t head, uint32_t element)
        : source_(static_cast<const uint16_t*>(source.data) + head * source.head_stride + element),
          source_stride_(source.token_stride),
          cache_(static_cast<Storage*>(cache.data) + head * cache.head_stride + element),
          page_stride_(cache.outer_stride),
          token_stride_(cache.token_stride),
          divide_(read_scale(scale)) {}

    __device__ __forceinline__ void load(uint32_t token, uint32_t (&halves)[V::kHalfWords]) const {
        load_words<V::kHalfBytes>(source_ + token * source_stride_, halves);
    }

    __device__ __forceinline__ void store(uint32_t page, uint32_t token_in_page,
                                          const uint32_t (&halves)[V::kHalfWords]) const {
        uint32_t stored[V::kStoredWords];
        quantise<Format, kWidth>(halves, divide_, stored);
        store_words<V::kStoredBytes>(cache_ + page * page_stride_ + token_in_page * token_stride_, stored);
    }

   private:
    const uint16_t* source_;
    int64_t source_stride_;
    Storage* cache_;
    int64_t page_stride_, token_stride_;
    Divider divide_;
};

template <typename Format, int kWidth>
__device__ __forceinline__ void write(const WriteParams& p) {
    using V = Vector<Format, kWidth>;
    // Threads stand side by side along a token's vectors and, where a token has few, along tokens.
    const uint32_t first_token = p.lanes_per_token.divide(threadIdx.x);
    const uint32_t first_vector = p.lanes_per_token.remainder(threadIdx.x, first_token);
    if (first_token >= p.tokens_per_pass) return;
    const uint32_t begin = blockIdx.x * (p.tokens_per_pass * kPasses) + first_token;
    for (uint32_t vector = first_vector; vector < p.vectors_per_token; vector += p.lanes_per_token.divisor) {
        const uint32_t head = p.vectors_per_head.divide(vector);
        const uint32_t element = p.vectors_per_head.remainder(vector, head) * kWidth;
        const Lane<Format, kWidth> k(p.k, p.key_cache, p.k_scale, head, element);
        const Lane<Format, kWidth> v(p.v, p.value_cache, p.v_scale, head, element);
        // Two tokens at a time: four loads in flight before the first is waited for.
        for (uint32_t pass = 0; pass < kPasses; pass += kTokensInFlight) {
            int64_t slot[kTokensInFlight];
            uint32_t k_halves[kTokensInFlight][V::kHalfWords], v_halves[kTokensInFlight][V::kHalfWords];
#pragma unroll
            for (uint32_t i = 0; i < kTokensInFlight; ++i) {
                const uint32_t token = begin + (pass + i) * p.tokens_per_pass;
                slot[i] = token < p.tokens ? p.slot_mapping[token * p.slot_stride] : -1;
                if (slot[i] == -1) continue;
                if (slot[i] < 0 || slot[i] >= p.slots) __trap();
                k.load(token, k_halves[i]);
                v.load(token, v_halves[i]);
            }
#pragma unroll
            for (uint32_t i = 0; i < kTokensInFlight; ++i) {
                if (slot[i] == -1) continue;
                const uint32_t page = p.page_tokens.divide(static_cast<uint32_t>(slot[i]));
                const uint32_t token_in_page = p.page_tokens.remainder(static_cast<uint32_t>(slot[i]), page);
                k.store(page, token_in_page, k_halves[i]);
                v.store(page, token_in_page, v_halves[i]);
            }
        }
    }
}

}  // namespace sm70::kv_cache
