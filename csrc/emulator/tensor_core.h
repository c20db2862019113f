// Volta's tensor core: HMMA.884, one step of an 8x8x4 multiply-accumulate per quad-pair.
//
// Arithmetic (Fasi, Higham, Mikaitis, Pranesh, "Numerical behavior of NVIDIA tensor cores", PeerJ CS 7:e330, 2021): the
// four products are exact; they and the accumulator are aligned to the largest exponent and truncated there to 24 bits,
// with no guard bits; the sum may grow to the left and is normalised once. A single-precision result is
// rounded toward zero, a half-precision one to nearest. Subnormals are kept.
#pragma once

#include <cstdint>

#include "emulator/machine.h"

namespace sm70emu {

struct HmmaForm {
    bool a_column = false;  // A fragment is column-major (.COL)
    bool b_row = false;     // B fragment is row-major (.ROW)
    bool d_half = false;    // F16 accumulate: two steps of two registers
    bool c_half = false;
    int step = 0;
};

// c + the sum of the four products, exactly as one output element of the tensor core; inputs are halves widened to
// float.
float tensor_dot(const float* a, const float* b, float c, TensorRounding rounding);
// Same with a half-precision result (bits).
uint16_t tensor_dot_half(const float* a, const float* b, float c, TensorRounding rounding);

// Executes a step for all lanes: rows of 32 lanes, A and B two rows each, C and D as the form says.
using HmmaStep = void (*)(const HmmaForm& form, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,
                          TensorRounding rounding);
void hmma_step_scalar(const HmmaForm& form, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,
                      TensorRounding rounding);
void hmma_step_avx2(const HmmaForm& form, const uint32_t* a, const uint32_t* b, const uint32_t* c, uint32_t* d,
                    TensorRounding rounding);

// The lane maps, in lanes of a quad-pair: local lane i is warp lane 4q + i for i < 4, else 16 + 4q + i - 4.

inline int quad_pair_lane(int quad_pair, int local) {
    return 4 * quad_pair + (local & 3) + (local & 4) * 4;
}

// Row and column of output element e (0 or 1) of a single-precision step, for local lane i.
inline int step_row(int step, int i) {
    return (i & 1) + (step & 1) * 2 + (i & 4);
}
inline int step_column(int step, int i, int e) {
    return (step & 2) * 2 + (i & 2) + e;
}

}  // namespace sm70emu
