// Logic, shifts, and operations on bytes and bits.

// --- logic

// The tables compilers use most; any other goes through the general form.
constexpr int kCommonTables[] = {0xc0, 0xfc, 0x3c, 0xf8, 0x33, 0x80, 0x96, 0xfe,
                                 0x0c, 0x30, 0xea, 0xca, 0xe2, 0xe4, 0xf4, 0xac};

SM70EMU_INLINE uint32_t lop3(uint32_t table, uint32_t a, uint32_t b, uint32_t c) {
    const auto term = [&](int bit) { return 0u - (table >> bit & 1); };
    return (~a & ((~b & ((~c & term(0)) | (c & term(1)))) | (b & ((~c & term(2)) | (c & term(3)))))) |
           (a & ((~b & ((~c & term(4)) | (c & term(5)))) | (b & ((~c & term(6)) | (c & term(7))))));
}

template <int Index>
struct Lop3 {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
        const uint32_t table = Index < static_cast<int>(std::size(kCommonTables))
                                   ? static_cast<uint32_t>(kCommonTables[Index])
                                   : in.immediate;
        alignas(64) uint32_t result[kLanes];
        each_lane([&](int l) { result[l] = lop3(table, a[l], b[l], c[l]); });
        write_lanes(core.destination(in.destination), exec, [&](int l) { return result[l]; });
        core.write_predicate(in.predicate0, pack_lanes(result) | core.predicate(in.p0), exec);
    }
};

void bind_lop3(Binder& b) {
    if (!b.take("LUT")) b.refuse("LOP3 without .LUT");
    if (b.next_is(OperandKind::Predicate)) b.out.predicate0 = b.predicate_destination();
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.c = b.bits();
    b.out.immediate = b.small_immediate(255);
    b.out.p0 = b.predicate_source();  // joined by OR with "the result is not zero"; !PT if unused
    int index = 0;
    while (index < static_cast<int>(std::size(kCommonTables)) &&
           kCommonTables[index] != static_cast<int>(b.out.immediate)) {
        ++index;
    }
    b.handler(pick<Lop3, std::size(kCommonTables) + 1>(index));
}

// --- shifts

template <int Mode>  // 1 right, 2 64-bit, 4 signed, 8 high word, 16 wrapping amount
struct Shf {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *low = core.row(in.a), *amount = core.row(in.b), *high = core.row(in.c);
        constexpr uint32_t limit = Mode & 2 ? 64 : 32;
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const uint32_t s = Mode & 16 ? amount[l] & (limit - 1) : amount[l] < limit ? amount[l] : limit;
            const uint64_t wide = static_cast<uint64_t>(high[l]) << 32 | low[l];
            uint64_t r;
            if (Mode & 1) {
                if (Mode & 4) {
                    r = static_cast<uint64_t>(static_cast<int64_t>(wide) >> (s < 63 ? s : 63));
                } else {
                    r = s < 64 ? wide >> s : 0;
                }
            } else {
                r = s < 64 ? wide << s : 0;
            }
            return static_cast<uint32_t>(Mode & 8 ? r >> 32 : r);
        });
    }
};

void bind_shf(Binder& b) {
    const bool right = b.require({"L", "R"}) == 1;
    const bool wraps = b.take("W");
    const int type = b.require({"U32", "S32", "U64", "S64"});
    const bool high = b.take("HI");
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.c = b.bits();
    b.handler(pick<Shf, 32>((right ? 1 : 0) | (type & 2) | (type & 1 ? 4 : 0) | (high ? 8 : 0) | (wraps ? 16 : 0)));
}

// --- bytes and bits

SM70EMU_INLINE uint32_t permute(uint64_t bytes, uint32_t selector) {
    uint32_t r = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32_t nibble = selector >> (4 * i) & 0xf;
        uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (nibble & 7))) & 0xff;
        byte = nibble & 8 ? (byte & 0x80 ? 0xff : 0) : byte;  // replicate the sign
        r |= byte << (8 * i);
    }
    return r;
}

// What the two lower bits of the selector stand for under each mode: four, and backward four, bytes from there on; one
// byte, or one pair, repeated; bytes clamped from the left or from the right.
constexpr uint16_t kPermuteModes[6][4] = {
    {0x3210, 0x4321, 0x5432, 0x6543}, {0x5670, 0x6701, 0x7012, 0x0123}, {0x0000, 0x1111, 0x2222, 0x3333},
    {0x3210, 0x3211, 0x3222, 0x3333}, {0x0000, 0x1110, 0x2210, 0x3210}, {0x1010, 0x3232, 0x1010, 0x3232},
};

void run_prmt(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *selector = core.row(in.b), *c = core.row(in.c);
    write_lanes(core.destination(in.destination), exec,
                [&](int l) { return permute(static_cast<uint64_t>(c[l]) << 32 | a[l], selector[l]); });
}

