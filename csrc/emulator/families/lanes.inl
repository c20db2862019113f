// Loops over the 32 lanes of a row, written so that the compiler vectorises them for the instruction set in force where
// this file is included. Included inside the namespace of that instruction set.

#define SM70EMU_INLINE __attribute__((always_inline)) inline

// Rows never overlap partially, so lanes are independent.
template <class Body>
SM70EMU_INLINE void each_lane(Body body) {
#pragma GCC ivdep
    for (int lane = 0; lane < kLanes; ++lane) body(lane);
}

// d[lane] = value(lane) for the lanes of exec.
template <class Value>
SM70EMU_INLINE void write_lanes(uint32_t* d, uint32_t exec, Value value) {
    if (exec == kAllLanes) {
        each_lane([&](int lane) { d[lane] = value(lane); });
        return;
    }
    alignas(64) uint32_t result[kLanes];
    each_lane([&](int lane) { result[lane] = value(lane); });
    each_lane([&](int lane) { d[lane] = (exec >> lane & 1) ? result[lane] : d[lane]; });
}

// Same for a 64-bit result in two consecutive rows. The destination may be one of the sources, so results are
// complete before the first is written.
template <class Value>
SM70EMU_INLINE void write_lanes64(uint32_t* d, uint32_t exec, Value value) {
    alignas(64) uint32_t low[kLanes], high[kLanes];
    each_lane([&](int lane) {
        const uint64_t v = value(lane);
        low[lane] = static_cast<uint32_t>(v);
        high[lane] = static_cast<uint32_t>(v >> 32);
    });
    each_lane([&](int lane) { d[lane] = (exec >> lane & 1) ? low[lane] : d[lane]; });
    each_lane([&](int lane) { d[kLanes + lane] = (exec >> lane & 1) ? high[lane] : d[kLanes + lane]; });
}

// Bit `lane` is set where the row is not zero.
SM70EMU_INLINE uint32_t pack_lanes(const uint32_t* flags) {
#ifdef __AVX2__
    uint32_t mask = 0;
    for (int block = 0; block < 4; ++block) {
        const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(flags + 8 * block));
        const __m256i zero = _mm256_cmpeq_epi32(v, _mm256_setzero_si256());
        mask |= (static_cast<uint32_t>(~_mm256_movemask_ps(_mm256_castsi256_ps(zero))) & 0xffu) << (8 * block);
    }
    return mask;
#else
    uint32_t mask = 0;
    for (int lane = 0; lane < kLanes; ++lane) mask |= static_cast<uint32_t>(flags[lane] != 0) << lane;
    return mask;
#endif
}

// Mask of the lanes where the condition holds.
template <class Condition>
SM70EMU_INLINE uint32_t lanes_where(Condition condition) {
    alignas(64) uint32_t flags[kLanes];
    each_lane([&](int lane) { flags[lane] = condition(lane) ? ~0u : 0u; });
    return pack_lanes(flags);
}

SM70EMU_INLINE uint32_t bit_of(uint32_t mask, int lane) {
    return mask >> lane & 1;
}

SM70EMU_INLINE uint64_t join(const uint32_t* row, int lane) {
    return static_cast<uint64_t>(row[kLanes + lane]) << 32 | row[lane];
}

// Float source with its sign treatment.
SM70EMU_INLINE float float_in(const uint32_t* row, const Source& s, int lane) {
    return as_float((row[lane] & s.keep) ^ s.flip);
}

// Sign treatment of a double acts on its upper word.
SM70EMU_INLINE double double_in(const uint32_t* row, const Source& s, int lane) {
    const uint32_t high = (row[kLanes + lane] & s.keep) ^ s.flip;
    return as_double(static_cast<uint64_t>(high) << 32 | row[lane]);
}

// Integer source: flip of all ones means two's complement negation.
SM70EMU_INLINE uint32_t int_in(const uint32_t* row, const Source& s, int lane) {
    return (row[lane] ^ s.flip) - s.flip;
}

// c ? x : y with both sides evaluated, in a form that always vectorises: a conditional expression on floats may not,
// because the compiler must not raise floating-point exceptions of a side that is not chosen.
SM70EMU_INLINE uint32_t select(bool c, uint32_t x, uint32_t y) {
    const uint32_t mask = 0u - static_cast<uint32_t>(c);
    return (x & mask) | (y & ~mask);
}
SM70EMU_INLINE float select(bool c, float x, float y) {
    return as_float(select(c, as_bits(x), as_bits(y)));
}
SM70EMU_INLINE uint64_t select(bool c, uint64_t x, uint64_t y) {
    const uint64_t mask = uint64_t{0} - static_cast<uint64_t>(c);
    return (x & mask) | (y & ~mask);
}
SM70EMU_INLINE double select(bool c, double x, double y) {
    return as_double(select(c, as_bits(x), as_bits(y)));
}

// Handlers of one operation for each value of a compile-time mode.
template <template <int> class Operation, int... Modes>
Handler pick(int mode, std::integer_sequence<int, Modes...>) {
    static constexpr Handler handlers[] = {&Operation<Modes>::run...};
    return handlers[mode];
}
template <template <int> class Operation, int Count>
Handler pick(int mode) {
    return pick<Operation>(mode, std::make_integer_sequence<int, Count>{});
}
