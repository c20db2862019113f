// Double precision. Rare in this package's kernels, so one lane at a time.

template <int Kind>  // 0 add, 1 multiply, 2 fused multiply-add
struct DoubleArithmetic {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        uint32_t* d = core.destination(in.destination);
        const auto mode = static_cast<Rounding>(in.mode);
        for (int l = 0; l < kLanes; ++l) {
            if (!bit_of(exec, l)) continue;
            const double x = double_in(a, in.a, l), y = double_in(b, in.b, l), z = double_in(c, in.c, l);
            double r;
            if (mode == Rounding::Nearest) {
                r = Kind == 0 ? x + y : Kind == 1 ? x * y : __builtin_fma(x, y, z);
            } else {
                r = Kind == 0   ? add_directed(x, y, mode)
                    : Kind == 1 ? mul_directed(x, y, mode)
                                : fma_directed(x, y, z, mode);
            }
            const uint64_t bits = r == r ? as_bits(r) : kCanonicalNaN64;
            d[l] = static_cast<uint32_t>(bits);
            d[kLanes + l] = static_cast<uint32_t>(bits >> 32);
        }
    }
};

template <int Kind>
void bind_double_arithmetic(Binder& b) {
    b.out.mode = static_cast<uint8_t>(b.rounding());
    b.out.destination = b.destination(2);
    b.out.a = b.double_precision();
    b.out.b = b.double_precision();
    if (Kind == 2) b.out.c = b.double_precision();
    b.handler(&DoubleArithmetic<Kind>::run);
}

void run_dsetp(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    uint32_t result = 0;
    for (int l = 0; l < kLanes; ++l) {
        result |= static_cast<uint32_t>(compare(in.width, double_in(a, in.a, l), double_in(b, in.b, l))) << l;
    }
    const uint32_t with = core.predicate(in.p0);
    core.write_predicate(in.predicate0, combine(result, with, in.mode), exec);
    core.write_predicate(in.predicate1, combine(~result, with, in.mode), exec);
}

// DSETP.MIN/.MAX: the first predicate says that a is the result, the second that the result is a NaN (both are).
template <int Maximum>
struct DsetpExtremum {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        uint32_t choose_a = 0, both_nan = 0;
        for (int l = 0; l < kLanes; ++l) {
            const double x = double_in(a, in.a, l), y = double_in(b, in.b, l);
            const bool x_negative = as_bits(x) >> 63;
            const bool first = Maximum ? x > y || (x == y && !x_negative) : x < y || (x == y && x_negative);
            choose_a |= static_cast<uint32_t>(y != y || first) << l;
            both_nan |= static_cast<uint32_t>(x != x && y != y) << l;
        }
        const uint32_t with = core.predicate(in.p0);
        core.write_predicate(in.predicate0, combine(choose_a, with, in.mode), exec);
        core.write_predicate(in.predicate1, combine(both_nan, with, in.mode), exec);
    }
};

void bind_dsetp(Binder& b) {
    const int extremum = b.choose({"MIN", "MAX"});
    if (extremum < 0) b.out.width = static_cast<uint8_t>(take_float_comparison(b));
    b.out.mode = static_cast<uint8_t>(b.require({"AND", "OR", "XOR"}));
    b.out.predicate0 = b.predicate_destination();
    b.out.predicate1 = b.predicate_destination();
    b.out.a = b.double_precision();
    b.out.b = b.double_precision();
    b.out.p0 = b.predicate_source();
    b.handler(extremum < 0 ? &run_dsetp : pick<DsetpExtremum, 2>(extremum));
}

constexpr Opcode kDoubleOpcodes[] = {
    {"DADD", bind_double_arithmetic<0>},
    {"DMUL", bind_double_arithmetic<1>},
    {"DFMA", bind_double_arithmetic<2>},
    {"DSETP", bind_dsetp},
};
