// Conversions between number formats. Round-to-nearest narrowing to half and 32-bit integers to float are vectorised;
// the rest goes through exact scalar routines.

enum class FloatType : uint8_t { F16, F32, F64 };

SM70EMU_INLINE int float_registers(FloatType type) {
    return type == FloatType::F64 ? 2 : 1;
}

SM70EMU_INLINE double load_float(FloatType type, const uint32_t* row, const Source& s, int lane, bool ftz) {
    switch (type) {
        case FloatType::F16: return half_at(row, s, lane, half_shift(s, 0));  // signs as of a packed pair
        case FloatType::F32: {
            const float x = float_in(row, s, lane);
            return ftz ? flush(x) : x;
        }
        case FloatType::F64: break;
    }
    return double_in(row, s, lane);
}

SM70EMU_INLINE Source float_source(Binder& b, FloatType type) {
    if (type == FloatType::F64) return b.double_precision();
    if (type == FloatType::F32) return b.floating();
    return b.next_is(OperandKind::Immediate) ? b.bits() : packed_halves(b);  // one half is printed, not a pair
}

void run_f2f_f16_f32(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    write_lanes(core.destination(in.destination), exec, [&](int l) { return narrow(float_in(a, in.a, l)); });
}

// mode: rounding | ftz << 2; fields p0 and p1, which need no predicate here, hold the types.
void run_f2f(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    uint32_t* d = core.destination(in.destination);
    const auto to = FloatType(in.immediate & 3), from = FloatType(in.immediate >> 2 & 3);
    const auto mode = static_cast<Rounding>(in.mode & 3);
    const bool ftz = in.mode & 4;
    for (int l = 0; l < kLanes; ++l) {
        if (!bit_of(exec, l)) continue;
        const double x = load_float(from, a, in.a, l, ftz);
        if (to == FloatType::F16) {
            d[l] = double_to_half(x, mode);
        } else if (to == FloatType::F32) {
            float r = double_to_float(x, mode);
            if (ftz) r = flush(r);
            d[l] = float_out<0>(r);
        } else {
            const uint64_t bits = x == x ? as_bits(x) : kCanonicalNaN64;
            d[l] = static_cast<uint32_t>(bits);
            d[kLanes + l] = static_cast<uint32_t>(bits >> 32);
        }
    }
}

FloatType float_type_of(Binder& b, const std::string& name) {
    if (name == "F16") return FloatType::F16;
    if (name == "F32") return FloatType::F32;
    if (name == "F64") return FloatType::F64;
    b.refuse("modifier ." + name + " is not implemented for " + b.parsed.opcode);
}

void bind_f2f(Binder& b) {
    const bool ftz = b.take("FTZ");
    const Rounding rounding = b.rounding();
    const FloatType to = float_type_of(b, b.next_modifier()), from = float_type_of(b, b.next_modifier());
    b.out.destination = b.destination(float_registers(to));
    b.out.a = float_source(b, from);
    if (to == FloatType::F16 && from == FloatType::F32 && rounding == Rounding::Nearest && !ftz) {
        b.handler(&run_f2f_f16_f32);
        return;
    }
    b.out.mode = static_cast<uint8_t>(static_cast<int>(rounding) | (ftz ? 4 : 0));
    b.out.immediate = static_cast<uint32_t>(to) | static_cast<uint32_t>(from) << 2;
    b.handler(&run_f2f);
}

// --- rounding to an integral value of the same format

// .TRUNC .FLOOR .CEIL, nearest if none is given.
SM70EMU_INLINE Rounding take_integral_rounding(Binder& b) {
    const Rounding modes[] = {Rounding::Zero, Rounding::Down, Rounding::Up};
    const int chosen = b.choose({"TRUNC", "FLOOR", "CEIL"});
    return chosen < 0 ? Rounding::Nearest : modes[chosen];
}

void run_frnd(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    uint32_t* d = core.destination(in.destination);
    const auto type = FloatType(in.immediate);
    for (int l = 0; l < kLanes; ++l) {
        if (!bit_of(exec, l)) continue;
        const double r =
            round_to_integral(load_float(type, a, in.a, l, in.mode & 4), static_cast<Rounding>(in.mode & 3));
        if (type == FloatType::F16) {
            d[l] = double_to_half(r, Rounding::Nearest);
        } else if (type == FloatType::F32) {
            d[l] = float_out<0>(static_cast<float>(r));
        } else {
            const uint64_t bits = r == r ? as_bits(r) : kCanonicalNaN64;
            d[l] = static_cast<uint32_t>(bits);
            d[kLanes + l] = static_cast<uint32_t>(bits >> 32);
        }
    }
}

