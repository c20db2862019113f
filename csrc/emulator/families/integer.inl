// Integer arithmetic and comparison.

// --- IADD3: sum of three with up to two carries in and out. A negated source enters as its complement plus one.

template <int Extended>
struct Iadd3 {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        const uint32_t fa = in.a.flip, fb = in.b.flip, fc = in.c.flip;
        if (!Extended && in.predicate0 == kPredicateSink && in.predicate1 == kPredicateSink) {
            const uint32_t plus = static_cast<uint32_t>(in.immediate);
            write_lanes(core.destination(in.destination), exec,
                        [&](int l) { return (a[l] ^ fa) + (b[l] ^ fb) + (c[l] ^ fc) + plus; });
            return;
        }
        const uint32_t carry0 = Extended ? core.predicate(in.p0) : 0, carry1 = Extended ? core.predicate(in.p1) : 0;
        alignas(64) uint32_t carries[kLanes], sums[kLanes];
        each_lane([&](int l) {
            const uint64_t sum = static_cast<uint64_t>(a[l] ^ fa) + (b[l] ^ fb) + (c[l] ^ fc) + in.immediate +
                                 bit_of(carry0, l) + bit_of(carry1, l);
            sums[l] = static_cast<uint32_t>(sum);
            carries[l] = static_cast<uint32_t>(sum >> 32);
        });
        write_lanes(core.destination(in.destination), exec, [&](int l) { return sums[l]; });
        core.write_predicate(in.predicate0, pack_lanes(carries), exec);
        core.write_predicate(in.predicate1, lanes_where([&](int l) { return carries[l] >= 2; }), exec);
    }
};

void bind_iadd3(Binder& b) {
    const bool extended = b.take("X");
    b.out.destination = b.destination();
    if (b.next_is(OperandKind::Predicate)) b.out.predicate0 = b.predicate_destination();
    if (b.next_is(OperandKind::Predicate)) b.out.predicate1 = b.predicate_destination();
    Source* sources[] = {&b.out.a, &b.out.b, &b.out.c};
    for (Source* s : sources) {
        *s = extended ? b.inverted() : b.integer();
        if (!extended && s->flip) ++b.out.immediate;
    }
    if (extended) {
        b.out.p0 = b.predicate_source();
        b.out.p1 = b.predicate_source();
    }
    b.handler(pick<Iadd3, 2>(extended));
}

// --- IMAD and its disguises (MOV, SHL, IADD are multiplications by one or a power of two)

template <int Kind>
struct Imad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        uint32_t* d = core.destination(in.destination);
        const uint32_t fc = in.c.flip;
        if constexpr (Kind == 0) {
            const uint32_t fa = in.a.flip, fb = in.b.flip;
            write_lanes(d, exec, [&](int l) { return ((a[l] ^ fa) - fa) * ((b[l] ^ fb) - fb) + ((c[l] ^ fc) - fc); });
        } else if constexpr (Kind == 1) {  // .X: the complement of c, plus a carry
            const uint32_t carry = core.predicate(in.p0);
            write_lanes(d, exec, [&](int l) { return a[l] * b[l] + (c[l] ^ fc) + bit_of(carry, l); });
        } else if constexpr (Kind == 2 || Kind == 3) {  // .HI, .HI.U32
            write_lanes(d, exec, [&](int l) {
                const uint64_t product = Kind == 2
                                             ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(a[l])) *
                                                                     static_cast<int32_t>(b[l]))
                                             : static_cast<uint64_t>(a[l]) * b[l];
                return static_cast<uint32_t>(product >> 32) + ((c[l] ^ fc) - fc);
            });
        } else if constexpr (Kind == 6) {  // a plain move
            write_lanes(d, exec, [&](int l) { return (c[l] ^ fc) - fc; });
        } else {  // .WIDE, .WIDE.U32
            const uint64_t flip = fc ? ~uint64_t{0} : 0;
            write_lanes64(d, exec, [&](int l) {
                const uint64_t product = Kind == 4
                                             ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(a[l])) *
                                                                     static_cast<int32_t>(b[l]))
                                             : static_cast<uint64_t>(a[l]) * b[l];
                return product + ((join(c, l) ^ flip) - flip);
            });
        }
    }
};

// .WIDE with a carry out, in, or both. The carry is that of the unsigned sum, of a signed product too.
template <int Signed>
struct ImadWideCarry {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        const uint32_t carry_in = core.predicate(in.p0);
        uint32_t carry_out = 0;
        uint64_t results[kLanes];
        for (int l = 0; l < kLanes; ++l) {
            const uint64_t product = Signed ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(a[l])) *
                                                                    static_cast<int32_t>(b[l]))
                                            : static_cast<uint64_t>(a[l]) * b[l];
            const unsigned __int128 sum = static_cast<unsigned __int128>(product) + join(c, l) + bit_of(carry_in, l);
            results[l] = static_cast<uint64_t>(sum);
            carry_out |= static_cast<uint32_t>(sum >> 64) << l;
        }
        write_lanes64(core.destination(in.destination), exec, [&](int l) { return results[l]; });
        core.write_predicate(in.predicate0, carry_out, exec);
    }
};

