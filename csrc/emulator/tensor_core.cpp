#include "emulator/tensor_core.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "emulator/binder.h"
#include "emulator/numeric.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace {

constexpr int kBias = 127;
constexpr int kFractionBits = 23;             // kept below the largest exponent
constexpr int kMinHalfExponent = kBias - 14;  // biased exponent of the smallest normal half, and of subnormal halves

int exponent_field(float x) {
    return static_cast<int>(as_bits(x) >> 23 & 0xff);
}

struct AlignedSum {
    int64_t sum = 0;   // in units of 2^(exponent - 23)
    int exponent = 0;  // largest, biased as a float's
    bool special = false;
    float special_value = 0;
};

AlignedSum align_and_sum(const float* a, const float* b, float c) {
    AlignedSum r;
    float products[4];
    float ieee = c;
    bool finite = exponent_field(c) != 255;
    int largest = c != 0 ? std::max(exponent_field(c), 1) : 0;
    bool any_product = false;
    for (int k = 0; k < 4; ++k) {
        products[k] = a[k] * b[k];  // 22 bits: exact
        ieee += products[k];
        finite &= exponent_field(a[k]) != 255 && exponent_field(b[k]) != 255;
        if (products[k] == 0) continue;
        any_product = true;
        // Products are not normalised before alignment: their exponent is the sum of the factors'.
        largest = std::max(largest, std::max(exponent_field(a[k]), kMinHalfExponent) +
                                        std::max(exponent_field(b[k]), kMinHalfExponent) - kBias);
    }
    if (!finite || !any_product) {
        r.special = true;
        r.special_value = finite ? (c == 0 ? 0.0f : c) : ieee;
        return r;
    }
    r.exponent = largest;
    const double scale = std::ldexp(1.0, kFractionBits - (largest - kBias));
    r.sum = static_cast<int64_t>(static_cast<double>(c) * scale);
    for (const float product : products) r.sum += static_cast<int64_t>(static_cast<double>(product) * scale);
    return r;
}

double exact_sum(const float* a, const float* b, float c) {
    double sum = c;
    for (int k = 0; k < 4; ++k) sum += static_cast<double>(a[k]) * static_cast<double>(b[k]);
    return sum == 0 ? 0.0 : sum;
}

// The value of an aligned sum as a double, which holds it exactly.
double value_of(const AlignedSum& r) {
    return r.special ? static_cast<double>(r.special_value)
                     : std::ldexp(static_cast<double>(r.sum), r.exponent - kBias - kFractionBits);
}

float half_of(const uint32_t* rows, int index, int lane) {
    const uint32_t word = rows[(index >> 1) * kLanes + lane];
    return half_to_float(static_cast<uint16_t>(index & 1 ? word >> 16 : word));
}

}  // namespace

float tensor_dot(const float* a, const float* b, float c, TensorRounding rounding) {
    if (rounding == TensorRounding::Nearest) return double_to_float(exact_sum(a, b, c), Rounding::Nearest);
    const double value = value_of(align_and_sum(a, b, c));
    if (value == 0) return 0.0f;
    const float r = double_to_float(value, Rounding::Zero);
    // A sum beyond the range overflows to infinity.
    return std::fabs(value) >= 0x1p128 ? (value > 0 ? INFINITY : -INFINITY) : r;
}

uint16_t tensor_dot_half(const float* a, const float* b, float c, TensorRounding rounding) {
    const double value = rounding == TensorRounding::Nearest ? exact_sum(a, b, c) : value_of(align_and_sum(a, b, c));
    return double_to_half(value, Rounding::Nearest);
}

