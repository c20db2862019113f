#include "emulator/numeric.h"

#include <cfenv>
#include <cmath>

#include "emulator/error.h"

namespace sm70emu {

std::string hex(unsigned long long value) {
    static const char digits[] = "0123456789abcdef";
    std::string text;
    do {
        text.insert(text.begin(), digits[value & 15]);
        value >>= 4;
    } while (value);
    return "0x" + text;
}

uint64_t round_to_format(const Exact& value, FloatFormat format, Rounding mode) {
    const int stored = format.significand_bits - 1;
    const int sign_shift = format.significand_bits == 53 ? 63 : format.significand_bits == 24 ? 31 : 15;
    const uint64_t sign = static_cast<uint64_t>(value.negative) << sign_shift;
    const uint64_t infinity = static_cast<uint64_t>(2 * format.max_exponent + 1) << stored;
    const bool away = (mode == Rounding::Up && !value.negative) || (mode == Rounding::Down && value.negative);
    if (value.significand == 0) return sign | (value.sticky && away ? 1 : 0);

    const int leading = 63 - __builtin_clzll(value.significand);
    const int min_exponent = 1 - format.max_exponent;
    // Weight of the last kept bit: precision below the leading bit, but not below the subnormal spacing.
    int quantum = leading + value.exponent - stored;
    if (quantum < min_exponent - stored) quantum = min_exponent - stored;
    const int drop = quantum - value.exponent;
    uint64_t kept;
    bool half = false, rest = value.sticky;
    if (drop <= 0) {
        kept = value.significand << -drop;  // exact: the leading bit stays within the precision
    } else if (drop > 64) {
        kept = 0;
        rest = true;
    } else {
        kept = drop == 64 ? 0 : value.significand >> drop;
        half = (value.significand >> (drop - 1)) & 1;
        rest |= (value.significand & ((uint64_t{1} << (drop - 1)) - 1)) != 0;
    }
    if (mode == Rounding::Nearest ? half && (rest || (kept & 1)) : away && (half || rest)) ++kept;
    if (kept == 0) return sign;
    if (kept >> format.significand_bits) {
        kept >>= 1;
        ++quantum;
    }
    const int exponent = 63 - __builtin_clzll(kept) + quantum;
    if (exponent > format.max_exponent) {
        const bool to_infinity = mode == Rounding::Nearest || away;
        return sign | (to_infinity ? infinity : infinity - 1);
    }
    if (!(kept >> stored)) return sign | kept;  // subnormal
    return sign | (static_cast<uint64_t>(exponent + format.max_exponent) << stored) |
           (kept & ((uint64_t{1} << stored) - 1));
}

Exact exact_of(double finite) {
    const uint64_t bits = as_bits(finite);
    const int field = static_cast<int>(bits >> 52) & 0x7ff;
    const uint64_t fraction = bits & ((uint64_t{1} << 52) - 1);
    Exact value;
    value.negative = bits >> 63;
    value.significand = field ? fraction | (uint64_t{1} << 52) : fraction;
    value.exponent = (field ? field : 1) - 1075;
    return value;
}

Exact exact_of_integer(uint64_t magnitude, bool negative) {
    return {negative, magnitude, 0, false};
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
    if (exponent == 31) return as_float(sign | 0x7f800000 | fraction << 13);
    if (exponent) return as_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return as_float(sign | as_bits(magnitude));
}

uint16_t double_to_half(double value, Rounding mode) {
    if (value != value) return kCanonicalNaN16;
    if (std::isinf(value)) return value < 0 ? 0xfc00 : 0x7c00;
    return static_cast<uint16_t>(round_to_format(exact_of(value), kHalf, mode));
}

uint16_t float_to_half(float value) {
    return double_to_half(static_cast<double>(value), Rounding::Nearest);
}

float double_to_float(double value, Rounding mode) {
    if (value != value) return as_float(kCanonicalNaN32);
    if (std::isinf(value)) return static_cast<float>(value);
    return as_float(static_cast<uint32_t>(round_to_format(exact_of(value), kSingle, mode)));
}

namespace {

// Sum of two finite doubles with what the rounding lost kept as a sticky bit (round to odd).
double add_to_odd(double a, double b) {
    const double sum = a + b;
    if (std::isinf(sum) || sum != sum) return sum;
    const double b_part = sum - a;
    const double error = (a - (sum - b_part)) + (b - b_part);
    uint64_t bits = as_bits(sum);
    if (error != 0 && !(bits & 1)) {
        // Move one unit toward the exact value: the neighbour has an odd last bit.
        const bool larger_magnitude = (error > 0) == (sum > 0);
        bits = larger_magnitude ? bits + 1 : bits - 1;
    }
    return as_double(bits);
}

// Sign of an exact zero sum in a directed mode.
double zero_sum(double a, double b, Rounding mode) {
    if (std::signbit(a) == std::signbit(b)) return a;
    return mode == Rounding::Down ? -0.0 : 0.0;
}

// Runs an operation on doubles under a rounding mode of the machine.
template <class Operation>
double under_mode(Rounding mode, Operation operation) {
    const int modes[] = {FE_TONEAREST, FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO};
    const int before = std::fegetround();
    std::fesetround(modes[static_cast<int>(mode)]);
    const double result = operation();
    std::fesetround(before);
    return result;
}

double canonical(double value) {
    return value != value ? as_double(kCanonicalNaN64) : value;
}

}  // namespace

float add_directed(float a, float b, Rounding mode) {
    const double sum = add_to_odd(a, b);
    if (sum == 0) return static_cast<float>(zero_sum(a, b, mode));
    return double_to_float(sum, mode);
}

float mul_directed(float a, float b, Rounding mode) {
    return double_to_float(static_cast<double>(a) * static_cast<double>(b), mode);
}

float fma_directed(float a, float b, float c, Rounding mode) {
    const double product = static_cast<double>(a) * static_cast<double>(b);
    const double sum = add_to_odd(product, c);
    if (sum == 0) return static_cast<float>(zero_sum(product, c, mode));
    return double_to_float(sum, mode);
}

// volatile keeps the operation between the two changes of mode.
double fma_directed(double a, double b, double c, Rounding mode) {
    volatile double x = a, y = b, z = c;
    return canonical(under_mode(mode, [&] {
        volatile double result = std::fma(x, y, z);
        return result;
    }));
}
double add_directed(double a, double b, Rounding mode) {
    volatile double x = a, y = b;
    return canonical(under_mode(mode, [&] {
        volatile double result = x + y;
        return result;
    }));
}
double mul_directed(double a, double b, Rounding mode) {
    volatile double x = a, y = b;
    return canonical(under_mode(mode, [&] {
        volatile double result = x * y;
        return result;
    }));
}

double round_to_integral(double value, Rounding mode) {
    switch (mode) {
        case Rounding::Down: return std::floor(value);
        case Rounding::Up: return std::ceil(value);
        case Rounding::Zero: return std::trunc(value);
        case Rounding::Nearest: break;
    }
    if (!(std::fabs(value) < 0x1p52)) return value;
    const double shifted = std::copysign(0x1p52, value);
    volatile double sum = value + shifted;  // the addition rounds to an integer, ties to even
    return std::copysign(std::fabs(sum - shifted), value);
}

uint64_t double_to_integer(double value, int bits, bool is_signed, Rounding mode) {
    if (value != value) return bits == 64 ? uint64_t{1} << 63 : 0;
    const double rounded = round_to_integral(value, mode);
    const double limit = std::ldexp(1.0, is_signed ? bits - 1 : bits);
    const uint64_t mask = bits == 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
    if (is_signed) {
        if (rounded >= limit) return mask >> 1;
        if (rounded < -limit) return (mask >> 1) + 1;
        return static_cast<uint64_t>(static_cast<int64_t>(rounded)) & mask;
    }
    if (rounded >= limit) return mask;
    return rounded <= 0 ? 0 : static_cast<uint64_t>(rounded);
}

}  // namespace sm70emu
