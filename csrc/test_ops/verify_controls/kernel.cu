// verify with other numerics (ops/verify/numerics.cuh), for tests and measurements: two other ways to sum scores, and
// three controls, each with a fault that the tests of the shipped kernels must find.
#include "ops/verify/combine.cuh"
#include "ops/verify/verify.cuh"

namespace sm70::verify {

using None = Numerics<Compensation::kNone, true, ValueSums::kFresh, Partials::kNumerators>;
using Kahan = Numerics<Compensation::kKahan, true, ValueSums::kFresh, Partials::kNumerators>;
// One accumulator of the values over a whole row.
using Carried = Numerics<Compensation::kPlain, true, ValueSums::kLongLived, Partials::kNumerators>;
// Weights of one half, without a residual.
using Single = Numerics<Compensation::kPlain, false, ValueSums::kFresh, Partials::kNumerators>;
// Normalised partial results in FP16.
using Halves = Numerics<Compensation::kPlain, true, ValueSums::kFresh, Partials::kNormalisedHalves>;

}  // namespace sm70::verify

#define SM70_VERIFY_CONTROL(name, Numerics, head_dim, rows)                                                \
    extern "C" __global__ void __launch_bounds__(head_dim, 1)                                              \
        verify_##name##_e4m3_d##head_dim##_r##rows(const __grid_constant__ sm70::verify::VerifyParams p) { \
        sm70::verify::verify<sm70::E4M3, head_dim, (rows) / 8, sm70::verify::Numerics>(p);                 \
    }

#define SM70_VERIFY_CONTROLS(head_dim, rows)              \
    SM70_VERIFY_CONTROL(none, None, head_dim, rows)       \
    SM70_VERIFY_CONTROL(plain, Shipped, head_dim, rows)   \
    SM70_VERIFY_CONTROL(kahan, Kahan, head_dim, rows)     \
    SM70_VERIFY_CONTROL(carried, Carried, head_dim, rows) \
    SM70_VERIFY_CONTROL(single, Single, head_dim, rows)   \
    SM70_VERIFY_CONTROL(halves, Halves, head_dim, rows)

SM70_VERIFY_CONTROLS(64, 16)
SM70_VERIFY_CONTROLS(256, 16)
SM70_VERIFY_CONTROLS(256, 48)

extern "C" __global__ void __launch_bounds__(sm70::verify::kCombineThreads)
    verify_combine(const __grid_constant__ sm70::verify::CombineParams p) {
    sm70::verify::combine(p);
}
