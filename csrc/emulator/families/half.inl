// Packed half precision. Each half is widened to float, computed so that rounding to half afterwards is the only
// rounding that shows, and narrowed. Sums and products of halves in float round innocuously (24 >= 2 * 11 + 2); a fused
// multiply-add needs the sticky bit of the wider sum.

SM70EMU_INLINE float widen(uint32_t bits) {
    // Shifting the fields and multiplying by 2^112 handles normals and subnormals alike.
    const float magnitude = as_float((bits & 0x7fffu) << 13) * 0x1p112f;
    const uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
    return as_float(as_bits(magnitude) | special | (bits & 0x8000u) << 16);
}

/// Round to nearest even, NaN to 0x7fff.
SM70EMU_INLINE uint32_t narrow(float x) {
    const uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    // Adding 1/2 puts the unit of the last place of a subnormal half at the last place of the float.
    const uint32_t subnormal = as_bits(as_float(magnitude) + 0.5f) - as_bits(0.5f);
    uint32_t r = magnitude < 0x38800000u ? subnormal : normal;
    r = magnitude >= 0x477ff000u ? 0x7c00u : r;
    r = magnitude > 0x7f800000u ? 0x7fffu : r | sign;
    return r;
}

/// Halves of a packed source, picked by its .H0_H0/.H1_H1 suffix, or a single-precision value for both.
SM70EMU_INLINE float half_arg(const uint32_t* row, const Source& s, int lane, int which) {
    const uint32_t word = (row[lane] & s.keep) ^ s.flip;
    if (s.half == 3) return as_float(word);
    const bool upper = s.half == 2 || (s.half == 0 && which == 1);
    return widen(upper ? word >> 16 : word & 0xffffu);
}

SM70EMU_INLINE float flush_half(float x) { return __builtin_fabsf(x) < 0x1p-14f ? as_float(as_bits(x) & 0x80000000u) : x; }

/// a*b + c, so that narrowing it to half rounds the exact value once.
SM70EMU_INLINE float half_fma(float a, float b, float c) {
    const double product = double(a) * double(b);
    const double sum = product + double(c);
    const double part = sum - product;
    const double error = (product - (sum - part)) + (double(c) - part);
    // Round to odd, first to double, then to float.
    uint64_t bits = as_bits(sum);
    const bool finite = (bits & 0x7ff0000000000000ull) != 0x7ff0000000000000ull;
    if (finite && error != 0 && !(bits & 1)) bits = (error > 0) == (sum > 0) ? bits + 1 : bits - 1;
    const double odd = as_double(bits);
    float r = float(odd);
    if (finite && double(r) != odd && !(as_bits(r) & 1)) {
        // r was rounded away from or toward zero to an even neighbour; the odd one lies on the side of the exact value.
        const bool away = __builtin_fabs(double(r)) < __builtin_fabs(odd);
        r = as_float(away ? as_bits(r) + 1 : as_bits(r) - 1);
    }
    return r;
}

template <int Mode>
SM70EMU_INLINE uint32_t half_out(float r) {
    if (Mode & kSaturate) {
        r = r > 0.0f ? r : 0.0f;
        r = r < 1.0f ? r : 1.0f;
    }
    uint32_t bits = narrow(r);
    if (Mode & kFtz) bits = bits & 0x7c00u ? bits : bits & 0x8000u;
    return bits;
}

template <int Mode>
SM70EMU_INLINE float half_arg_mode(const uint32_t* row, const Source& s, int lane, int which) {
    const float x = half_arg(row, s, lane, which);
    return Mode & kFtz ? flush_half(x) : x;
}

template <int Kind, int Mode>  // 0 add, 1 multiply, 2 fused multiply-add
SM70EMU_INLINE float half_operation(const uint32_t* a, const uint32_t* b, const uint32_t* c, const Instruction& in, int l, int which) {
    const float x = half_arg_mode<Mode>(a, in.a, l, which), y = half_arg_mode<Mode>(b, in.b, l, which);
    if (Kind == 0) return x + y;
    if (Kind == 1) return x * y;
    return half_fma(x, y, half_arg_mode<Mode>(c, in.c, l, which));
}

