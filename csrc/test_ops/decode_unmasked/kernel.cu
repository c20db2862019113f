// decode without the mask of the tail: what the poison tests must find. Beside it the kernel with the mask, so that
// what they find is the missing mask and nothing else.
#include "ops/decode/xqa.cuh"

#define SM70_DECODE_PAIR(name, Format)                                                 \
    extern "C" __global__ void __launch_bounds__(64)                                   \
        decode_masked_##name(const __grid_constant__ sm70::decode::DecodeParams p) {   \
        sm70::decode::xqa<sm70::Format, 64, 1>(p);                                     \
    }                                                                                  \
    extern "C" __global__ void __launch_bounds__(64)                                   \
        decode_unmasked_##name(const __grid_constant__ sm70::decode::DecodeParams p) { \
        sm70::decode::xqa<sm70::Format, 64, 1, /*kMasksTail=*/false>(p);               \
    }

SM70_DECODE_PAIR(e4m3, E4M3)
SM70_DECODE_PAIR(fp16, Fp16)
