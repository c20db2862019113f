// Forms that ordinary kernels meet now and then.
#include <cuda_fp16.h>

__device__ __noinline__ void fill(int* p, int n) {
    for (int i = 0; i < n; ++i) p[i] = i * n;
}
__device__ __noinline__ int weighted(const int* p, int n) {
    int s = 0;
    for (int i = 0; i < n; ++i) s += p[i] * (i + 1);
    return s;
}
// The callees see the stack through generic addresses.
extern "C" __global__ void stack_by_pointer(int* d, int n) {
    int a[16];
    fill(a, 16);
    a[n & 15] += threadIdx.x;
    d[threadIdx.x] = weighted(a, 16);
}

extern "C" __global__ void half_functions(const __half2* x, __half2* y) {
    const int t = threadIdx.x;
    const __half2 a = x[t], b = x[t + 32];
    y[t] = __hmin2(a, b);
    y[t + 32] = __hmax2(a, b);
    y[t + 64] = h2sqrt(__habs2(a));
    y[t + 96] = h2exp(a);
    y[t + 128] = __hadd2_sat(a, b);
    y[t + 160] = __hfma2_sat(a, b, b);
    y[t + 192] = h2rcp(b);
    y[t + 224] = __hneg2(a);
    y[t + 256] = h2floor(a);
    y[t + 288] = __h2div(a, b);
}

extern "C" __global__ void partial_warps(int* d) {
    const int t = threadIdx.x;
    int r = 0;
    if (t < 16) {
        r = __shfl_xor_sync(0xffff, t, 1);
        if (t < 8) {
            r += __shfl_xor_sync(0xff, t, 2);
            __syncwarp(0xff);
        }
        r += __shfl_down_sync(0xffff, r, 1, 16);
    } else {
        r = __popc(__ballot_sync(0xffff0000, t & 1));
    }
    d[t] = r;
}

extern "C" __global__ void wide_atomics(unsigned long long* w, long long* s) {
    __shared__ unsigned long long sh[2];
    const int t = threadIdx.x;
    atomicCAS(w, (unsigned long long)t, (unsigned long long)t + 1);
    atomicExch(w + 1, 5ull);
    atomicMin(s, (long long)-t);
    atomicMax(s + 1, (long long)t);
    atomicAnd(w + 2, ~(1ull << t));
    atomicOr(w + 3, 1ull << (t + 8));
    atomicXor(w + 4, 3ull << t);
    if (t < 2) sh[t] = 0;
    __syncthreads();
    atomicAdd(&sh[0], (unsigned long long)t << 33);
    atomicCAS(&sh[1], 0ull, 7ull);
    atomicMax(&sh[1], (unsigned long long)t);
    __syncthreads();
    if (t < 2) w[5 + t] = sh[t];
}

extern "C" __global__ void wide_exchange(const double* x, double* y, long long* z) {
    const int t = threadIdx.x;
    y[t] = __shfl_xor_sync(~0u, x[t], 3);
    z[t] = __match_any_sync(~0u, z[t] & 0x100000001ll);
}

extern "C" __global__ void barrier_in_registers(int* d, int id, int n) {
    __shared__ int s[128];
    s[threadIdx.x] = threadIdx.x;
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n) : "memory");
    d[threadIdx.x] = s[127 - threadIdx.x];
}

extern "C" __global__ void library(const float* x, float* y) {
    const int t = threadIdx.x;
    const float a = x[t], b = x[t + 32];
    y[t] = powf(fabsf(a), b);
    y[t + 32] = fmodf(a, b);
    y[t + 64] = erff(a);
    y[t + 96] = cbrtf(a);
    y[t + 128] = atan2f(a, b);
    y[t + 160] = sinhf(a);
    y[t + 192] = log1pf(fabsf(a));
    y[t + 224] = expm1f(a);
    y[t + 256] = sinf(a * 1000.f);  // the long reduction of the argument
    y[t + 288] = remainderf(a, b);
    y[t + 320] = nextafterf(a, b);
}