template <int Packed>  // kind * 4 + mode
struct HalfArithmetic {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr int kind = Packed / 4, mode = Packed % 4;
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            return half_out<mode>(half_operation<kind, mode>(a, b, c, in, l, 0)) |
                   half_out<mode>(half_operation<kind, mode>(a, b, c, in, l, 1)) << 16;
        });
    }
};

/// HADD2.F32: the sum of the lower halves as a float; with -0 it is the conversion of a half.
void run_hadd2_f32(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    write_lanes(core.destination(in.destination), exec,
                [&](int l) { return float_out<0>(half_arg(a, in.a, l, 0) + half_arg(b, in.b, l, 0)); });
}

template <int Kind>
void bind_half_arithmetic(Binder& b) {
    const bool to_float = Kind == 0 && b.take("F32");
    const bool ftz = b.take("FTZ"), saturate = b.take("SAT");
    b.out.destination = b.destination();
    b.out.a = b.half_pair();
    b.out.b = b.half_pair();
    if (Kind == 2) b.out.c = b.half_pair();
    if (to_float) {
        if (ftz || saturate) b.refuse("HADD2.F32 with .FTZ or .SAT");
        b.handler(&run_hadd2_f32);
        return;
    }
    b.handler(pick<HalfArithmetic, 12>(Kind * 4 + (ftz ? kFtz : 0) + (saturate ? kSaturate : 0)));
}

SM70EMU_INLINE uint32_t compare_halves(Core& core, const Instruction& in, int which) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    const uint32_t accepted = in.width;
    return lanes_where([&](int l) { return compare(accepted, half_arg(a, in.a, l, which), half_arg(b, in.b, l, which)); });
}

/// Bit 2 of mode: both halves must satisfy the comparison (.H_AND); otherwise each has its own predicate.
void run_hsetp2(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t lower = compare_halves(core, in, 0), upper = compare_halves(core, in, 1), with = core.predicate(in.p0);
    const bool joint = in.mode & 4;
    core.write_predicate(in.predicate0, combine(joint ? lower & upper : lower, with, in.mode & 3), exec);
    core.write_predicate(in.predicate1, combine(joint ? ~(lower & upper) : upper, with, in.mode & 3), exec);
}

void bind_hsetp2(Binder& b) {
    b.out.width = uint8_t(take_float_comparison(b));
    const bool joint = b.take("H_AND");
    b.out.mode = uint8_t(b.require({"AND", "OR", "XOR"}) | (joint ? 4 : 0));
    b.out.predicate0 = b.predicate_destination();
    b.out.predicate1 = b.predicate_destination();
    b.out.a = b.half_pair();
    b.out.b = b.half_pair();
    b.out.p0 = b.predicate_source();
    b.handler(&run_hsetp2);
}

void run_hset2(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t with = core.predicate(in.p0), one = in.immediate;
    const uint32_t lower = combine(compare_halves(core, in, 0), with, in.mode), upper = combine(compare_halves(core, in, 1), with, in.mode);
    write_lanes(core.destination(in.destination), exec,
                [&](int l) { return (bit_of(lower, l) ? one : 0u) | (bit_of(upper, l) ? one << 16 : 0u); });
}

void bind_hset2(Binder& b) {
    b.out.immediate = b.take("BF") ? 0x3c00u : 0xffffu;
    b.out.width = uint8_t(take_float_comparison(b));
    b.out.mode = uint8_t(b.require({"AND", "OR", "XOR"}));
    b.out.destination = b.destination();
    b.out.a = b.half_pair();
    b.out.b = b.half_pair();
    b.out.p0 = b.predicate_source();
    b.handler(&run_hset2);
}

constexpr Opcode kHalfOpcodes[] = {
    {"HADD2", bind_half_arithmetic<0>}, {"HMUL2", bind_half_arithmetic<1>}, {"HFMA2", bind_half_arithmetic<2>},
    {"HSETP2", bind_hsetp2}, {"HSET2", bind_hset2},
};