void bind_imad(Binder& b) {
    const bool wide = b.take("WIDE"), high = b.take("HI"), extended = b.take("X");
    const bool is_unsigned = b.take("U32");
    const int disguise = b.choose({"MOV", "SHL", "IADD"});
    if (disguise >= 0 && (wide || high || extended)) b.refuse("unknown IMAD form");
    b.out.destination = b.destination(wide ? 2 : 1);
    const bool carry_out = wide && b.next_is(OperandKind::Predicate);
    if (carry_out) b.out.predicate0 = b.predicate_destination();
    const bool plain_low = !wide && !high && !extended;
    b.out.a = plain_low ? b.integer() : b.bits();
    b.out.b = plain_low ? b.integer() : b.bits();
    b.out.c = b.source(extended && !wide ? SourceKind::Inverted : SourceKind::Integer, wide ? 2 : 1);
    if (extended) {
        b.out.p0 = b.predicate_source();
    } else {
        b.out.p0 = {kPredicateTrue, true};
    }
    if (wide && (carry_out || extended)) {
        if (b.out.c.flip) b.refuse("negated addend with carry");
        b.handler(is_unsigned ? &ImadWideCarry<0>::run : &ImadWideCarry<1>::run);
        return;
    }
    if (high && extended) b.refuse("IMAD.HI.X");
    int kind = wide ? (is_unsigned ? 5 : 4) : high ? (is_unsigned ? 3 : 2) : extended ? 1 : 0;
    // IMAD.MOV R, RZ, RZ, x is what the compiler uses as a move.
    if (kind == 0 && disguise == 0 && b.out.a.space == 1 && b.out.a.row == 0 && b.out.b.space == 1 &&
        b.out.b.row == 0) {
        kind = 6;
    }
    b.handler(pick<Imad, 7>(kind));
}

// --- comparisons, selection

// A comparison is the set of outcomes that satisfy it: 1 less, 2 equal, 4 greater, 8 unordered. In this order the
// names LT EQ LE GT NE GE NUM NAN LTU EQU LEU GTU NEU GEU are the sets 1, 2, 3, ...
template <int Mode>  // 1 signed, 2 extended
struct Isetp {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        using Value = std::conditional_t<(Mode & 1) != 0, int32_t, uint32_t>;
        const uint32_t accepted = in.immediate;
        uint32_t result;
        if constexpr (!(Mode & 2)) {
            result = lanes_where([&](int l) {
                const Value x = Value(a[l]), y = Value(b[l]);
                return (accepted & (x < y ? 1u : x == y ? 2u : 4u)) != 0;
            });
        } else {
            // The lower words have been compared already; equal upper words hand their verdict on.
            const uint32_t lower = core.predicate(in.p1);
            const uint32_t equal = lanes_where([&](int l) { return a[l] == b[l]; });
            const uint32_t strict = lanes_where([&](int l) {
                const Value x = Value(a[l]), y = Value(b[l]);
                return (accepted & (x < y ? 1u : x > y ? 4u : 0u)) != 0;
            });
            result = strict | (equal & lower);
        }
        const uint32_t with = core.predicate(in.p0);
        const auto combine = [&](uint32_t r) { return in.mode == 0 ? r & with : in.mode == 1 ? r | with : r ^ with; };
        core.write_predicate(in.predicate0, combine(result), exec);
        core.write_predicate(in.predicate1, combine(~result), exec);
    }
};

void bind_isetp(Binder& b) {
    const bool extended = b.take("EX");
    b.out.immediate = 1 + static_cast<uint32_t>(b.require({"LT", "EQ", "LE", "GT", "NE", "GE"}));
    const bool is_unsigned = b.take("U32");
    b.out.mode = static_cast<uint8_t>(b.require({"AND", "OR", "XOR"}));
    b.out.predicate0 = b.predicate_destination();
    b.out.predicate1 = b.predicate_destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.p0 = b.predicate_source();
    if (extended) b.out.p1 = b.predicate_source();
    b.handler(pick<Isetp, 4>((is_unsigned ? 0 : 1) | (extended ? 2 : 0)));
}

template <int Signed>
struct Imnmx {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        using Value = std::conditional_t<Signed != 0, int32_t, uint32_t>;
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        const uint32_t want_min = core.predicate(in.p0);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const bool a_less = Value(a[l]) < Value(b[l]);
            return a_less == bool(bit_of(want_min, l)) ? a[l] : b[l];
        });
    }
};

void bind_imnmx(Binder& b) {
    const bool is_unsigned = b.take("U32");
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.p0 = b.predicate_source();
    b.handler(pick<Imnmx, 2>(!is_unsigned));
}

