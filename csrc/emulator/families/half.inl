// Packed half precision. Each half is widened to float, computed so that rounding to half afterwards is the only
// rounding that shows, and narrowed. Sums and products of halves in float round innocuously (24 >= 2 * 11 + 2); a fused
// multiply-add needs the sticky bit of the wider sum.

SM70EMU_INLINE float widen(uint32_t bits) {
    // Shifting the fields and multiplying by 2^112 handles normals and subnormals alike.
    const float magnitude = as_float((bits & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return as_float(as_bits(magnitude) | special | (bits & 0x8000u) << 16);
}

// Round to nearest even, NaN to 0x7fff.
SM70EMU_INLINE uint32_t narrow(float x) {
    const uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    // Adding 1/2 puts the unit of the last place of a subnormal half at the last place of the float.
    const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
    uint32_t r = select(magnitude < 0x38800000u, subnormal, normal);
    r = select(magnitude >= 0x477ff000u, 0x7c00u, r) | sign;
    return select(magnitude > 0x7f800000u, static_cast<uint32_t>(kCanonicalNaN16), r);
}

// Where a packed source's value for the lower (0) or upper (1) half of the result lies, by its .H0_H0/.H1_H1 suffix.
SM70EMU_INLINE int half_shift(const Source& s, int which) {
    return s.half == 2 || (s.half == 0 && which == 1) ? 16 : 0;
}

SM70EMU_INLINE float half_at(const uint32_t* row, const Source& s, int lane, int shift) {
    return widen(((row[lane] & s.keep) ^ s.flip) >> shift & 0xffffu);
}

// A whole row of halves as floats, and back. The machine's own conversions are used where there are any: they do not
// slow down on subnormals.
SM70EMU_INLINE void widen_row(const uint32_t* row, const Source& s, int shift, float* out) {
#ifdef __AVX2__
    for (int lane = 0; lane < kLanes; lane += 8) {
        __m256i word = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row + lane));
        word = _mm256_xor_si256(_mm256_and_si256(word, _mm256_set1_epi32(static_cast<int>(s.keep))),
                                _mm256_set1_epi32(static_cast<int>(s.flip)));
        word = _mm256_and_si256(_mm256_srl_epi32(word, _mm_cvtsi32_si128(shift)), _mm256_set1_epi32(0xffff));
        const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(word, word), 0xd8);
        _mm256_storeu_ps(out + lane, _mm256_cvtph_ps(_mm256_castsi256_si128(packed)));
    }
#else
    each_lane([&](int lane) { out[lane] = half_at(row, s, lane, shift); });
#endif
}

SM70EMU_INLINE void narrow_row(const float* in, uint32_t* out) {
#ifdef __AVX2__
    for (int lane = 0; lane < kLanes; lane += 8) {
        const __m256 x = _mm256_loadu_ps(in + lane);
        const __m256i halves = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + lane),
                            _mm256_blendv_epi8(halves, _mm256_set1_epi32(kCanonicalNaN16), nan));
    }
#else
    each_lane([&](int lane) { out[lane] = narrow(in[lane]); });
#endif
}

SM70EMU_INLINE float flush_half(float x) {
    return __builtin_fabsf(x) < 0x1p-14f ? as_float(as_bits(x) & 0x80000000u) : x;
}

// a*b + c of halves, so that narrowing it to half rounds the exact value once: the product is exact in single
// precision, and the sum is rounded to odd with the help of its exact error.
SM70EMU_INLINE float half_fma(float a, float b, float c) {
    const float product = a * b, sum = product + c;
    const float part = sum - product;
    const float error = (product - (sum - part)) + (c - part);
    const uint32_t bits = as_bits(sum);
    const uint32_t larger =
        static_cast<uint32_t>((error > 0.0f) == (sum > 0.0f));  // the exact value is larger in magnitude
    // The error of a sum that is not finite is NaN, and then neither comparison holds.
    const bool inexact = bool((error > 0.0f) | (error < 0.0f)) & !(bits & 1);
    return as_float(select(inexact, bits + 2 * larger - 1, bits));
}