void bind_frnd(Binder& b) {
    const bool ftz = b.take("FTZ");
    const int type = b.choose({"F16", "F32", "F64"}, 1);
    const Rounding mode = take_integral_rounding(b);
    b.out.mode = static_cast<uint8_t>(static_cast<int>(mode) | (ftz ? 4 : 0));
    b.out.immediate = static_cast<uint32_t>(type);
    b.out.destination = b.destination(float_registers(FloatType(type)));
    b.out.a = float_source(b, FloatType(type));
    b.handler(&run_frnd);
}

// --- float to integer

struct IntegerType {
    uint8_t bits = 32;
    bool is_signed = true;
};

// The integer type among the modifiers; S32 if none.
IntegerType take_integer_type(Binder& b) {
    static const IntegerType types[] = {{8, false},  {8, true},  {16, false}, {16, true},
                                        {32, false}, {32, true}, {64, false}, {64, true}};
    return types[b.choose({"U8", "S8", "U16", "S16", "U32", "S32", "U64", "S64"}, 5)];
}

void run_f2i(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    uint32_t* d = core.destination(in.destination);
    const auto from = FloatType(in.immediate & 3);
    const int bits = in.width;
    const bool is_signed = in.mode & 8;
    for (int l = 0; l < kLanes; ++l) {
        if (!bit_of(exec, l)) continue;
        const double x = load_float(from, a, in.a, l, in.mode & 4);
        uint64_t r = double_to_integer(x, bits, is_signed, static_cast<Rounding>(in.mode & 3));
        if (from == FloatType::F64 && x != x) r = uint64_t{1} << (bits - 1);
        if (is_signed && bits < 32) r = static_cast<uint64_t>(static_cast<int64_t>(r << (64 - bits)) >> (64 - bits));
        d[l] = static_cast<uint32_t>(r);
        if (bits == 64) d[kLanes + l] = static_cast<uint32_t>(r >> 32);
    }
}

// The common case: float to a 32-bit integer, toward zero.
template <int Signed>
struct F2iTruncate {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t* a = core.row(in.a);
        const bool ftz = in.mode & 4;
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            float x = float_in(a, in.a, l);
            x = ftz ? flush(x) : x;
            if (Signed) {
                const float inside = x >= 0x1p31f ? 0.0f : x < -0x1p31f ? 0.0f : x == x ? x : 0.0f;
                const auto r = static_cast<uint32_t>(static_cast<int32_t>(inside));
                return x >= 0x1p31f ? 0x7fffffffu : x < -0x1p31f ? 0x80000000u : r;
            }
            const float inside = x >= 0x1p32f ? 0.0f : x > 0.0f ? x : 0.0f;
            // Through two signed halves, which every instruction set converts.
            const bool upper = inside >= 0x1p31f;
            const auto r = static_cast<uint32_t>(static_cast<int32_t>(upper ? inside - 0x1p31f : inside)) +
                           (upper ? 0x80000000u : 0u);
            return x >= 0x1p32f ? 0xffffffffu : r;
        });
    }
};

void bind_f2i(Binder& b) {
    const bool ftz = b.take("FTZ");
    const IntegerType to = take_integer_type(b);
    const int from = b.choose({"F16", "F32", "F64"}, 1);
    const Rounding mode = take_integral_rounding(b);
    b.take("NTZ");  // marks a result that feeds no further rounding; no effect on the value
    b.out.destination = b.destination(to.bits == 64 ? 2 : 1);
    b.out.a = float_source(b, FloatType(from));
    b.out.mode = static_cast<uint8_t>(static_cast<int>(mode) | (ftz ? 4 : 0) | (to.is_signed ? 8 : 0));
    b.out.width = to.bits;
    b.out.immediate = static_cast<uint32_t>(from);
    if (to.bits == 32 && from == 1 && mode == Rounding::Zero) {
        b.handler(pick<F2iTruncate, 2>(to.is_signed));
    } else {
        b.handler(&run_f2i);
    }
}

// --- integer to float

SM70EMU_INLINE uint64_t load_integer(const uint32_t* row, const Instruction& in, int lane, bool& negative) {
    const int bits = in.width;
    uint64_t value = bits == 64 ? join(row, lane) : row[lane] >> (in.offset * bits);
    if (bits < 64) value &= (uint64_t{1} << bits) - 1;
    negative = (in.mode & 8) && value >> (bits - 1) & 1;
    if (!negative) return value;
    value = 0 - value;
    return bits == 64 ? value : value & ((uint64_t{1} << bits) - 1);
}

void run_i2f(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    uint32_t* d = core.destination(in.destination);
    const auto to = FloatType(in.immediate);
    const FloatFormat format = to == FloatType::F16 ? kHalf : to == FloatType::F32 ? kSingle : kDouble;
    for (int l = 0; l < kLanes; ++l) {
        if (!bit_of(exec, l)) continue;
        bool negative = false;
        const uint64_t magnitude = load_integer(a, in, l, negative);
        const uint64_t r =
            round_to_format(exact_of_integer(magnitude, negative), format, static_cast<Rounding>(in.mode & 3));
        d[l] = static_cast<uint32_t>(r);
        if (to == FloatType::F64) d[kLanes + l] = static_cast<uint32_t>(r >> 32);
    }
}

