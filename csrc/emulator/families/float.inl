// Single precision: arithmetic, comparison, selection.

enum FloatMode : int { kFtz = 1, kSaturate = 2 };

SM70EMU_INLINE float flush(float x) {
    const uint32_t bits = as_bits(x);
    return as_float(bits & 0x7f800000u ? bits : bits & 0x80000000u);
}

// What every arithmetic result goes through: flush, saturation, the canonical NaN.
template <int Mode>
SM70EMU_INLINE uint32_t float_out(float x) {
    if (Mode & kFtz) x = flush(x);
    if (Mode & kSaturate) {
        x = x > 0.0f ? x : 0.0f;  // NaN and -0 become +0
        x = x < 1.0f ? x : 1.0f;
        return as_bits(x);
    }
    return x == x ? as_bits(x) : kCanonicalNaN32;
}

template <int Mode>
SM70EMU_INLINE float float_arg(const uint32_t* row, const Source& s, int lane) {
    const float x = float_in(row, s, lane);
    return Mode & kFtz ? flush(x) : x;
}

template <int Mode>
struct Fadd {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        write_lanes(core.destination(in.destination), exec,
                    [&](int l) { return float_out<Mode>(float_arg<Mode>(a, in.a, l) + float_arg<Mode>(b, in.b, l)); });
    }
};

template <int Mode>
struct Fmul {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        write_lanes(core.destination(in.destination), exec,
                    [&](int l) { return float_out<Mode>(float_arg<Mode>(a, in.a, l) * float_arg<Mode>(b, in.b, l)); });
    }
};

template <int Mode>
struct Ffma {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            return float_out<Mode>(
                __builtin_fmaf(float_arg<Mode>(a, in.a, l), float_arg<Mode>(b, in.b, l), float_arg<Mode>(c, in.c, l)));
        });
    }
};

// Directed roundings: rare, so one lane at a time. Kind: 0 add, 1 multiply, 2 fused multiply-add.
template <int Kind>
struct FloatDirected {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        uint32_t* d = core.destination(in.destination);
        const auto mode = static_cast<Rounding>(in.mode & 3);
        const bool ftz = in.mode & 4, saturate = in.mode & 8;
        for (int l = 0; l < kLanes; ++l) {
            if (!bit_of(exec, l)) continue;
            float x = float_in(a, in.a, l), y = float_in(b, in.b, l), z = float_in(c, in.c, l);
            if (ftz) x = flush(x), y = flush(y), z = flush(z);
            float r = Kind == 0   ? add_directed(x, y, mode)
                      : Kind == 1 ? mul_directed(x, y, mode)
                                  : fma_directed(x, y, z, mode);
            if (ftz) r = flush(r);
            d[l] = saturate ? float_out<kSaturate>(r) : float_out<0>(r);
        }
    }
};

template <template <int> class Nearest, int Kind>
void bind_float_arithmetic(Binder& b) {
    const bool ftz = b.take("FTZ");
    const Rounding rounding = b.rounding();
    const bool saturate = b.take("SAT");
    b.out.destination = b.destination();
    b.out.a = b.floating();
    b.out.b = b.floating();
    if (Kind == 2) b.out.c = b.floating();
    if (rounding == Rounding::Nearest) {
        b.handler(pick<Nearest, 4>((ftz ? kFtz : 0) | (saturate ? kSaturate : 0)));
        return;
    }
    b.out.mode = static_cast<uint8_t>(static_cast<int>(rounding) | (ftz ? 4 : 0) | (saturate ? 8 : 0));
    b.handler(&FloatDirected<Kind>::run);
}

// --- comparison

// The set of outcomes that satisfy the comparison (see Isetp).
SM70EMU_INLINE uint32_t take_float_comparison(Binder& b) {
    return 1 + static_cast<uint32_t>(b.require(
                   {"LT", "EQ", "LE", "GT", "NE", "GE", "NUM", "NAN", "LTU", "EQU", "LEU", "GTU", "NEU", "GEU"}));
}

template <class Value>
SM70EMU_INLINE bool compare(uint32_t accepted, Value x, Value y) {
    return (accepted & (x < y ? 1u : x == y ? 2u : x > y ? 4u : 8u)) != 0;
}

// Combines a comparison with the third predicate: 0 AND, 1 OR, 2 XOR.
SM70EMU_INLINE uint32_t combine(uint32_t result, uint32_t with, int operation) {
    return operation == 0 ? result & with : operation == 1 ? result | with : result ^ with;
}

template <int Mode>
SM70EMU_INLINE uint32_t compare_lanes(Core& core, const Instruction& in) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    const uint32_t accepted = in.width;
    return lanes_where(
        [&](int l) { return compare(accepted, float_arg<Mode>(a, in.a, l), float_arg<Mode>(b, in.b, l)); });
}

