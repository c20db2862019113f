// Special functions (MUFU): computed in double precision and rounded once, so that results are the same on every
// machine. Inputs and results below the normal range are flushed, which the scaling sequences of compilers rely on.

// 2^x for |x| < 1000 by a polynomial on [-1/2, 1/2] of the Taylor series in x ln 2; relative error below 1e-11.
SM70EMU_INLINE double exp2_double(double x) {
    const double shifter = 0x1.8p52;
    const double biased = x + shifter;
    const double n = biased - shifter;
    const double t = (x - n) * 0.69314718055994530942;
    double p = 1.0 / 362880.0;
    p = p * t + 1.0 / 40320.0;
    p = p * t + 1.0 / 5040.0;
    p = p * t + 1.0 / 720.0;
    p = p * t + 1.0 / 120.0;
    p = p * t + 1.0 / 24.0;
    p = p * t + 1.0 / 6.0;
    p = p * t + 0.5;
    p = p * t + 1.0;
    p = p * t + 1.0;
    // The low bits of the biased sum are n in two's complement.
    const uint64_t scale = (as_bits(biased) + 1023) << 52;
    return p * as_double(scale);
}

// log2 of a positive normal float.
SM70EMU_INLINE double log2_double(float x) {
    uint32_t bits = as_bits(x);
    // Mantissa in [sqrt(1/2), sqrt(2)), so that log2 near 1 keeps its relative accuracy.
    const auto exponent = static_cast<int32_t>(bits - 0x3f3504f3u) >> 23;
    bits -= static_cast<uint32_t>(exponent) << 23;
    const double m = as_float(bits);
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;  // ln m = 2 atanh(s), |s| < 0.172
    double p = 1.0 / 17.0;
    p = p * s2 + 1.0 / 15.0;
    p = p * s2 + 1.0 / 13.0;
    p = p * s2 + 1.0 / 11.0;
    p = p * s2 + 1.0 / 9.0;
    p = p * s2 + 1.0 / 7.0;
    p = p * s2 + 1.0 / 5.0;
    p = p * s2 + 1.0 / 3.0;
    p = p * s2 + 1.0;
    return static_cast<double>(exponent) + 2.0 * 1.4426950408889634074 * s * p;
}

// sin(2 pi t) and cos(2 pi t), |t| <= 1/8, by their series.
SM70EMU_INLINE double sin_turn(double t) {
    const double x = t * 6.28318530717958647693, x2 = x * x;
    double p = 1.0 / 6227020800.0;
    p = p * x2 - 1.0 / 39916800.0;
    p = p * x2 + 1.0 / 362880.0;
    p = p * x2 - 1.0 / 5040.0;
    p = p * x2 + 1.0 / 120.0;
    p = p * x2 - 1.0 / 6.0;
    p = p * x2 + 1.0;
    return p * x;
}
SM70EMU_INLINE double cos_turn(double t) {
    const double x = t * 6.28318530717958647693, x2 = x * x;
    double p = -1.0 / 87178291200.0;
    p = p * x2 + 1.0 / 479001600.0;
    p = p * x2 - 1.0 / 3628800.0;
    p = p * x2 + 1.0 / 40320.0;
    p = p * x2 - 1.0 / 720.0;
    p = p * x2 + 1.0 / 24.0;
    p = p * x2 - 0.5;
    return p * x2 + 1.0;
}

// Sine (or cosine) of 2 pi x.
SM70EMU_INLINE float turn_function(float x, uint32_t quarter) {
    const bool inside = __builtin_fabsf(x) < 0x1p24f;  // beyond it lie multiples of the period, infinity and NaN
    const double turns = static_cast<double>(select(inside, x, 0.0f));
    const double shifter = 0x1.8p52;
    const double quarters = turns * 4.0 + shifter;
    const auto quadrant = static_cast<uint32_t>(as_bits(quarters)) + quarter;
    const double rest = turns - (quarters - shifter) * 0.25;
    const double value = select((quadrant & 1) != 0, cos_turn(rest), sin_turn(rest));
    const float signed_value = as_float(as_bits(static_cast<float>(value)) ^ (quadrant & 2) << 30);
    const float outside = (x - x) + (quarter ? 1.0f : 0.0f);
    return select(inside, signed_value, outside);
}

enum Special : int { kCos, kSin, kEx2, kLg2, kRcp, kRsq, kSqrt, kSpecials };

template <int Function>
SM70EMU_INLINE float special_function(float x) {
    const float magnitude = __builtin_fabsf(x);
    if constexpr (Function == kCos) return turn_function(x, 1);
    if constexpr (Function == kSin) return turn_function(x, 0);
    if constexpr (Function == kEx2) {
        // Past 200 either way the result is infinity or zero; NaN goes through the last selection.
        const float clamped = select(magnitude <= 200.0f, x, as_float((as_bits(x) & 0x80000000u) | as_bits(200.0f)));
        return select(x == x, flush(static_cast<float>(exp2_double(clamped))), x);
    }
    if constexpr (Function == kLg2) {
        const float infinity = __builtin_inff();
        float r = select(magnitude == infinity, x, static_cast<float>(log2_double(x)));
        r = select(x < 0.0f, as_float(kCanonicalNaN32), r);
        r = select(x == 0.0f, -infinity, r);
        return select(x == x, r, x);
    }
    if constexpr (Function == kRcp) return flush(static_cast<float>(1.0 / static_cast<double>(x)));
    if constexpr (Function == kRsq || Function == kSqrt) {
        const double root = __builtin_sqrt(static_cast<double>(magnitude));
        const float r = static_cast<float>(Function == kRsq ? 1.0 / root : root);
        return select(x < 0.0f, as_float(kCanonicalNaN32), as_float(as_bits(r) | (as_bits(x) & 0x80000000u)));
    }
}

template <int Function>
struct Mufu {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t* a = core.row(in.a);
        write_lanes(core.destination(in.destination), exec,
                    [&](int l) { return float_out<0>(special_function<Function>(flush(float_in(a, in.a, l)))); });
    }
};

// Upper word of 1/x or 1/sqrt(x) for a double whose upper word is given: the seed of double-precision division.
template <int SquareRoot>
struct Mufu64 {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t* a = core.row(in.a);
        uint32_t* d = core.destination(in.destination);
        for (int l = 0; l < kLanes; ++l) {
            if (!bit_of(exec, l)) continue;
            double x = as_double(static_cast<uint64_t>((a[l] & in.a.keep) ^ in.a.flip) << 32);
            if (__builtin_fabs(x) < 0x1p-1022) x = x * 0.0;
            double r = SquareRoot ? 1.0 / __builtin_sqrt(x) : 1.0 / x;
            if (__builtin_fabs(r) < 0x1p-1022) r = r * 0.0;
            d[l] = r == r ? static_cast<uint32_t>(as_bits(r) >> 32) : 0x7fffffffu;
        }
    }
};

void bind_mufu(Binder& b) {
    const int wide = b.choose({"RCP64H", "RSQ64H"});
    if (wide >= 0) {
        b.out.destination = b.destination();
        b.out.a = b.floating();
        b.handler(pick<Mufu64, 2>(wide));
        return;
    }
    const int function = b.require({"COS", "SIN", "EX2", "LG2", "RCP", "RSQ", "SQRT"});
    b.out.destination = b.destination();
    b.out.a = b.floating();
    b.handler(pick<Mufu, kSpecials>(function));
}

constexpr Opcode kSpecialOpcodes[] = {{"MUFU", bind_mufu}};
