// What the operations of random programs are written with, where CUDA C++ has no word for them.
#include <cuda_fp16.h>

typedef unsigned long long wide;

#define INLINE __device__ __forceinline__

// --- floats and their bits; a NaN has no bits that two devices need agree on, so it gets some
INLINE float from_bits(unsigned x) {
    return __uint_as_float(x);
}
INLINE unsigned bits_of(float x) {
    return x != x ? 0x7fffffffu : __float_as_uint(x);
}
INLINE __half2 pair_from_bits(unsigned x) {
    return *reinterpret_cast<__half2*>(&x);
}
INLINE unsigned raw_bits(__half2 x) {
    return *reinterpret_cast<unsigned*>(&x);
}
INLINE unsigned bits_of(__half2 x) {
    const unsigned raw = raw_bits(x);
    const unsigned low = (raw & 0x7fffu) > 0x7c00u ? 0x7fffu : raw & 0xffffu;
    const unsigned high = (raw & 0x7fff0000u) > 0x7c000000u ? 0x7fff0000u : raw & 0xffff0000u;
    return high | low;
}

#define UNARY(NAME, TYPE, LETTER, INSTRUCTION)                   \
    INLINE TYPE NAME(TYPE a) {                                   \
        TYPE d;                                                  \
        asm(INSTRUCTION " %0, %1;" : "=" LETTER(d) : LETTER(a)); \
        return d;                                                \
    }
#define BINARY(NAME, TYPE, LETTER, INSTRUCTION)                                 \
    INLINE TYPE NAME(TYPE a, TYPE b) {                                          \
        TYPE d;                                                                 \
        asm(INSTRUCTION " %0, %1, %2;" : "=" LETTER(d) : LETTER(a), LETTER(b)); \
        return d;                                                               \
    }
#define TERNARY(NAME, TYPE, LETTER, INSTRUCTION)                                               \
    INLINE TYPE NAME(TYPE a, TYPE b, TYPE c) {                                                 \
        TYPE d;                                                                                \
        asm(INSTRUCTION " %0, %1, %2, %3;" : "=" LETTER(d) : LETTER(a), LETTER(b), LETTER(c)); \
        return d;                                                                              \
    }

// --- integers
template <int TABLE>
INLINE unsigned logic3(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(c), "n"(TABLE));
    return d;
}
template <int SELECTOR>
INLINE unsigned permute_fixed(unsigned a, unsigned b) {
    unsigned d;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "n"(SELECTOR));
    return d;
}
TERNARY(permute, unsigned, "r", "prmt.b32")
TERNARY(permute_f4e, unsigned, "r", "prmt.b32.f4e")
TERNARY(permute_b4e, unsigned, "r", "prmt.b32.b4e")
TERNARY(permute_rc8, unsigned, "r", "prmt.b32.rc8")
TERNARY(permute_ecl, unsigned, "r", "prmt.b32.ecl")
TERNARY(permute_ecr, unsigned, "r", "prmt.b32.ecr")
TERNARY(permute_rc16, unsigned, "r", "prmt.b32.rc16")
TERNARY(field_unsigned, unsigned, "r", "bfe.u32")
TERNARY(field_signed, unsigned, "r", "bfe.s32")
INLINE unsigned insert_field(unsigned a, unsigned b, unsigned start, unsigned length) {
    unsigned d;
    asm("bfi.b32 %0, %1, %2, %3, %4;" : "=r"(d) : "r"(a), "r"(b), "r"(start), "r"(length));
    return d;
}
BINARY(ones_clamped, unsigned, "r", "bmsk.clamp.b32")
BINARY(ones_wrapped, unsigned, "r", "bmsk.wrap.b32")
BINARY(extended_clamped, unsigned, "r", "szext.clamp.u32")
BINARY(extended_clamped_signed, unsigned, "r", "szext.clamp.s32")
BINARY(extended_wrapped, unsigned, "r", "szext.wrap.u32")
BINARY(extended_wrapped_signed, unsigned, "r", "szext.wrap.s32")
UNARY(leading_one, unsigned, "r", "bfind.u32")
UNARY(leading_difference, unsigned, "r", "bfind.s32")
UNARY(leading_one_shift, unsigned, "r", "bfind.shiftamt.u32")
UNARY(absolute, unsigned, "r", "abs.s32")
TERNARY(multiply_high_add, unsigned, "r", "mad.hi.u32")
TERNARY(multiply_high_add_signed, unsigned, "r", "mad.hi.s32")
TERNARY(difference_sum, unsigned, "r", "sad.u32")
TERNARY(difference_sum_signed, unsigned, "r", "sad.s32")
BINARY(shift_left_clamped, unsigned, "r", "shl.b32")
BINARY(shift_right_clamped, unsigned, "r", "shr.u32")
BINARY(shift_right_clamped_signed, unsigned, "r", "shr.s32")
// The sum of two 96-bit numbers, of which the upper word is returned: carries go through three additions.
INLINE unsigned carry_chain(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("{ .reg .u32 t; add.cc.u32 t, %1, %2; addc.cc.u32 t, %2, %3; addc.u32 %0, %3, %1; }"
        : "=r"(d)
        : "r"(a), "r"(b), "r"(c));
    return d;
}
INLINE unsigned borrow_chain(unsigned a, unsigned b, unsigned c) {
    unsigned d;
    asm("{ .reg .u32 t; sub.cc.u32 t, %1, %2; subc.cc.u32 t, %2, %3; subc.u32 %0, %3, %1; }"
        : "=r"(d)
        : "r"(a), "r"(b), "r"(c));
    return d;
}
INLINE wide multiply_wide(unsigned a, unsigned b) {
    return (wide)a * b;
}
INLINE wide multiply_wide_signed(unsigned a, unsigned b) {
    return (wide)((long long)(int)a * (int)b);
}

