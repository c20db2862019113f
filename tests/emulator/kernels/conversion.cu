#include <cuda_fp16.h>

extern "C" __global__ void floats(const float* a, int* i32, long long* i64, unsigned short* h, double* f64, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    i32[i] = (int)a[i];
    i32[n + i] = (int)(unsigned)a[i];
    i32[2 * n + i] = __float2int_rn(a[i]);
    i32[3 * n + i] = __float2int_rd(a[i]);
    i32[4 * n + i] = __float2int_ru(a[i]);
    i64[i] = (long long)a[i];
    i64[n + i] = __float2ll_rn(a[i]);
    h[i] = __half_as_ushort(__float2half_rn(a[i]));
    h[n + i] = __half_as_ushort(__float2half_rz(a[i]));
    h[2 * n + i] = __half_as_ushort(__float2half_rd(a[i]));
    h[3 * n + i] = __half_as_ushort(__float2half_ru(a[i]));
    f64[i] = a[i];
}

extern "C" __global__ void integers(const int* a, const long long* b, float* f, double* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    f[i] = (float)a[i];
    f[n + i] = (float)(unsigned)a[i];
    f[2 * n + i] = __int2float_rz(a[i]);
    f[3 * n + i] = __int2float_ru(a[i]);
    f[4 * n + i] = (float)b[i];
    f[5 * n + i] = (float)(unsigned long long)b[i];
    f[6 * n + i] = (float)(signed char)a[i];
    f[7 * n + i] = (float)(unsigned short)a[i];
    d[i] = (double)b[i];
    d[n + i] = a[i];
}

extern "C" __global__ void halves(const __half* a, float* f, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) f[i] = __half2float(a[i]);
}

extern "C" __global__ void narrowing(const double* a, float* f, int* i32, long long* i64, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    f[i] = (float)a[i];
    i32[i] = (int)a[i];
    i64[i] = (long long)a[i];
}

// Four E4M3 bytes to two half2, times 2^8, by moving bits: sign to the top, exponent and mantissa below it.
extern "C" __global__ void e4m3(const unsigned* packed, uint2* halves, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned low, high;  // bit 3 of a selector nibble replicates the sign, which __byte_perm does not offer
    asm("prmt.b32 %0, %1, 0, 0x9180;" : "=r"(low) : "r"(packed[i]));
    asm("prmt.b32 %0, %1, 0, 0xb3a2;" : "=r"(high) : "r"(packed[i]));
    halves[i] = make_uint2((low << 7) & 0xbf80bf80u, (high << 7) & 0xbf80bf80u);
}
