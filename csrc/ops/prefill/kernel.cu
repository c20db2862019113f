// Entry points of the prefill operator. d is the head dimension, a the alignment of K and V in bytes.
#include "ops/prefill/attend.cuh"
#include "ops/prefill/combine.cuh"

#define SM70_PREFILL(head_dim, alignment)                                                            \
    extern "C" __global__ void __launch_bounds__(sm70::prefill::kThreads, 1)                         \
        prefill_d##head_dim##_a##alignment(const __grid_constant__ sm70::prefill::PrefillParams p) { \
        sm70::prefill::attend<head_dim, (alignment) == 16>(p);                                       \
    }

#define SM70_PREFILL_COMBINE(head_dim)                                                        \
    extern "C" __global__ void __launch_bounds__(sm70::prefill::kThreads, 1)                  \
        prefill_combine_d##head_dim(const __grid_constant__ sm70::prefill::CombineParams p) { \
        sm70::prefill::combine<head_dim>(p);                                                  \
    }

SM70_PREFILL(256, 16)
SM70_PREFILL(256, 8)
SM70_PREFILL(128, 16)
SM70_PREFILL(128, 8)
SM70_PREFILL(64, 16)
SM70_PREFILL(64, 8)
SM70_PREFILL_COMBINE(256)
SM70_PREFILL_COMBINE(128)
SM70_PREFILL_COMBINE(64)