// --- single precision
#define SINGLE2(NAME, INSTRUCTION) BINARY(NAME, float, "f", INSTRUCTION)
#define SINGLE3(NAME, INSTRUCTION) TERNARY(NAME, float, "f", INSTRUCTION)
SINGLE2(add_ftz, "add.rn.ftz.f32")
SINGLE2(add_rz_ftz, "add.rz.ftz.f32")
SINGLE2(add_sat, "add.rn.sat.f32")
SINGLE2(multiply_ftz, "mul.rn.ftz.f32")
SINGLE2(multiply_rz_ftz, "mul.rz.ftz.f32")
SINGLE2(multiply_sat, "mul.rn.sat.f32")
SINGLE3(fused_ftz, "fma.rn.ftz.f32")
SINGLE3(fused_rz_ftz, "fma.rz.ftz.f32")
SINGLE3(fused_sat, "fma.rn.sat.f32")
SINGLE3(fused_ftz_sat, "fma.rn.ftz.sat.f32")
SINGLE2(minimum_ftz, "min.ftz.f32")
SINGLE2(maximum_ftz, "max.ftz.f32")
SINGLE2(set_less, "set.lt.f32.f32")
SINGLE2(set_greater_or_unordered_ftz, "set.gtu.ftz.f32.f32")
INLINE unsigned set_equal_mask(float a, float b) {
    unsigned d;
    asm("set.eq.u32.f32 %0, %1, %2;" : "=r"(d) : "f"(a), "f"(b));
    return d;
}
INLINE bool less_ftz(float a, float b) {
    unsigned d;
    asm("{ .reg .pred p; setp.lt.ftz.f32 p, %1, %2; selp.u32 %0, 1, 0, p; }" : "=r"(d) : "f"(a), "f"(b));
    return d;
}
// Two comparisons joined in one instruction.
INLINE bool less_and(float a, float b, bool c) {
    unsigned d;
    asm("{ .reg .pred p, q; setp.ne.u32 q, %3, 0; setp.lt.and.f32 p, %1, %2, q; selp.u32 %0, 1, 0, p; }"
        : "=r"(d)
        : "f"(a), "f"(b), "r"((unsigned)c));
    return d;
}
INLINE bool equal_xor(unsigned a, unsigned b, bool c) {
    unsigned d;
    asm("{ .reg .pred p, q; setp.ne.u32 q, %3, 0; setp.eq.xor.u32 p, %1, %2, q; selp.u32 %0, 1, 0, p; }"
        : "=r"(d)
        : "r"(a), "r"(b), "r"((unsigned)c));
    return d;
}
// A number in [1, 2) from any bits, and one of either sign within a few powers of two of one.
INLINE float between_one_and_two(unsigned x) {
    return __uint_as_float((x & 0x007fffffu) | 0x3f800000u);
}
INLINE float ordinary(unsigned x) {
    return __uint_as_float((x & 0x83ffffffu) + 0x3e000000u);
}

// --- half precision
INLINE __half2 ordinary_pair(unsigned x) {
    return pair_from_bits((x & 0x8fff8fffu) + 0x34003400u);
}

// --- exchange between the lanes of a mask; what a lane outside the mask holds is not known, so it is not taken
template <class T>
INLINE T if_member(unsigned mask, unsigned from, bool own, T got, T value) {
    return own || (mask >> (from & 31u) & 1u) ? got : value;
}
template <int WIDTH, class T>
INLINE T shuffle_index(unsigned mask, unsigned lane, T value, unsigned which) {
    const unsigned from = (lane & ~(WIDTH - 1u)) | (which & (WIDTH - 1u));
    return if_member(mask, from, false, __shfl_sync(mask, value, (int)(which & 31u), WIDTH), value);
}
template <int WIDTH, class T>
INLINE T shuffle_up(unsigned mask, unsigned lane, T value, unsigned by) {
    by &= 31u;
    const bool own = (lane & (WIDTH - 1u)) < by;
    return if_member(mask, lane - by, own, __shfl_up_sync(mask, value, by, WIDTH), value);
}
template <int WIDTH, class T>
INLINE T shuffle_down(unsigned mask, unsigned lane, T value, unsigned by) {
    by &= 31u;
    const bool own = (lane & (WIDTH - 1u)) + by >= WIDTH;
    return if_member(mask, lane + by, own, __shfl_down_sync(mask, value, by, WIDTH), value);
}
template <int WIDTH, class T>
INLINE T shuffle_xor(unsigned mask, unsigned lane, T value, unsigned with) {
    with &= 31u;
    const bool own = (lane ^ with) > (lane | (WIDTH - 1u));
    return if_member(mask, lane ^ with, own, __shfl_xor_sync(mask, value, (int)with, WIDTH), value);
}