void run_sel(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b);
    const uint32_t choice = core.predicate(in.p0);
    write_lanes(core.destination(in.destination), exec, [&](int l) { return bit_of(choice, l) ? a[l] : b[l]; });
}

void bind_sel(Binder& b) {
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.p0 = b.predicate_source();
    b.handler(&run_sel);
}

// --- LEA: (a << s) + b; .HI takes the upper word of the 64-bit c:a shifted. A negated term enters after the shift, as
// its complement plus one, so that the carry is that of a subtraction.

template <int Mode>  // 1 high word, 2 extended, 4 sign-extended a
struct Lea {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        const int shift = static_cast<int>(in.width);
        const uint32_t fa = in.a.flip, fb = in.b.flip;
        const uint32_t carry_in = (Mode & 2) ? core.predicate(in.p0) : 0;
        alignas(64) uint32_t sums[kLanes], carries[kLanes];
        each_lane([&](int l) {
            const uint64_t wide = Mode & 4   ? static_cast<uint64_t>(static_cast<int64_t>(static_cast<int32_t>(a[l])))
                                  : Mode & 1 ? static_cast<uint64_t>(c[l]) << 32 | a[l]
                                             : a[l];
            const uint32_t part = static_cast<uint32_t>((wide << shift) >> (Mode & 1 ? 32 : 0)) ^ fa;
            const uint64_t sum = static_cast<uint64_t>(part) + (b[l] ^ fb) + in.immediate + bit_of(carry_in, l);
            sums[l] = static_cast<uint32_t>(sum);
            carries[l] = static_cast<uint32_t>(sum >> 32);
        });
        write_lanes(core.destination(in.destination), exec, [&](int l) { return sums[l]; });
        core.write_predicate(in.predicate0, pack_lanes(carries), exec);
    }
};

void bind_lea(Binder& b) {
    const bool high = b.take("HI"), extended = b.take("X"), sign_extended = b.take("SX32");
    if (sign_extended && !high) b.refuse("LEA.SX32 without .HI");
    b.out.destination = b.destination();
    if (b.next_is(OperandKind::Predicate)) b.out.predicate0 = b.predicate_destination();
    b.out.a = b.integer();
    if (b.out.a.flip && high) b.refuse("negated index of LEA.HI");
    b.out.b = extended ? b.inverted() : b.integer();
    if (!extended) b.out.immediate = (b.out.a.flip ? 1 : 0) + (b.out.b.flip ? 1 : 0);
    b.out.c = high && !sign_extended ? b.bits() : b.zero();
    b.out.width = static_cast<uint8_t>(b.small_immediate(31));
    if (extended) b.out.p0 = b.predicate_source();
    b.handler(pick<Lea, 8>((high ? 1 : 0) | (extended ? 2 : 0) | (sign_extended ? 4 : 0)));
}

// --- dot products and differences

template <int Signs>  // 1: a is signed, 2: b is signed
void run_idp4(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
    write_lanes(core.destination(in.destination), exec, [&](int l) {
        uint32_t sum = c[l];
        for (int i = 0; i < 4; ++i) {
            const uint32_t x = a[l] >> (8 * i) & 0xff, y = b[l] >> (8 * i) & 0xff;
            const int32_t sx = Signs & 1 ? static_cast<int8_t>(x) : static_cast<int32_t>(x),
                          sy = Signs & 2 ? static_cast<int8_t>(y) : static_cast<int32_t>(y);
            sum += static_cast<uint32_t>(sx * sy);
        }
        return sum;
    });
}

void bind_idp(Binder& b) {
    if (!b.take("4A")) b.refuse("IDP other than .4A");
    const int first = b.require({"U8", "S8"}), second = b.require({"U8", "S8"});
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.c = b.bits();
    const Handler handlers[] = {&run_idp4<0>, &run_idp4<1>, &run_idp4<2>, &run_idp4<3>};
    // The listing prints the type of a first.
    b.handler(handlers[first | second << 1]);
}

template <int Signed>
struct Vabsdiff {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const bool less = Signed ? static_cast<int32_t>(a[l]) < static_cast<int32_t>(b[l]) : a[l] < b[l];
            return (less ? b[l] - a[l] : a[l] - b[l]) + c[l];
        });
    }
};

void bind_vabsdiff(Binder& b) {
    const bool is_unsigned = b.take("U32");
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.c = b.bits();
    b.handler(pick<Vabsdiff, 2>(!is_unsigned));
}

constexpr Opcode kIntegerOpcodes[] = {
    {"IADD3", bind_iadd3}, {"IMAD", bind_imad}, {"ISETP", bind_isetp}, {"IMNMX", bind_imnmx},
    {"SEL", bind_sel},     {"LEA", bind_lea},   {"IDP", bind_idp},     {"VABSDIFF", bind_vabsdiff},
};
