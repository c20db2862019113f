// Entry points of the decode operator. d is the head dimension, r the most query heads of a KV head.
#include "ops/decode/combine.cuh"
#include "ops/decode/scalar.cuh"
#include "ops/decode/xqa.cuh"

#define SM70_DECODE_XQA(name, Format, head_dim, rows)                                                      \
    extern "C" __global__ void __launch_bounds__(head_dim, sm70::decode::xqa_blocks(head_dim, (rows) / 8)) \
        decode_xqa_##name##_d##head_dim##_r##rows(const __grid_constant__ sm70::decode::DecodeParams p) {  \
        sm70::decode::xqa<sm70::Format, head_dim, (rows) / 8>(p);                                          \
    }

#define SM70_DECODE_SCALAR(name, Format, head_dim)                                                 \
    extern "C" __global__ void __launch_bounds__(head_dim, 1)                                      \
        decode_scalar_##name##_d##head_dim(const __grid_constant__ sm70::decode::DecodeParams p) { \
        sm70::decode::scalar<sm70::Format, head_dim>(p);                                           \
    }

#define SM70_DECODE_FORMAT(name, Format)   \
    SM70_DECODE_XQA(name, Format, 256, 8)  \
    SM70_DECODE_XQA(name, Format, 128, 8)  \
    SM70_DECODE_XQA(name, Format, 64, 8)   \
    SM70_DECODE_XQA(name, Format, 256, 16) \
    SM70_DECODE_XQA(name, Format, 128, 16) \
    SM70_DECODE_XQA(name, Format, 64, 16)  \
    SM70_DECODE_SCALAR(name, Format, 256)  \
    SM70_DECODE_SCALAR(name, Format, 128)  \
    SM70_DECODE_SCALAR(name, Format, 64)

SM70_DECODE_FORMAT(e4m3, E4M3)
SM70_DECODE_FORMAT(e5m2, E5M2)
SM70_DECODE_FORMAT(fp16, Fp16)

extern "C" __global__ void __launch_bounds__(32 * sm70::decode::kCombineMaxWarps)
    decode_combine(const __grid_constant__ sm70::decode::CombineParams p) {
    sm70::decode::combine(p);
}