void hmma_step_scalar(const HmmaForm& form, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,
                      TensorRounding rounding) {
    uint32_t result[2][kLanes];
    for (int q = 0; q < 4; ++q) {
        float rows[8][4], columns[8][4];
        for (int i = 0; i < 8; ++i) {
            for (int k = 0; k < 4; ++k) {
                rows[i][k] = form.a_column ? half_of(a, i & 3, quad_pair_lane(q, k + (i & 4)))
                                           : half_of(a, k, quad_pair_lane(q, i));
                columns[i][k] = form.b_row ? half_of(b, i & 3, quad_pair_lane(q, k + (i & 4)))
                                           : half_of(b, k, quad_pair_lane(q, i));
            }
        }
        for (int i = 0; i < 8; ++i) {
            const int lane = quad_pair_lane(q, i);
            if (form.d_half) {
                for (int word = 0; word < 2; ++word) {
                    uint32_t packed = 0;
                    for (int e = 0; e < 2; ++e) {
                        const int element = 2 * word + e;
                        const uint16_t r = tensor_dot_half(rows[i], columns[4 * form.step + element],
                                                           half_of(c, element, lane), rounding);
                        packed |= static_cast<uint32_t>(r) << (16 * e);
                    }
                    result[word][lane] = packed;
                }
                continue;
            }
            const int row = step_row(form.step, i);
            for (int e = 0; e < 2; ++e) {
                const int column = step_column(form.step, i, e);
                const float addend =
                    form.c_half ? half_of(c, column & 3, quad_pair_lane(q, row)) : as_float(c[e * kLanes + lane]);
                const float r = tensor_dot(rows[row], columns[column], addend, rounding);
                result[e][lane] = r == r ? as_bits(r) : kCanonicalNaN32;
            }
        }
    }
    for (int word = 0; word < 2; ++word) std::copy_n(result[word], kLanes, d + word * kLanes);
}

namespace {

template <HmmaStep Step>
void run_hmma(Core& core, const Instruction& in, uint32_t exec) {
    if (exec != kAllLanes) fail("HMMA needs all 32 lanes, " + std::to_string(__builtin_popcount(exec)) + " execute it");
    HmmaForm form;
    form.a_column = in.mode & 1;
    form.b_row = in.mode & 2;
    form.d_half = in.mode & 4;
    form.c_half = in.mode & 8;
    form.step = in.width;
    Step(form, core.row(in.a), core.row(in.b), core.row(in.c), core.destination(in.destination), core.tensor_rounding);
}

Source fragment(Binder& b, bool& column) {
    const Operand& operand = b.next(OperandKind::Register);
    auto suffixes = operand.suffixes;
    column = Binder::take_suffix(suffixes, "COL");
    if (!column && !Binder::take_suffix(suffixes, "ROW")) b.refuse("operand '" + operand.text + "' lacks .ROW or .COL");
    if (!suffixes.empty() || operand.negate || operand.absolute || operand.invert) {
        b.refuse("operand '" + operand.text + "'");
    }
    Source source;
    if (operand.index >= 0) {
        source.row = b.register_row(operand, 2);
        source.space = 0;
    }
    return source;
}

template <HmmaStep Step>
void bind_hmma(Binder& b) {
    if (!b.take("884")) b.refuse("HMMA other than .884");
    const std::string d_type = b.next_modifier(), c_type = b.next_modifier();
    const bool d_half = d_type == "F16", c_half = c_type == "F16";
    if ((!d_half && d_type != "F32") || (!c_half && c_type != "F32") || (d_half && !c_half)) {
        b.refuse("HMMA." + d_type + "." + c_type);
    }
    const int step = b.require({"STEP0", "STEP1", "STEP2", "STEP3"});
    if (d_half && step > 1) b.refuse("HMMA.F16 has two steps");
    b.out.destination = b.destination(2);
    bool a_column = false, b_column = false;
    b.out.a = fragment(b, a_column);
    b.out.b = fragment(b, b_column);
    b.out.c = b.bits(2);
    b.out.mode = static_cast<uint8_t>((a_column ? 1 : 0) | (b_column ? 0 : 2) | (d_half ? 4 : 0) | (c_half ? 8 : 0));
    b.out.width = static_cast<uint8_t>(step);
    b.handler(&run_hmma<Step>);
}

constexpr Opcode kOpcodesAvx2[] = {{"HMMA", bind_hmma<hmma_step_avx2>}};
constexpr Opcode kOpcodesScalar[] = {{"HMMA", bind_hmma<hmma_step_scalar>}};

}  // namespace

OpcodeFamily tensor_family_avx2() {
    return {kOpcodesAvx2, std::size(kOpcodesAvx2)};
}
OpcodeFamily tensor_family_scalar() {
    return {kOpcodesScalar, std::size(kOpcodesScalar)};
}

}  // namespace sm70emu
