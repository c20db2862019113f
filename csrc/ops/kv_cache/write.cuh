// write_paged_kv: FP16 K and V of new tokens into pages of E4M3, E5M2 or FP16.
//
// stored = round(float32(x / scale)): one correctly rounded FP32 division, then one rounding to nearest even. A thread
// keeps its place in the token, one vector of K and the same one of V, and goes through kPasses tokens, so that it
// computes addresses and reciprocals once.
//
//   D256, Hkv 1, E4M3, a thread and token: 2 x 16 bytes read, 2 x 8 bytes written. Bound: DRAM, as long as an element
//   costs few instructions: 6 with unit scale, 11 or 14 with another. The compiler's division alone would take an XU
//   instruction and a branch per element. 32 registers keep 8 blocks per SM; 40 registers and 6 blocks were 10 %
//   slower.
#pragma once

#include "ops/kv_cache/vector.cuh"

namespace sm70::kv_cache {

// Three ways to divide FP16 values by a scale. What is stored is in each case what a correctly rounded FP32 quotient
// rounds to. The sign of a zero may get lost, and infinity may give NaN.
struct UnitScale {
    static constexpr bool kUnit = true;
    __device__ __forceinline__ explicit UnitScale(const WriteScale&) {}
    __device__ __forceinline__ float divide(float value) const { return value; }
    __device__ __forceinline__ bool invalid() const { return false; }
};

class SplitScale {
 public:
    static constexpr bool kUnit = false;
    __device__ __forceinline__ explicit SplitScale(const WriteScale& scale) : high_(scale.high), low_(scale.low) {}
    __device__ __forceinline__ float divide(float value) const {
        return __fmaf_rn(value, high_, __fmul_rn(value, low_));
    }
    __device__ __forceinline__ bool invalid() const { return false; }

 private:
    float high_, low_;
};

class AnyScale {
 public:
    static constexpr bool kUnit = false;
    __device__ __forceinline__ explicit AnyScale(const WriteScale& scale)
        : scale_(scale.value), reciprocal_(scale.reciprocal) {}

    // Two steps of q += (x - q s) / s. The first leaves q within one unit of the quotient, and then the second is
    // correctly rounded because the reciprocal is (Markstein, IBM J. Res. Dev. 34, 1990).
    __device__ __forceinline__ float divide(float value) const {
        const float q0 = __fmul_rn(value, reciprocal_);
        const float q1 = __fmaf_rn(__fmaf_rn(-q0, scale_, value), reciprocal_, q0);
        return __fmaf_rn(__fmaf_rn(-q1, scale_, value), reciprocal_, q1);
    }
    __device__ __forceinline__ bool invalid() const { return scale_ != scale_; }  // NaN for a bad device scale

 private:
    float scale_, reciprocal_;
};

// The scale in use: the host's as it came, or the device's, prepared the same way.
__device__ __forceinline__ WriteScale resolve(const WriteScale& host, const float* device) {
    if (device == nullptr) return host;
    const float value = *device;
    if (!is_scale(value)) return {quiet_nan(), 0.0f, 0.0f, 0.0f};
    const float clamped = clamp_scale(value);
    return {clamped, __frcp_rn(clamped), 0.0f, 0.0f};
}

// Whether any half of a vector has magnitude bits of at least kLimit.
template <uint32_t kLimit, int kWords>
__device__ __forceinline__ bool any_reaches(const uint32_t (&halves)[kWords]) {
    uint32_t carries = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) carries |= (halves[i] & 0x7fff7fffu) + (0x8000u - kLimit) * 0x00010001u;
    return (carries & 0x80008000u) != 0;
}

// Whether a vector holds an infinity or NaN: 0 x those is NaN, and stays it. Cheaper than any_reaches().
template <int kWords>
__device__ __forceinline__ bool any_not_finite(const uint32_t (&halves)[kWords]) {
    const __half2 zero = __float2half2_rn(0.0f);
    __half2 sum = zero;
#pragma unroll
    for (int i = 0; i < kWords; ++i) sum = __hfma2(half2_from_bits(halves[i]), zero, sum);
    return !__hbeq2(sum, sum);
}

