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

// Stores eight bytes at an address that is a multiple of four.
extern "C" __global__ void __launch_bounds__(kThreads) canary_misaligned(const __grid_constant__ Params params) {
    if (threadIdx.x == 0) *reinterpret_cast<int64_t*>(params.out + 1) = 1;
}

// Writes into its input, which the launch does not declare as an output.
extern "C" __global__ void __launch_bounds__(kThreads) canary_undeclared_write(const __grid_constant__ Params params) {
    if (threadIdx.x < params.elements) {
        params.out[threadIdx.x] = static_cast<int32_t>(threadIdx.x);
        const_cast<int32_t*>(params.in)[threadIdx.x] = 0;
    }
}

// Reads a neighbour's shared-memory element without a barrier after the writes. For racecheck.
extern "C" __global__ void __launch_bounds__(kThreads) canary_shared_race(const __grid_constant__ Params params) {
    __shared__ int32_t values[kThreads];
    values[threadIdx.x] = -1;
    __syncthreads();
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

// Two blocks write the same elements.
extern "C" __global__ void __launch_bounds__(kThreads) canary_global_race(const __grid_constant__ Params params) {
    if (threadIdx.x < params.elements) params.out[threadIdx.x] = static_cast<int32_t>(threadIdx.x + blockIdx.x);
}

// The result depends on `in`, whose bytes must not matter: the caller's zeros add nothing, others would.
extern "C" __global__ void __launch_bounds__(kThreads) canary_taint(const __grid_constant__ Params params) {
    if (threadIdx.x < params.elements)
        params.out[threadIdx.x] = static_cast<int32_t>(threadIdx.x) + params.in[threadIdx.x];
}

// Recursive, so that a call has a frame of its own on the stack, which is gone when the pointer into it is used.
static __device__ __noinline__ int32_t* left_frame(int32_t value, int32_t depth) {
    int32_t frame[8];
    for (int32_t i = 0; i < 8; ++i) frame[i] = value + i;
    int32_t* volatile left = depth > 0 ? left_frame(frame[value & 7], depth - 1) : frame + (value & 7);
    return left;
}
extern "C" __global__ void __launch_bounds__(kThreads) canary_stack(const __grid_constant__ Params params) {
    if (threadIdx.x < params.elements) params.out[threadIdx.x] = *left_frame(static_cast<int32_t>(threadIdx.x), 1);
}
