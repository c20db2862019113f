// One operation per kernel where that makes the expected value plain; inputs a, b, c, output d, n threads.
#include <cuda_fp16.h>

extern "C" __global__ void float_basic(const float* a, const float* b, const float* c, float* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    d[i] = a[i] + b[i];
    d[n + i] = a[i] * b[i];
    d[2 * n + i] = fmaf(a[i], b[i], c[i]);
    d[3 * n + i] = a[i] / b[i];
    d[4 * n + i] = sqrtf(fabsf(a[i]));
    d[5 * n + i] = fminf(a[i], b[i]);
    d[6 * n + i] = fmaxf(a[i], b[i]);
    d[7 * n + i] = __saturatef(a[i]);
    d[8 * n + i] = rintf(a[i]);
    d[9 * n + i] = floorf(a[i]);
    d[10 * n + i] = truncf(a[i]);
    d[11 * n + i] = a[i] < b[i] ? a[i] : -c[i];
}

extern "C" __global__ void float_directed(const float* a, const float* b, const float* c, float* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    d[i] = __fadd_rd(a[i], b[i]);
    d[n + i] = __fadd_ru(a[i], b[i]);
    d[2 * n + i] = __fadd_rz(a[i], b[i]);
    d[3 * n + i] = __fmul_rd(a[i], b[i]);
    d[4 * n + i] = __fmul_ru(a[i], b[i]);
    d[5 * n + i] = __fmul_rz(a[i], b[i]);
    d[6 * n + i] = __fmaf_rd(a[i], b[i], c[i]);
    d[7 * n + i] = __fmaf_ru(a[i], b[i], c[i]);
    d[8 * n + i] = __fmaf_rz(a[i], b[i], c[i]);
}

extern "C" __global__ void float_flushed(const float* a, const float* b, const float* c, float* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    asm("add.ftz.f32 %0, %1, %2;" : "=f"(d[i]) : "f"(a[i]), "f"(b[i]));
    asm("mul.ftz.f32 %0, %1, %2;" : "=f"(d[n + i]) : "f"(a[i]), "f"(b[i]));
    asm("fma.rn.ftz.f32 %0, %1, %2, %3;" : "=f"(d[2 * n + i]) : "f"(a[i]), "f"(b[i]), "f"(c[i]));
    asm("add.rz.ftz.f32 %0, %1, %2;" : "=f"(d[3 * n + i]) : "f"(a[i]), "f"(b[i]));
    asm("min.ftz.f32 %0, %1, %2;" : "=f"(d[4 * n + i]) : "f"(a[i]), "f"(b[i]));
    asm("fma.rn.ftz.sat.f32 %0, %1, %2, %3;" : "=f"(d[5 * n + i]) : "f"(a[i]), "f"(b[i]), "f"(c[i]));
    asm("{ .reg .pred p; setp.lt.ftz.f32 p, %1, %2; selp.f32 %0, 1.0, 0.0, p; }"
        : "=f"(d[6 * n + i])
        : "f"(a[i]), "f"(b[i]));
    asm("set.gtu.ftz.f32.f32 %0, %1, %2;" : "=f"(d[7 * n + i]) : "f"(a[i]), "f"(b[i]));
}

extern "C" __global__ void special(const float* a, float* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(d[i]) : "f"(a[i]));
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(d[n + i]) : "f"(fabsf(a[i])));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(d[2 * n + i]) : "f"(a[i]));
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(d[3 * n + i]) : "f"(fabsf(a[i])));
    asm("sin.approx.ftz.f32 %0, %1;" : "=f"(d[4 * n + i]) : "f"(a[i]));
    asm("cos.approx.ftz.f32 %0, %1;" : "=f"(d[5 * n + i]) : "f"(a[i]));
    d[6 * n + i] = expf(a[i]);
    d[7 * n + i] = logf(fabsf(a[i]));
    d[8 * n + i] = tanhf(a[i]);
    d[9 * n + i] = sinf(a[i]);
    d[10 * n + i] = exp2f(a[i]);
    d[11 * n + i] = rsqrtf(fabsf(a[i]));
}

