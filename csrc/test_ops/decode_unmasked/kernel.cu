// decode without the mask of the tail: what the poison tests must find. Beside it the kernel with the mask, so that
// what they find is the missing mask and nothing else.
#include "ops/decode/xqa.cuh"
#include "test_ops/decode_unmasked/params.h"

using sm70::decode_unmasked::kHeadDim;
using sm70::decode_unmasked::kRowTiles;
using sm70::decode_unmasked::Params;

#define SM70_DECODE_PAIR(name, Format)                                                                                \
    extern "C" __global__ void __launch_bounds__(kHeadDim) decode_masked_##name(const __grid_constant__ Params p) {   \
        sm70::decode::xqa<sm70::Format, kHeadDim, kRowTiles>(p);                                                      \
    }                                                                                                                 \
    extern "C" __global__ void __launch_bounds__(kHeadDim) decode_unmasked_##name(const __grid_constant__ Params p) { \
        sm70::decode::xqa<sm70::Format, kHeadDim, kRowTiles, /*kMasksTail=*/false>(p);                                \
    }

SM70_DECODE_PAIR(e4m3, E4M3)
SM70_DECODE_PAIR(fp16, Fp16)