template <int Signed>
struct I2fNearest {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t* a = core.row(in.a);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            if (Signed) return as_bits(static_cast<float>(static_cast<int32_t>(a[l])));
            // Both halves are exact as doubles, and so is their sum.
            return as_bits(static_cast<float>(static_cast<double>(static_cast<int32_t>(a[l] >> 16)) * 65536.0 +
                                              static_cast<double>(static_cast<int32_t>(a[l] & 0xffff))));
        });
    }
};

// A register source with an optional byte or half selector (R4.B1, R4.H1).
Source integer_source(Binder& b, int bits, int64_t& part) {
    const Operand& operand = b.peek();
    auto suffixes = operand.suffixes;
    part = 0;
    if (bits == 64 && operand.kind == OperandKind::Immediate) {  // the encoding holds the upper word, as of a double
        if (operand.is_float_text || static_cast<uint32_t>(operand.value) != b.parsed.immediate32()) {
            b.refuse("immediate '" + operand.text + "' does not match the encoding");
        }
        b.next_any();
        Source source;
        source.row = b.constants.immediate_pair(0, b.parsed.immediate32());
        return source;
    }
    if (suffixes.empty()) return b.bits(bits == 64 ? 2 : 1);
    if (operand.kind != OperandKind::Register || suffixes.size() != 1) b.refuse("operand '" + operand.text + "'");
    const std::string& suffix = suffixes.front();
    const char kind = bits == 8 ? 'B' : bits == 16 ? 'H' : '\0';
    if (suffix.size() != 2 || suffix[0] != kind || suffix[1] < '0' || suffix[1] > '3') {
        b.refuse("operand '" + operand.text + "'");
    }
    part = suffix[1] - '0';
    b.next_any();
    Source source;
    if (operand.index >= 0) {
        source.row = b.register_row(operand, 1);
        source.space = 0;
    }
    return source;
}

void bind_i2f(Binder& b) {
    const int to = b.choose({"F16", "F32", "F64"}, 1);
    const IntegerType from = take_integer_type(b);
    const Rounding rounding = b.rounding();
    b.out.destination = b.destination(to == 2 ? 2 : 1);
    b.out.a = integer_source(b, from.bits, b.out.offset);
    b.out.mode = static_cast<uint8_t>(static_cast<int>(rounding) | (from.is_signed ? 8 : 0));
    b.out.width = from.bits;
    b.out.immediate = static_cast<uint32_t>(to);
    if (from.bits == 32 && to == 1 && rounding == Rounding::Nearest) {
        b.handler(pick<I2fNearest, 2>(from.is_signed));
    } else {
        b.handler(&run_i2f);
    }
}

// I2I: saturating or wrapping change of width.
void run_i2i(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    uint32_t* d = core.destination(in.destination);
    const int to_bits = static_cast<int>(in.immediate & 0xff);
    const bool to_signed = in.immediate & 0x100, saturate = in.immediate & 0x200;
    for (int l = 0; l < kLanes; ++l) {
        if (!bit_of(exec, l)) continue;
        bool negative = false;
        const uint64_t magnitude = load_integer(a, in, l, negative);
        int64_t value = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
        if (saturate) {
            const int64_t high = (int64_t{1} << (to_signed ? to_bits - 1 : to_bits)) - 1,
                          low = to_signed ? -high - 1 : 0;
            value = value > high ? high : value < low ? low : value;
        } else {
            const int unused = 64 - to_bits;
            value = to_signed ? static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused
                              : static_cast<int64_t>(static_cast<uint64_t>(value) << unused >> unused);
        }
        d[l] = static_cast<uint32_t>(value);
    }
}

void bind_i2i(Binder& b) {
    const auto type = [&](const std::string& name) -> IntegerType {
        if (name == "U8") return {8, false};
        if (name == "S8") return {8, true};
        if (name == "U16") return {16, false};
        if (name == "S16") return {16, true};
        if (name == "U32") return {32, false};
        if (name == "S32") return {32, true};
        b.refuse("modifier ." + name + " is not implemented for I2I");
    };
    const bool saturate = b.take("SAT");
    const IntegerType to = type(b.next_modifier()), from = type(b.next_modifier());
    b.out.destination = b.destination();
    b.out.a = integer_source(b, from.bits, b.out.offset);
    b.out.mode = from.is_signed ? 8 : 0;
    b.out.width = from.bits;
    b.out.immediate = to.bits | (to.is_signed ? 0x100u : 0u) | (saturate ? 0x200u : 0u);
    b.handler(&run_i2i);
}

constexpr Opcode kConvertOpcodes[] = {
    {"F2F", bind_f2f}, {"FRND", bind_frnd}, {"F2I", bind_f2i}, {"I2F", bind_i2f}, {"I2I", bind_i2i}};