template <int Mode>
struct Fsetp {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t result = compare_lanes<Mode>(core, in), with = core.predicate(in.p0);
        core.write_predicate(in.predicate0, combine(result, with, in.mode), exec);
        core.write_predicate(in.predicate1, combine(~result, with, in.mode), exec);
    }
};

template <int Mode>
struct Fset {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t set = combine(compare_lanes<Mode>(core, in), core.predicate(in.p0), in.mode);
        const uint32_t one = in.immediate;
        write_lanes(core.destination(in.destination), exec, [&](int l) { return bit_of(set, l) ? one : 0u; });
    }
};

void bind_fsetp(Binder& b) {
    b.out.width = static_cast<uint8_t>(take_float_comparison(b));
    const bool ftz = b.take("FTZ");
    b.out.mode = static_cast<uint8_t>(b.require({"AND", "OR", "XOR"}));
    b.out.predicate0 = b.predicate_destination();
    b.out.predicate1 = b.predicate_destination();
    b.out.a = b.floating();
    b.out.b = b.floating();
    b.out.p0 = b.predicate_source();
    b.handler(pick<Fsetp, 2>(ftz ? kFtz : 0));
}

void bind_fset(Binder& b) {
    b.out.immediate = b.take("BF") ? as_bits(1.0f) : ~0u;
    b.out.width = static_cast<uint8_t>(take_float_comparison(b));
    const bool ftz = b.take("FTZ");
    b.out.mode = static_cast<uint8_t>(b.require({"AND", "OR", "XOR"}));
    b.out.destination = b.destination();
    b.out.a = b.floating();
    b.out.b = b.floating();
    b.out.p0 = b.predicate_source();
    b.handler(pick<Fset, 2>(ftz ? kFtz : 0));
}

// --- selection

template <int Mode>
struct Fsel {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        const uint32_t choice = core.predicate(in.p0);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const float x = float_arg<Mode>(a, in.a, l), y = float_arg<Mode>(b, in.b, l);
            return bit_of(choice, l) ? as_bits(x) : as_bits(y);
        });
    }
};

void bind_fsel(Binder& b) {
    const bool ftz = b.take("FTZ");
    b.out.destination = b.destination();
    b.out.a = b.floating();
    b.out.b = b.floating();
    b.out.p0 = b.predicate_source();
    b.handler(pick<Fsel, 2>(ftz ? kFtz : 0));
}

template <int Mode>
struct Fmnmx {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        const uint32_t want_min = core.predicate(in.p0);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const uint32_t x = as_bits(float_arg<Mode>(a, in.a, l)), y = as_bits(float_arg<Mode>(b, in.b, l));
            // Ordered as integers, -0 is below +0.
            const auto kx = static_cast<int32_t>(x ^ (static_cast<uint32_t>(static_cast<int32_t>(x) >> 31) >> 1)),
                       ky = static_cast<int32_t>(y ^ (static_cast<uint32_t>(static_cast<int32_t>(y) >> 31) >> 1));
            const uint32_t ordered = (kx < ky) == bool(bit_of(want_min, l)) ? x : y;
            const bool x_nan = (x & 0x7fffffffu) > 0x7f800000u, y_nan = (y & 0x7fffffffu) > 0x7f800000u;
            const uint32_t number = x_nan ? y : ordered;
            return y_nan ? (x_nan ? kCanonicalNaN32 : x) : number;
        });
    }
};

void bind_fmnmx(Binder& b) {
    const bool ftz = b.take("FTZ");
    b.out.destination = b.destination();
    b.out.a = b.floating();
    b.out.b = b.floating();
    b.out.p0 = b.predicate_source();
    b.handler(pick<Fmnmx, 2>(ftz ? kFtz : 0));
}

// True where the short division sequence would leave the normal range, so that the slow path must be taken. The bounds
// are conservative: the slow path is right everywhere.
void run_fchk(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    const uint32_t slow = lanes_where([&](int l) {
        const int ea = static_cast<int>((a[l] & in.a.keep) >> 23 & 0xff),
                  eb = static_cast<int>((b[l] & in.b.keep) >> 23 & 0xff);
        const int quotient = ea - eb;
        return ea == 255 || eb == 255 || eb == 0 || eb >= 252 || ea <= 25 || quotient >= 126 || quotient <= -125;
    });
    core.write_predicate(in.predicate0, slow, exec);
}

void bind_fchk(Binder& b) {
    b.take("DIVIDE");
    b.out.predicate0 = b.predicate_destination();
    b.out.a = b.floating();
    b.out.b = b.floating();
    b.handler(&run_fchk);
}

constexpr Opcode kFloatOpcodes[] = {
    {"FADD", bind_float_arithmetic<Fadd, 0>},
    {"FMUL", bind_float_arithmetic<Fmul, 1>},
    {"FFMA", bind_float_arithmetic<Ffma, 2>},
    {"FSETP", bind_fsetp},
    {"FSET", bind_fset},
    {"FSEL", bind_fsel},
    {"FMNMX", bind_fmnmx},
    {"FCHK", bind_fchk},
};
