// C = A B^T in half precision with single-precision sums, A [m, k] and B [n, k] row-major: a plain, well-pipelined
// m8n8k4 GEMM for the timing model. Sizes are multiples of 128, k of 32.
//
//   block 128 x 128 x 32, four warps of 64 x 64; a warp's quad-pairs lie 2 x 2 and an m8n8k4 covers 16 x 16
//   shared: two buffers of A and B, rows of 32 halves whose four chunks of 16 bytes are permuted by (row / 2) % 4, so
//           that eight lanes meet no bank twice, be it in eight rows or in two: 2 x 2 x 128 x 64 = 32768 bytes
//   registers: 128 sums, 2 x 32 of fragments, 32 on the way from global to shared memory
//
// In a quad-pair, lane l of the eight holds row l%4 + 8*(l>=4) of its block of 16, the other quad-pair the rows
// between, so that lanes 0-7 read eight consecutive rows.
#include <cuda_fp16.h>

namespace {

constexpr int kTile = 128, kDepth = 32;
constexpr int kLoads = kTile * kDepth / 8 / 128;  // 16-byte loads a thread and operand

__device__ __forceinline__ void mma(float* d, const unsigned* a, const unsigned* b) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void load16(unsigned* words, const void* from) {
    const uint4 q = *static_cast<const uint4*>(from);
    words[0] = q.x;
    words[1] = q.y;
    words[2] = q.z;
    words[3] = q.w;
}

// Offset of a chunk of eight halves; other rows of the same place in 16 and other chunks are reached by + and ^.
__device__ __forceinline__ int chunk_at(int row, int chunk) {
    return row * kDepth + (chunk ^ ((row / 2) % 4)) * 8;
}

__device__ __forceinline__ void store16(void* to, const unsigned* words) {
    *static_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

}  // namespace

extern "C" __global__ __launch_bounds__(128) void gemm_128x128x32(const __half* a, const __half* b, float* c, int n,
                                                                  int k) {
    __shared__ __align__(16) __half shared[2][2][kTile * kDepth];
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const int row = thread / 4, chunk = thread % 4;
    const __half* from[2] = {a + (size_t(blockIdx.y) * kTile + row) * k + chunk * 8,
                             b + (size_t(blockIdx.x) * kTile + row) * k + chunk * 8};

    unsigned moving[2][kLoads][4];
    const auto fetch = [&] {
#pragma unroll
        for (int operand = 0; operand < 2; ++operand)
#pragma unroll
            for (int i = 0; i < kLoads; ++i) load16(moving[operand][i], from[operand] + size_t(32 * i) * k);
        from[0] += kDepth;
        from[1] += kDepth;
    };
    const int put_at = chunk_at(row, chunk);
    const auto put = [&](int buffer) {
#pragma unroll
        for (int operand = 0; operand < 2; ++operand)
#pragma unroll
            for (int i = 0; i < kLoads; ++i)
                store16(&shared[buffer][operand][put_at + 32 * i * kDepth], moving[operand][i]);
    };

    // Of the quad-pair: lanes with bit 2 set have the other block of columns, with bit 3 the other block of rows.
    const int in_quad = lane % 4 + 8 * (lane >= 16);
    const int a_at = chunk_at(64 * (warp / 2) + in_quad + 4 * ((lane >> 3) & 1), 0);
    const int b_at = chunk_at(64 * (warp % 2) + in_quad + 4 * ((lane >> 2) & 1), 0);

    unsigned a_part[2][4][4], b_part[2][4][4];  // two steps of eight along k, four blocks of 16 rows
    const auto take = [&](int slot, int buffer, int step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            load16(a_part[slot][i], &shared[buffer][0][(a_at ^ (step * 8)) + 16 * i * kDepth]);
            load16(b_part[slot][i], &shared[buffer][1][(b_at ^ (step * 8)) + 16 * i * kDepth]);
        }
    };

    float sums[4][4][8] = {};
    fetch();
    put(0);
    __syncthreads();
    take(0, 0, 0);
    int buffer = 0;
    for (int at = 0; at < k; at += kDepth) {
        const bool more = at + kDepth < k;
        if (more) fetch();
#pragma unroll
        for (int step = 0; step < kDepth / 8; ++step) {
            if (step == kDepth / 8 - 1) {
                if (more) put(buffer ^ 1);
                __syncthreads();
                if (more) take(0, buffer ^ 1, 0);
            } else {
                take((step + 1) % 2, buffer, step + 1);
            }
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 4; ++i)
#pragma unroll
                    for (int j = 0; j < 4; ++j)
                        mma(sums[i][j], &a_part[step % 2][i][2 * half], &b_part[step % 2][j][2 * half]);
        }
        buffer ^= 1;
    }

    // Sum e of lane l is row (l&1) + (e&2) + 4*(l>=16), column (e&4) + (l&2) + (e&1) of its quad-pair's 8 x 8.
    const auto place = [](int index, int other) { return index % 4 + 8 * (index >= 4) + 4 * other; };
    float* out = c + (size_t(blockIdx.y) * kTile + 64 * (warp / 2)) * n + blockIdx.x * kTile + 64 * (warp % 2);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < 8; e += 2) {
                const int r = place((lane & 1) + (e & 2) + 4 * (lane >= 16), (lane >> 3) & 1);
                const int column = place((e & 4) + (lane & 2), (lane >> 2) & 1);
                *reinterpret_cast<float2*>(out + size_t(16 * i + r) * n + 16 * j + column) =
                    make_float2(sums[i][j][e], sums[i][j][e + 1]);
            }
}
