// Kernels with one planted fault each. A memory check that does not report them checks nothing.
#include "test_ops/canary/params.h"

using sm70::canary::kThreads;
using sm70::canary::Params;

// No fault: what every check must stay silent about.
extern "C" __global__ void __launch_bounds__(kThreads) canary_none(const __grid_constant__ Params params) {
    if (threadIdx.x < params.elements) params.out[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
}

// Writes one element past the end of `out`. For memcheck.
extern "C" __global__ void __launch_bounds__(kThreads) canary_out_of_bounds(const __grid_constant__ Params params) {
    if (threadIdx.x <= params.elements) params.out[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
}

// Reads a neighbour's shared-memory element without a barrier after the writes. For racecheck.
extern "C" __global__ void __launch_bounds__(kThreads) canary_shared_race(const __grid_constant__ Params params) {
    __shared__ int32_t values[kThreads];
    values[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
    const int32_t neighbour = values[kThreads - 1 - threadIdx.x];
    if (threadIdx.x < params.elements) params.out[threadIdx.x] = neighbour;
}

// Reads `out`, which nothing has written when the caller allocated it with torch.empty. For initcheck.
extern "C" __global__ void __launch_bounds__(kThreads) canary_uninitialised(const __grid_constant__ Params params) {
    if (threadIdx.x < params.elements) ++params.out[threadIdx.x];
}

// Half of a warp waits at a block-wide barrier that the other half never reaches. For synccheck.
extern "C" __global__ void __launch_bounds__(kThreads) canary_divergent_barrier(const __grid_constant__ Params params) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    if (threadIdx.x < params.elements) params.out[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
}
