// The tensor core step eight lanes (one quad-pair) at a time. Same results as the scalar form, bit for bit.
#include <immintrin.h>

#include "emulator/numeric.h"
#include "emulator/tensor_core.h"

#define SM70EMU_AVX2 __attribute__((target("avx2,fma,f16c"), always_inline)) inline

namespace sm70emu {
namespace {

// Lanes of a quad-pair from a row of 32: 4q..4q+3 and 16+4q..16+4q+3.
SM70EMU_AVX2 __m256i load_quad_pair(const uint32_t* row, int q) {
    const __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 4 * q));
    const __m128i high = _mm_loadu_si128(reinterpret_cast<const __m128i*>(row + 16 + 4 * q));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

SM70EMU_AVX2 void store_quad_pair(uint32_t* row, int q, __m256i value) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 4 * q), _mm256_castsi256_si128(value));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(row + 16 + 4 * q), _mm256_extracti128_si256(value, 1));
}

// Both halves of eight packed words, as floats.
SM70EMU_AVX2 void widen_pair(__m256i words, __m256& low, __m256& high) {
    // Words to 16 halves in order low0 high0 low1 ...; gather lows and highs into 128 bits each.
    const __m256i lows = _mm256_and_si256(words, _mm256_set1_epi32(0xffff)), highs = _mm256_srli_epi32(words, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(lows, highs), 0xd8);
    low = _mm256_cvtph_ps(_mm256_castsi256_si128(packed));
    high = _mm256_cvtph_ps(_mm256_extracti128_si256(packed, 1));
}

// The four halves a lane holds; transposed within each four lanes if the fragment is stored the other way, so that
// element k of lane r is what row (or column) r needs.
SM70EMU_AVX2 void load_fragment(const uint32_t* rows, int q, bool transposed, __m256 out[4]) {
    widen_pair(load_quad_pair(rows, q), out[0], out[1]);
    widen_pair(load_quad_pair(rows + kLanes, q), out[2], out[3]);
    if (!transposed) return;
    const __m256 t0 = _mm256_unpacklo_ps(out[0], out[1]), t1 = _mm256_unpackhi_ps(out[0], out[1]);
    const __m256 t2 = _mm256_unpacklo_ps(out[2], out[3]), t3 = _mm256_unpackhi_ps(out[2], out[3]);
    out[0] = _mm256_shuffle_ps(t0, t2, 0x44);
    out[1] = _mm256_shuffle_ps(t0, t2, 0xee);
    out[2] = _mm256_shuffle_ps(t1, t3, 0x44);
    out[3] = _mm256_shuffle_ps(t1, t3, 0xee);
}

SM70EMU_AVX2 __m256i exponents(__m256 x) {
    return _mm256_and_si256(_mm256_srli_epi32(_mm256_castps_si256(x), 23), _mm256_set1_epi32(0xff));
}

// The result in single precision, rounded toward zero; for a half-precision result rounded to odd instead, so that
// narrowing afterwards rounds the sum itself.
template <bool ForHalf>
SM70EMU_AVX2 __m256 dot(const __m256 a[4], const __m256 b[4], __m256 c) {
    const __m256 zero = _mm256_setzero_ps();
    const __m256i min_half = _mm256_set1_epi32(113), all_ones = _mm256_set1_epi32(255);
    __m256 products[4], ieee = c;
    const __m256i c_exponent = exponents(c);
    const __m256i c_zero = _mm256_castps_si256(_mm256_cmp_ps(c, zero, _CMP_EQ_OQ));
    __m256i largest = _mm256_andnot_si256(c_zero, _mm256_max_epi32(c_exponent, _mm256_set1_epi32(1)));
    __m256i special = _mm256_cmpeq_epi32(c_exponent, all_ones);
    __m256i any_product = _mm256_setzero_si256();
    for (int k = 0; k < 4; ++k) {
        products[k] = _mm256_mul_ps(a[k], b[k]);
        ieee = _mm256_add_ps(ieee, products[k]);
        const __m256i ea = exponents(a[k]), eb = exponents(b[k]);
        special = _mm256_or_si256(special,
                                  _mm256_or_si256(_mm256_cmpeq_epi32(ea, all_ones), _mm256_cmpeq_epi32(eb, all_ones)));
        const __m256i sum = _mm256_sub_epi32(
            _mm256_add_epi32(_mm256_max_epi32(ea, min_half), _mm256_max_epi32(eb, min_half)), _mm256_set1_epi32(127));
        const __m256i nonzero = _mm256_castps_si256(_mm256_cmp_ps(products[k], zero, _CMP_NEQ_UQ));
        any_product = _mm256_or_si256(any_product, nonzero);
        largest = _mm256_max_epi32(largest, _mm256_and_si256(nonzero, sum));
    }
    // Lanes without a product pass the accumulator through; keep their scale in range.
    const __m256i clamped = _mm256_max_epi32(largest, _mm256_set1_epi32(99));
    const __m256 scale = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(277), clamped), 23));
    __m256i sum = _mm256_cvttps_epi32(_mm256_mul_ps(c, scale));
    for (int k = 0; k < 4; ++k) sum = _mm256_add_epi32(sum, _mm256_cvttps_epi32(_mm256_mul_ps(products[k], scale)));

    // Keep 24 bits: the sum has at most four more on the left.
    const __m256i magnitude = _mm256_abs_epi32(sum);
    __m256i excess = _mm256_srli_epi32(magnitude, 24);
    excess = _mm256_or_si256(excess, _mm256_srli_epi32(excess, 1));
    excess = _mm256_or_si256(excess, _mm256_srli_epi32(excess, 2));
    __m256i kept = _mm256_andnot_si256(excess, magnitude);
    if (ForHalf) {
        const __m256i exact = _mm256_cmpeq_epi32(_mm256_and_si256(excess, magnitude), _mm256_setzero_si256());
        kept = _mm256_or_si256(kept, _mm256_andnot_si256(exact, _mm256_add_epi32(excess, _mm256_set1_epi32(1))));
    }
    const __m256 unit = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(clamped, _mm256_set1_epi32(23)), 23));
    __m256 value = _mm256_mul_ps(_mm256_cvtepi32_ps(kept), unit);
    const __m256 sign = _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32(static_cast<int>(0x80000000u))));
    value = _mm256_or_ps(value, sign);

    const __m256 passed = _mm256_castsi256_ps(_mm256_andnot_si256(c_zero, _mm256_castps_si256(c)));
    value = _mm256_blendv_ps(passed, value, _mm256_castsi256_ps(any_product));
    return _mm256_blendv_ps(value, ieee, _mm256_castsi256_ps(special));
}

