// Exact conversions and directed roundings for scalars. The vector loops of the opcode families handle the common
// round-to-nearest cases themselves; everything rare goes through one rounding routine here.
#pragma once

#include <cstdint>
#include <cstring>

namespace sm70emu {

enum class Rounding : uint8_t { Nearest, Down, Up, Zero };  // .RN .RM .RP .RZ

constexpr uint32_t kCanonicalNaN32 = 0x7fffffffu;
constexpr uint16_t kCanonicalNaN16 = 0x7fffu;
constexpr uint64_t kCanonicalNaN64 = 0xfff8000000000000ull;

inline float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
inline uint32_t as_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}
inline double as_double(uint64_t bits) {
    double value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}
inline uint64_t as_bits(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// A finite number (-1)^negative * significand * 2^exponent, plus "a little more in magnitude" if sticky.
struct Exact {
    bool negative = false;
    uint64_t significand = 0;
    int exponent = 0;
    bool sticky = false;
};

struct FloatFormat {
    int significand_bits;  // with the hidden bit
    int max_exponent;      // of a normal number's leading bit; also the bias
};
constexpr FloatFormat kHalf{11, 15}, kSingle{24, 127}, kDouble{53, 1023};

// Bits of the number in the format, correctly rounded; overflow goes to infinity or the largest finite number as the
// mode says; a zero keeps the sign.
uint64_t round_to_format(const Exact& value, FloatFormat format, Rounding mode);

Exact exact_of(double finite);

float half_to_float(uint16_t bits);
// Round to nearest even; NaN becomes 0x7fff.
uint16_t float_to_half(float value);
uint16_t double_to_half(double value, Rounding mode);
float double_to_float(double value, Rounding mode);

// a*b + c rounded once in the given direction; a*b for c = -0 with the sign rule of a product is the caller's concern.
float fma_directed(float a, float b, float c, Rounding mode);
float mul_directed(float a, float b, Rounding mode);
float add_directed(float a, float b, Rounding mode);
double fma_directed(double a, double b, double c, Rounding mode);
double add_directed(double a, double b, Rounding mode);
double mul_directed(double a, double b, Rounding mode);

// Rounds to an integral value in the given mode.
double round_to_integral(double value, Rounding mode);

// Saturating conversion to an integer of the given width; NaN gives 0 or, for 64 bits, the sign bit, as PTX states.
uint64_t double_to_integer(double value, int bits, bool is_signed, Rounding mode);

Exact exact_of_integer(uint64_t magnitude, bool negative);

}  // namespace sm70emu
