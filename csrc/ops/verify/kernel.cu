// Entry points of the verify operator. d is the head dimension, r the rows (query rows x heads of a group) of a block.
#include "ops/verify/combine.cuh"
#include "ops/verify/verify.cuh"

#define SM70_VERIFY(name, Format, head_dim, rows)                                                     \
    extern "C" __global__ void __launch_bounds__(head_dim, 256 / (head_dim))                          \
        verify_##name##_d##head_dim##_r##rows(const __grid_constant__ sm70::verify::VerifyParams p) { \
        sm70::verify::verify<sm70::Format, head_dim, (rows) / 8>(p);                                  \
    }

#define SM70_VERIFY_FORMAT(name, Format) \
    SM70_VERIFY(name, Format, 256, 16)   \
    SM70_VERIFY(name, Format, 256, 32)   \
    SM70_VERIFY(name, Format, 256, 48)   \
    SM70_VERIFY(name, Format, 128, 16)   \
    SM70_VERIFY(name, Format, 128, 32)   \
    SM70_VERIFY(name, Format, 128, 48)   \
    SM70_VERIFY(name, Format, 64, 16)    \
    SM70_VERIFY(name, Format, 64, 32)    \
    SM70_VERIFY(name, Format, 64, 48)

SM70_VERIFY_FORMAT(e4m3, E4M3)
SM70_VERIFY_FORMAT(e5m2, E5M2)

extern "C" __global__ void __launch_bounds__(sm70::verify::kCombineThreads)
    verify_combine(const __grid_constant__ sm70::verify::CombineParams p) {
    sm70::verify::combine(p);
}