constexpr uint32_t kInfinity = 0x7c00;  // as magnitude bits of a half
constexpr uint32_t kFirstNan = 0x7c01;

template <typename Format, int kWidth, typename Divider>
__device__ __forceinline__ void quantise_fp8(const uint32_t (&halves)[Vector<Format, kWidth>::kHalfWords],
                                             const Divider& divider,
                                             uint32_t (&stored)[Vector<Format, kWidth>::kStoredWords]) {
    using V = Vector<Format, kWidth>;
    const bool packed = Divider::kUnit && !any_reaches<Format::kPackedLimit>(halves);
#pragma unroll
    for (int i = 0; i < V::kStoredWords; ++i) {
        const uint32_t low = halves[2 * i];
        const uint32_t high = kWidth > 1 ? halves[2 * i + 1] : 0;
        uint32_t magnitudes;
        if (packed) {
            magnitudes = encode4_packed<Format>(low, high);
        } else {
            const float2 first = __half22float2(half2_from_bits(low));
            const float2 second = __half22float2(half2_from_bits(high));
            // Infinity becomes NaN or stays, and is encoded as the format's largest either way.
            const float quotients[4] = {divider.divide(first.x), divider.divide(first.y), divider.divide(second.x),
                                        divider.divide(second.y)};
            magnitudes = encode4<Format>(quotients);
        }
        stored[i] = magnitudes | sign_bits(low, high);
    }
    if (packed || !(any_not_finite(halves) || divider.invalid())) return;
#pragma unroll
    for (int element = 0; element < kWidth; ++element) {
        const uint32_t half = halves[element / 2] >> (element % 2 * 16);
        if ((half & 0x7fffu) < kFirstNan && !divider.invalid()) continue;
        const int shift = element % 4 * 8;
        stored[element / 4] &= ~(0x7fu << shift);
        stored[element / 4] |= Format::kNan << shift;
    }
}

template <int kWidth, typename Divider>
__device__ __forceinline__ void quantise_fp16(const uint32_t (&halves)[Vector<Fp16, kWidth>::kHalfWords],
                                              const Divider& divider,
                                              uint32_t (&stored)[Vector<Fp16, kWidth>::kStoredWords]) {
    using V = Vector<Fp16, kWidth>;
#pragma unroll
    for (int i = 0; i < V::kStoredWords; ++i) stored[i] = halves[i];
    if constexpr (!Divider::kUnit) {
#pragma unroll
        for (int i = 0; i < V::kStoredWords; ++i) {
            const float2 value = __half22float2(half2_from_bits(halves[i]));
            const __half2 quotients = __floats2half2_rn(divider.divide(value.x), divider.divide(value.y));
            stored[i] = (half2_bits(quotients) & 0x7fff7fffu) | (halves[i] & 0x80008000u);
        }
        if (!any_not_finite(halves) && !divider.invalid()) return;
#pragma unroll
        for (int element = 0; element < kWidth; ++element) {  // infinity and NaN stay what they are
            const int shift = element % 2 * 16;
            const uint32_t half = (halves[element / 2] >> shift) & 0x7fffu;
            if (half < kInfinity && !divider.invalid()) continue;
            stored[element / 2] &= ~(0x7fffu << shift);
            stored[element / 2] |= (divider.invalid() ? 0x7fffu : half) << shift;
        }
    }
}

// A thread's vector of K or of V: everything about it that does not depend on the token.
template <typename Format, int kWidth, typename Divider>
class ThreadVector {
    using V = Vector<Format, kWidth>;
    using Storage = typename Format::Storage;

 public:
    __device__ __forceinline__ ThreadVector(const TokenTensor& source, const TokenTensor& cache,
                                            const WriteScale& scale, uint32_t head, uint32_t element)
        : source_(static_cast<const uint16_t*>(source.data) + head * source.head_stride + element),
          source_stride_(source.token_stride),
          cache_(static_cast<Storage*>(cache.data) + head * cache.head_stride + element),
          page_stride_(cache.outer_stride),
          token_stride_(cache.token_stride),
          divider_(scale) {}