template <int Packed>  // kind * 4 + mode; kind 0 add, 1 multiply, 2 fused multiply-add
struct HalfArithmetic {
    static constexpr int kind = Packed / 4, mode = Packed % 4;

    static SM70EMU_INLINE void half(const uint32_t* a, const uint32_t* b, const uint32_t* c, const Instruction& in,
                                    int which, uint32_t* result) {
        alignas(64) float x[kLanes], y[kLanes], z[kLanes];
        widen_row(a, in.a, half_shift(in.a, which), x);
        widen_row(b, in.b, half_shift(in.b, which), y);
        if (kind == 2) widen_row(c, in.c, half_shift(in.c, which), z);
        each_lane([&](int l) {
            float p = x[l], q = y[l], r = kind == 2 ? z[l] : 0.0f;
            if (mode & kFtz) p = flush_half(p), q = flush_half(q), r = flush_half(r);
            r = kind == 0 ? p + q : kind == 1 ? p * q : half_fma(p, q, r);
            if (mode & kSaturate) r = select(r > 0.0f, select(r < 1.0f, r, 1.0f), 0.0f);  // NaN and -0 become +0
            x[l] = r;
        });
        narrow_row(x, result);
        if (mode & kFtz) each_lane([&](int l) { result[l] = result[l] & 0x7c00u ? result[l] : result[l] & 0x8000u; });
    }

    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        alignas(64) uint32_t lower[kLanes], upper[kLanes];
        half(a, b, c, in, 0, lower);
        half(a, b, c, in, 1, upper);
        write_lanes(core.destination(in.destination), exec, [&](int l) { return lower[l] | upper[l] << 16; });
    }
};

// HADD2.F32 and HMUL2.F32: the sum or the product of the lower halves as a float, both exact but for a sum that is
// rounded once; the sum with -0 is the conversion of a half.
template <int Product>
void run_half_to_single(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    const int sa = half_shift(in.a, 0), sb = half_shift(in.b, 0);
    const bool saturate = in.mode & kSaturate;
    write_lanes(core.destination(in.destination), exec, [&](int l) {
        const float x = half_at(a, in.a, l, sa), y = half_at(b, in.b, l, sb), r = Product ? x * y : x + y;
        return float_out<0>(saturate ? select(r > 0.0f, select(r < 1.0f, r, 1.0f), 0.0f) : r);
    });
}

// A half, or a single-precision operand, which is cut to half toward zero: how cvt.rz.f16.f32 is compiled.
SM70EMU_INLINE float half_or_single(const uint32_t* row, const Source& s, int lane, int which) {
    if (s.half != 3) return half_at(row, s, lane, half_shift(s, which));
    return widen(double_to_half(float_in(row, s, lane), Rounding::Zero));
}

// HADD2 with such an operand.
void run_hadd2_from_single(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    uint32_t* d = core.destination(in.destination);
    for (int l = 0; l < kLanes; ++l) {
        if (!bit_of(exec, l)) continue;
        uint32_t halves[2];
        for (int which = 0; which < 2; ++which) {
            float r = half_or_single(a, in.a, l, which) + half_or_single(b, in.b, l, which);
            if (in.mode & kSaturate) r = r > 0.0f ? (r < 1.0f ? r : 1.0f) : 0.0f;
            halves[which] = narrow(r);
        }
        d[l] = halves[0] | halves[1] << 16;
    }
}

