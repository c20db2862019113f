// Entry points of the kv_cache operator. The number is how many elements a thread moves at once (vector.cuh).
#include "ops/kv_cache/gather.cuh"
#include "ops/kv_cache/write.cuh"

#define SM70_KV_CACHE_KERNELS(name, Format, width)                                                       \
    extern "C" __global__ void __launch_bounds__(sm70::kv_cache::kThreads)                               \
        kv_cache_gather_##name##_x##width(const __grid_constant__ sm70::kv_cache::GatherParams params) { \
        sm70::kv_cache::gather<sm70::Format, width>(params);                                             \
    }                                                                                                    \
    extern "C" __global__ void __launch_bounds__(sm70::kv_cache::kThreads, 8)                            \
        kv_cache_write_##name##_x##width(const __grid_constant__ sm70::kv_cache::WriteParams params) {   \
        sm70::kv_cache::write<sm70::Format, width>(params);                                              \
    }

SM70_KV_CACHE_KERNELS(e4m3, E4M3, 8)
SM70_KV_CACHE_KERNELS(e4m3, E4M3, 1)
SM70_KV_CACHE_KERNELS(e5m2, E5M2, 8)
SM70_KV_CACHE_KERNELS(e5m2, E5M2, 1)
SM70_KV_CACHE_KERNELS(fp16, Fp16, 8)
SM70_KV_CACHE_KERNELS(fp16, Fp16, 1)