void run_prmt_mode(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *selector = core.row(in.b), *c = core.row(in.c);
    write_lanes(core.destination(in.destination), exec, [&](int l) {
        return permute(static_cast<uint64_t>(c[l]) << 32 | a[l], kPermuteModes[in.mode][selector[l] & 3]);
    });
}

void bind_prmt(Binder& b) {
    const int mode = b.choose({"F4E", "B4E", "RC8", "ECL", "ECR", "RC16"});
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.out.c = b.bits();
    b.out.mode = static_cast<uint8_t>(mode < 0 ? 0 : mode);
    b.handler(mode < 0 ? &run_prmt : &run_prmt_mode);
}

template <int Kind>
struct Unary {
    static uint32_t value(uint32_t x) {
        if constexpr (Kind == 0) return static_cast<uint32_t>(__builtin_popcount(x));
        if constexpr (Kind == 1 || Kind == 2) {  // position of the leading one; .SH counts from the top
            if (x == 0) return ~0u;
            const auto leading = static_cast<uint32_t>(__builtin_clz(x));
            return Kind == 1 ? 31 - leading : leading;
        }
        if constexpr (Kind == 3 || Kind == 4) {  // signed: leading bit that differs from the sign
            if (static_cast<int32_t>(x) < 0) x = ~x;
            if (x == 0) return ~0u;
            const auto leading = static_cast<uint32_t>(__builtin_clz(x));
            return Kind == 3 ? 31 - leading : leading;
        }
        if constexpr (Kind == 5) {
            x = (x >> 1 & 0x55555555u) | (x & 0x55555555u) << 1;
            x = (x >> 2 & 0x33333333u) | (x & 0x33333333u) << 2;
            x = (x >> 4 & 0x0f0f0f0fu) | (x & 0x0f0f0f0fu) << 4;
            return __builtin_bswap32(x);
        }
        if constexpr (Kind == 6) return static_cast<int32_t>(x) < 0 ? 0u - x : x;
        if constexpr (Kind == 7) return x;
    }
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t* a = core.row(in.a);
        const uint32_t flip = in.a.flip;
        write_lanes(core.destination(in.destination), exec, [&](int l) { return value(a[l] ^ flip); });
    }
};

void bind_unary(Binder& b, int kind) {
    b.out.destination = b.destination();
    b.out.a = b.inverted();
    b.handler(pick<Unary, 8>(kind));
}
void bind_popc(Binder& b) {
    bind_unary(b, 0);
}
void bind_flo(Binder& b) {
    const bool is_unsigned = b.take("U32"), shift_amount = b.take("SH");
    bind_unary(b, (is_unsigned ? 1 : 3) + (shift_amount ? 1 : 0));
}
void bind_brev(Binder& b) {
    bind_unary(b, 5);
}
void bind_iabs(Binder& b) {
    bind_unary(b, 6);
}
void bind_mov(Binder& b) {
    bind_unary(b, 7);
}

// SGXT: sign- or zero-extends the lower b bits of a, as szext does; b is clamped to 32, or wraps there.
template <int Mode>  // 1 signed, 2 wraps
struct Sgxt {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const uint32_t kept = Mode & 2 ? b[l] & 31 : b[l];
            const uint32_t unused = kept < 32 ? 32 - kept : 0;  // 32 if no bit is kept
            const uint64_t top = static_cast<uint64_t>(a[l]) << unused << 32;
            return static_cast<uint32_t>(Mode & 1 ? static_cast<uint64_t>(static_cast<int64_t>(top) >> unused) >> 32
                                                  : top >> unused >> 32);
        });
    }
};

void bind_sgxt(Binder& b) {
    const bool wraps = b.take("W"), is_unsigned = b.take("U32");
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.handler(pick<Sgxt, 4>((is_unsigned ? 0 : 1) | (wraps ? 2 : 0)));
}

// BMSK: b ones from bit a on; both are clamped to 32, or wrap there.
template <int Wraps>
struct Bmsk {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const uint32_t *a = core.row(in.a), *b = core.row(in.b);
        write_lanes(core.destination(in.destination), exec, [&](int l) {
            const uint32_t start = Wraps ? a[l] & 31 : a[l] < 32 ? a[l] : 32;
            const uint32_t length = Wraps ? b[l] & 31 : b[l] < 32 ? b[l] : 32;
            return static_cast<uint32_t>(((uint64_t{1} << length) - 1) << start);
        });
    }
};

void bind_bmsk(Binder& b) {
    const bool wraps = b.take("W");
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.handler(pick<Bmsk, 2>(wraps));
}

constexpr Opcode kBitOpcodes[] = {
    {"LOP3", bind_lop3}, {"SHF", bind_shf},   {"PRMT", bind_prmt}, {"SGXT", bind_sgxt}, {"POPC", bind_popc},
    {"FLO", bind_flo},   {"BREV", bind_brev}, {"IABS", bind_iabs}, {"MOV", bind_mov},   {"BMSK", bind_bmsk},
};