template <int Kind>
void bind_half_arithmetic(Binder& b) {
    const bool to_float = Kind != 2 && b.take("F32");
    const bool ftz = b.take("FTZ"), saturate = b.take("SAT");
    b.out.destination = b.destination();
    b.out.a = b.half_pair();
    b.out.b = b.half_pair();
    if (Kind == 2) b.out.c = b.half_pair();
    const bool from_single = b.out.a.half == 3 || b.out.b.half == 3 || b.out.c.half == 3;
    if (from_single) {
        if (Kind != 0 || to_float || ftz) b.refuse("single-precision operand");
        b.out.mode = saturate ? kSaturate : 0;
        b.handler(&run_hadd2_from_single);
        return;
    }
    if (to_float) {
        if (ftz) b.refuse("HADD2.F32 or HMUL2.F32 with .FTZ");
        b.out.mode = saturate ? kSaturate : 0;
        b.handler(&run_half_to_single < Kind == 1 >);
        return;
    }
    b.handler(pick<HalfArithmetic, 12>(Kind * 4 + (ftz ? kFtz : 0) + (saturate ? kSaturate : 0)));
}

SM70EMU_INLINE uint32_t compare_halves(Core& core, const Instruction& in, int which) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    const uint32_t accepted = in.width;
    if (in.a.half == 3 || in.b.half == 3) {
        return lanes_where([&](int l) {
            return compare(accepted, half_or_single(a, in.a, l, which), half_or_single(b, in.b, l, which));
        });
    }
    const int sa = half_shift(in.a, which), sb = half_shift(in.b, which);
    return lanes_where([&](int l) { return compare(accepted, half_at(a, in.a, l, sa), half_at(b, in.b, l, sb)); });
}

// Bit 2 of mode: both halves must satisfy the comparison (.H_AND); otherwise each has its own predicate.
void run_hsetp2(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t lower = compare_halves(core, in, 0), upper = compare_halves(core, in, 1),
                   with = core.predicate(in.p0);
    const bool joint = in.mode & 4;
    core.write_predicate(in.predicate0, combine(joint ? lower & upper : lower, with, in.mode & 3), exec);
    core.write_predicate(in.predicate1, combine(joint ? ~(lower & upper) : upper, with, in.mode & 3), exec);
}

// A packed source that may not be a single-precision value.
Source packed_halves(Binder& b) {
    const Source s = b.half_pair();
    if (s.half == 3) b.refuse("single-precision operand");
    return s;
}

void bind_hsetp2(Binder& b) {
    b.out.width = static_cast<uint8_t>(take_float_comparison(b));
    const bool joint = b.take("H_AND");
    b.out.mode = static_cast<uint8_t>(b.require({"AND", "OR", "XOR"}) | (joint ? 4 : 0));
    b.out.predicate0 = b.predicate_destination();
    b.out.predicate1 = b.predicate_destination();
    b.out.a = b.half_pair();
    b.out.b = b.half_pair();
    b.out.p0 = b.predicate_source();
    b.handler(&run_hsetp2);
}

void run_hset2(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t with = core.predicate(in.p0), one = in.immediate;
    const uint32_t lower = combine(compare_halves(core, in, 0), with, in.mode),
                   upper = combine(compare_halves(core, in, 1), with, in.mode);
    write_lanes(core.destination(in.destination), exec,
                [&](int l) { return (bit_of(lower, l) ? one : 0u) | (bit_of(upper, l) ? one << 16 : 0u); });
}

void bind_hset2(Binder& b) {
    b.out.immediate = b.take("BF") ? 0x3c00u : 0xffffu;
    b.out.width = static_cast<uint8_t>(take_float_comparison(b));
    b.out.mode = static_cast<uint8_t>(b.require({"AND", "OR", "XOR"}));
    b.out.destination = b.destination();
    b.out.a = b.half_pair();
    b.out.b = b.half_pair();
    b.out.p0 = b.predicate_source();
    b.handler(&run_hset2);
}

constexpr Opcode kHalfOpcodes[] = {
    {"HADD2", bind_half_arithmetic<0>},
    {"HMUL2", bind_half_arithmetic<1>},
    {"HFMA2", bind_half_arithmetic<2>},
    {"HSETP2", bind_hsetp2},
    {"HSET2", bind_hset2},
};