extern "C" __global__ void integer(const int* a, const int* b, const int* c, int* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned ua = a[i], ub = b[i], uc = c[i];
    d[i] = a[i] + b[i] - c[i];
    d[n + i] = a[i] * b[i] + c[i];
    d[2 * n + i] = __mulhi(a[i], b[i]);
    d[3 * n + i] = __umulhi(ua, ub);
    d[4 * n + i] = a[i] / (b[i] ? b[i] : 1);
    d[5 * n + i] = ua % (ub ? ub : 1);
    d[6 * n + i] = min(a[i], b[i]);
    d[7 * n + i] = max(ua, ub);
    d[8 * n + i] = (a[i] & b[i]) | (~a[i] & c[i]);
    d[9 * n + i] = a[i] ^ b[i] ^ c[i];
    d[10 * n + i] = ua << (ub & 31);
    d[11 * n + i] = a[i] >> (ub & 31);
    d[12 * n + i] = __funnelshift_l(ua, ub, uc);
    d[13 * n + i] = __funnelshift_rc(ua, ub, uc);
    d[14 * n + i] = __popc(a[i]);
    d[15 * n + i] = __clz(a[i]);
    d[16 * n + i] = __ffs(a[i]);
    d[17 * n + i] = __brev(a[i]);
    d[18 * n + i] = __byte_perm(ua, ub, uc);
    d[19 * n + i] = abs(a[i]);
    d[20 * n + i] = __dp4a(a[i], b[i], c[i]);
    d[21 * n + i] = (a[i] < b[i]) + 2 * (ua < ub) + 4 * (a[i] == c[i]);
    d[22 * n + i] = __dp4a(ua, ub, uc);
}

extern "C" __global__ void wide(const long long* a, const long long* b, long long* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const unsigned long long ua = a[i], ub = b[i];
    d[i] = a[i] + b[i];
    d[n + i] = a[i] - b[i];
    d[2 * n + i] = a[i] * b[i];
    d[3 * n + i] = a[i] / (b[i] ? b[i] : 1);
    d[4 * n + i] = ua % (ub ? ub : 1);
    d[5 * n + i] = ua << (ub & 63);
    d[6 * n + i] = a[i] >> (ub & 63);
    d[7 * n + i] = ua >> (ub & 63);
    d[8 * n + i] = min(a[i], b[i]);
    d[9 * n + i] = __umul64hi(ua, ub);
    d[10 * n + i] = (a[i] < b[i]) + 2 * (ua < ub) + 4 * (a[i] >= b[i]) + 8 * (a[i] == b[i]);
    d[11 * n + i] = __mul64hi(a[i], b[i]);
}

extern "C" __global__ void half_pairs(const __half2* a, const __half2* b, const __half2* c, __half2* d, unsigned* flags,
                                      int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    d[i] = __hadd2(a[i], b[i]);
    d[n + i] = __hsub2(a[i], b[i]);
    d[2 * n + i] = __hmul2(a[i], b[i]);
    d[3 * n + i] = __hfma2(a[i], b[i], c[i]);
    d[4 * n + i] = __hmul2(a[i], __low2half2(b[i]));
    d[5 * n + i] = __hadd2(__lowhigh2highlow(a[i]), b[i]);
    d[6 * n + i] = __hfma2(a[i], __half2half2(__float2half(0.5f)), c[i]);
    flags[i] =
        (__low2half(a[i]) < __low2half(b[i])) + 2 * (__high2half(a[i]) == __high2half(b[i])) + 4 * __hbge2(a[i], b[i]);
}

extern "C" __global__ void doubles(const double* a, const double* b, const double* c, double* d, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    d[i] = a[i] + b[i];
    d[n + i] = a[i] * b[i];
    d[2 * n + i] = fma(a[i], b[i], c[i]);
    d[3 * n + i] = a[i] / b[i];
    d[4 * n + i] = sqrt(fabs(a[i]));
    d[5 * n + i] = a[i] < b[i] ? a[i] : c[i];
    d[6 * n + i] = exp(a[i]);
    d[7 * n + i] = fmin(a[i], b[i]);
}
