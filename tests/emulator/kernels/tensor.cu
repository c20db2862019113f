#include <cuda_fp16.h>

#define MMA_SINGLE(LAYOUT_A, LAYOUT_B)                                                                            \
    asm volatile("mma.sync.aligned.m8n8k4." LAYOUT_A "." LAYOUT_B                                                 \
                 ".f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, {%0,%1,%2,%3,%4,%5,%6,%7};"     \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]) \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))

#define MMA_HALF(LAYOUT_A, LAYOUT_B)                                                \
    asm volatile("mma.sync.aligned.m8n8k4." LAYOUT_A "." LAYOUT_B                   \
                 ".f16.f16.f16.f16 {%0,%1,%2,%3}, {%4,%5}, {%6,%7}, {%0,%1,%2,%3};" \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])                   \
                 : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]))

#define SINGLE(NAME, LAYOUT_A, LAYOUT_B)                                                                             \
    extern "C" __global__ void NAME(const uint2* fa, const uint2* fb, float* c) {                                    \
        const unsigned a[2] = {fa[threadIdx.x].x, fa[threadIdx.x].y}, b[2] = {fb[threadIdx.x].x, fb[threadIdx.x].y}; \
        float d[8];                                                                                                  \
        for (int i = 0; i < 8; ++i) d[i] = c[threadIdx.x * 8 + i];                                                   \
        MMA_SINGLE(LAYOUT_A, LAYOUT_B);                                                                              \
        for (int i = 0; i < 8; ++i) c[threadIdx.x * 8 + i] = d[i];                                                   \
    }

#define HALF(NAME, LAYOUT_A, LAYOUT_B)                                                                               \
    extern "C" __global__ void NAME(const uint2* fa, const uint2* fb, unsigned* c) {                                 \
        const unsigned a[2] = {fa[threadIdx.x].x, fa[threadIdx.x].y}, b[2] = {fb[threadIdx.x].x, fb[threadIdx.x].y}; \
        unsigned d[4];                                                                                               \
        for (int i = 0; i < 4; ++i) d[i] = c[threadIdx.x * 4 + i];                                                   \
        MMA_HALF(LAYOUT_A, LAYOUT_B);                                                                                \
        for (int i = 0; i < 4; ++i) c[threadIdx.x * 4 + i] = d[i];                                                   \
    }

SINGLE(single_row_col, "row", "col")
SINGLE(single_row_row, "row", "row")
SINGLE(single_col_col, "col", "col")
SINGLE(single_col_row, "col", "row")
HALF(half_row_col, "row", "col")
HALF(half_row_row, "row", "row")
HALF(half_col_col, "col", "col")
HALF(half_col_row, "col", "row")

extern "C" __global__ void mixed_row_col(const uint2* fa, const uint2* fb, const uint4* fc, float* out) {
    const unsigned a[2] = {fa[threadIdx.x].x, fa[threadIdx.x].y}, b[2] = {fb[threadIdx.x].x, fb[threadIdx.x].y};
    const uint4 c = fc[threadIdx.x];
    float d[8];
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%12,%13,%14,%15};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]), "r"(c.x), "r"(c.y), "r"(c.z), "r"(c.w));
    for (int i = 0; i < 8; ++i) out[threadIdx.x * 8 + i] = d[i];
}

// C[m, n] = A[m, k] B[n, k]^T. A warp computes 16 x 16: quad-pair q takes the 8 x 8 at rows 8 (q & 1), columns 8 (q >>
// 1). k runs in steps of 4 straight from global memory.
extern "C" __global__ void gemm(const __half* a, const __half* b, float* c, int m, int n, int k) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2 & 3, half = lane >> 4;
    const int row0 = (blockIdx.y * 4 + warp) * 16 + 8 * (q & 1), col0 = blockIdx.x * 16 + 8 * (q >> 1);
    const int own = (lane & 3) + 4 * half;
    float d[8] = {};
    for (int kk = 0; kk < k; kk += 4) {
        const uint2 va = *(const uint2*)(a + (size_t)(row0 + own) * k + kk),
                    vb = *(const uint2*)(b + (size_t)(col0 + own) * k + kk);
        const unsigned a[2] = {va.x, va.y}, b[2] = {vb.x, vb.y};
        MMA_SINGLE("row", "col");
    }
    for (int i = 0; i < 8; ++i)
        c[(size_t)(row0 + (lane & 1) + (i & 2) + 4 * half) * n + col0 + (i & 4) + (lane & 2) + (i & 1)] = d[i];
}

// The same product by blocks of 64 x 64 through shared memory, k in tiles of 64. Each of the four warps computes 32 x
// 32: two by two of the 16 x 16 above. Rows of a tile are 8 halves longer than it, so that lanes meet in different
// banks.
extern "C" __global__ void __launch_bounds__(128) gemm_tiled(const __half* a, const __half* b, float* c, int n, int k) {
    constexpr int kTile = 64, kRow = kTile + 8;
    __shared__ __align__(16) __half tile_a[kTile * kRow], tile_b[kTile * kRow];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, q = lane >> 2 & 3, half = lane >> 4;
    const int row0 = (warp >> 1) * 32 + 8 * (q & 1), col0 = (warp & 1) * 32 + 8 * (q >> 1);
    const int own = (lane & 3) + 4 * half;
    float sums[2][2][8] = {};
    for (int k0 = 0; k0 < k; k0 += kTile) {
        for (int i = threadIdx.x; i < kTile * kTile / 8; i += 128) {
            const int row = i >> 3, column = (i & 7) * 8;
            *(uint4*)(tile_a + row * kRow + column) =
                *(const uint4*)(a + (size_t)(blockIdx.y * kTile + row) * k + k0 + column);
            *(uint4*)(tile_b + row * kRow + column) =
                *(const uint4*)(b + (size_t)(blockIdx.x * kTile + row) * k + k0 + column);
        }
        __syncthreads();
        for (int kk = 0; kk < kTile; kk += 4) {
            for (int i = 0; i < 2; ++i) {
                for (int j = 0; j < 2; ++j) {
                    const uint2 va = *(const uint2*)(tile_a + (row0 + 16 * i + own) * kRow + kk);
                    const uint2 vb = *(const uint2*)(tile_b + (col0 + 16 * j + own) * kRow + kk);
                    const unsigned a[2] = {va.x, va.y}, b[2] = {vb.x, vb.y};
                    float(&d)[8] = sums[i][j];
                    MMA_SINGLE("row", "col");
                }
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) {
            for (int e = 0; e < 8; ++e) {
                const int row = blockIdx.y * kTile + row0 + 16 * i + (lane & 1) + (e & 2) + 4 * half;
                const int column = blockIdx.x * kTile + col0 + 16 * j + (e & 4) + (lane & 2) + (e & 1);
                c[(size_t)row * n + column] = sums[i][j][e];
            }
        }
    }
}