    __device__ __forceinline__ void load(uint32_t token, uint32_t (&halves)[V::kHalfWords]) const {
        load_words<V::kHalfBytes>(source_ + token * source_stride_, halves);
    }

    __device__ __forceinline__ void store(uint32_t page, uint32_t token_in_page,
                                          const uint32_t (&halves)[V::kHalfWords]) const {
        uint32_t stored[V::kStoredWords];
        if constexpr (sizeof(Storage) == 1) {
            quantise_fp8<Format, kWidth>(halves, divider_, stored);
        } else {
            quantise_fp16<kWidth>(halves, divider_, stored);
        }
        store_words<V::kStoredBytes>(cache_ + page * page_stride_ + token_in_page * token_stride_, stored);
    }

 private:
    const uint16_t* source_;
    int64_t source_stride_;
    Storage* cache_;
    int64_t page_stride_, token_stride_;
    Divider divider_;
};

template <typename Format, int kWidth, typename Divider>
__device__ __forceinline__ void write_tokens(const WriteParams& p, const WriteScale& k_scale,
                                             const WriteScale& v_scale) {
    constexpr int kHalfWords = Vector<Format, kWidth>::kHalfWords;
    // Neighbouring threads take neighbouring vectors of a token and, if a token has few, of the next tokens.
    const uint32_t first_token = p.lanes_per_token.divide(threadIdx.x);
    const uint32_t first_vector = p.lanes_per_token.remainder(threadIdx.x, first_token);
    if (first_token >= p.tokens_per_pass) return;
    const uint32_t begin = blockIdx.x * (p.tokens_per_pass * kPasses) + first_token;
    for (uint32_t vector = first_vector; vector < p.vectors_per_token; vector += p.lanes_per_token.divisor) {
        const uint32_t head = p.vectors_per_head.divide(vector);
        const uint32_t element = p.vectors_per_head.remainder(vector, head) * kWidth;
        const ThreadVector<Format, kWidth, Divider> k(p.k, p.key_cache, k_scale, head, element);
        const ThreadVector<Format, kWidth, Divider> v(p.v, p.value_cache, v_scale, head, element);

#pragma unroll 1
        for (uint32_t pass = 0; pass < kPasses; ++pass) {
            const uint32_t token = begin + pass * p.tokens_per_pass;
            if (token >= p.tokens) break;
            // The vectors are loaded together with the slot, not after it, so that the latencies overlap. Those of a
            // skipped token are valid memory too.
            uint32_t k_halves[kHalfWords], v_halves[kHalfWords];
            const int64_t slot = p.slot_mapping[token * p.slot_stride];
            k.load(token, k_halves);
            v.load(token, v_halves);
            if (slot == -1) continue;
            if (slot < 0 || slot >= p.slots) __trap();
            const uint32_t page = p.page_tokens.divide(static_cast<uint32_t>(slot));
            const uint32_t token_in_page = p.page_tokens.remainder(static_cast<uint32_t>(slot), page);
            k.store(page, token_in_page, k_halves);
            v.store(page, token_in_page, v_halves);
        }
    }
}

template <typename Format, int kWidth>
__device__ __forceinline__ void write(const WriteParams& p) {
    const bool on_host = p.k_device_scale == nullptr && p.v_device_scale == nullptr;
    if (on_host && p.k_scale.value == 1.0f && p.v_scale.value == 1.0f) {
        write_tokens<Format, kWidth, UnitScale>(p, p.k_scale, p.v_scale);
    } else if (on_host && p.k_scale.high != 0.0f && p.v_scale.high != 0.0f) {
        write_tokens<Format, kWidth, SplitScale>(p, p.k_scale, p.v_scale);
    } else {
        write_tokens<Format, kWidth, AnyScale>(p, resolve(p.k_scale, p.k_device_scale),
                                               resolve(p.v_scale, p.v_device_scale));
    }
}

}  // namespace sm70::kv_cache