SM70EMU_AVX2 __m256i canonical_nan(__m256 value, uint32_t bits) {
    const __m256 ordered = _mm256_cmp_ps(value, value, _CMP_ORD_Q);
    return _mm256_castps_si256(
        _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(bits))), value, ordered));
}

__attribute__((target("avx2,fma,f16c"))) void step_single(const HmmaForm& form, const uint32_t* a, const uint32_t* b,
                                                          const uint32_t* c, uint32_t* d) {
    alignas(32) int row_of[8], column_of[2][8];
    for (int i = 0; i < 8; ++i) {
        row_of[i] = step_row(form.step, i);
        for (int e = 0; e < 2; ++e) column_of[e][i] = step_column(form.step, i, e);
    }
    const __m256i rows = _mm256_load_si256(reinterpret_cast<const __m256i*>(row_of));
    for (int q = 0; q < 4; ++q) {
        __m256 fragment_a[4], fragment_b[4], ar[4], bc[4];
        load_fragment(a, q, form.a_column, fragment_a);
        load_fragment(b, q, form.b_row, fragment_b);
        for (int k = 0; k < 4; ++k) ar[k] = _mm256_permutevar8x32_ps(fragment_a[k], rows);
        __m256 half_c[4];
        if (form.c_half) {
            widen_pair(load_quad_pair(c, q), half_c[0], half_c[1]);
            widen_pair(load_quad_pair(c + kLanes, q), half_c[2], half_c[3]);
        }
        __m256i result[2];
        for (int e = 0; e < 2; ++e) {
            const __m256i columns = _mm256_load_si256(reinterpret_cast<const __m256i*>(column_of[e]));
            for (int k = 0; k < 4; ++k) bc[k] = _mm256_permutevar8x32_ps(fragment_b[k], columns);
            __m256 addend;
            if (form.c_half) {
                // Row r's accumulators are in lane r; lanes with i & 2 take columns 2 and 3 of the four.
                const __m256 first = _mm256_permutevar8x32_ps(half_c[e], rows),
                             second = _mm256_permutevar8x32_ps(half_c[2 + e], rows);
                addend = _mm256_blend_ps(first, second, 0xcc);
            } else {
                addend = _mm256_castsi256_ps(load_quad_pair(c + e * kLanes, q));
            }
            result[e] = canonical_nan(dot<false>(ar, bc, addend), kCanonicalNaN32);
        }
        store_quad_pair(d, q, result[0]);
        store_quad_pair(d + kLanes, q, result[1]);
    }
}

__attribute__((target("avx2,fma,f16c"))) void step_half(const HmmaForm& form, const uint32_t* a, const uint32_t* b,
                                                        const uint32_t* c, uint32_t* d) {
    for (int q = 0; q < 4; ++q) {
        __m256 fragment_a[4], fragment_b[4], bc[4], addends[4];
        load_fragment(a, q, form.a_column, fragment_a);
        load_fragment(b, q, form.b_row, fragment_b);
        widen_pair(load_quad_pair(c, q), addends[0], addends[1]);
        widen_pair(load_quad_pair(c + kLanes, q), addends[2], addends[3]);
        __m256i halves[4];
        for (int element = 0; element < 4; ++element) {
            const __m256i column = _mm256_set1_epi32(4 * form.step + element);
            for (int k = 0; k < 4; ++k) bc[k] = _mm256_permutevar8x32_ps(fragment_b[k], column);
            const __m256 value = dot<true>(fragment_a, bc, addends[element]);
            const __m256i narrowed = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
            const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
            halves[element] = _mm256_blendv_epi8(narrowed, _mm256_set1_epi32(kCanonicalNaN16), is_nan);
        }
        store_quad_pair(d, q, _mm256_or_si256(halves[0], _mm256_slli_epi32(halves[1], 16)));
        store_quad_pair(d + kLanes, q, _mm256_or_si256(halves[2], _mm256_slli_epi32(halves[3], 16)));
    }
}

}  // namespace

void hmma_step_avx2(const HmmaForm& form, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,
                    TensorRounding rounding) {
    if (rounding == TensorRounding::Nearest) {
        hmma_step_scalar(form, a, b, c, d, rounding);
    } else if (form.d_half) {
        step_half(form, a, b, c, d);
    } else {
        step_single(form, a, b, c, d);
    }
}

}  // namespace sm70emu
