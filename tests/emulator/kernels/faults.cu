// Pairs of kernels that differ in one thing: `_bad` has a fault that a checker must report, `_good` is the same program
// without it.

// --- shared memory between warps

template <bool kBarrier>
__device__ void exchange(int* d) {
    __shared__ int s[128];
    s[threadIdx.x] = threadIdx.x * 3;
    if (kBarrier) __syncthreads();
    d[threadIdx.x] = ((volatile int*)s)[127 - threadIdx.x];
}
extern "C" __global__ void race_bad(int* d) {
    exchange<false>(d);
}
extern "C" __global__ void race_good(int* d) {
    exchange<true>(d);
}

// A tile that is overwritten while others may still read it.
template <bool kBarrier>
__device__ void reuse(const int* a, int* d) {
    __shared__ int s[64];
    int sum = 0;
    for (int round = 0; round < 3; ++round) {
        s[threadIdx.x] = a[round * 64 + threadIdx.x];
        __syncthreads();
        sum += s[63 - threadIdx.x];
        if (kBarrier) __syncthreads();
    }
    d[threadIdx.x] = sum;
}
extern "C" __global__ void reuse_bad(const int* a, int* d) {
    reuse<false>(a, d);
}
extern "C" __global__ void reuse_good(const int* a, int* d) {
    reuse<true>(a, d);
}

// Within a warp.
template <bool kSync>
__device__ void neighbours(int* d) {
    __shared__ int s[32];
    s[threadIdx.x] = threadIdx.x * 5;
    if (kSync) __syncwarp();
    d[threadIdx.x] = ((volatile int*)s)[threadIdx.x ^ 1];
}
extern "C" __global__ void warp_race_bad(int* d) {
    neighbours<false>(d);
}
extern "C" __global__ void warp_race_good(int* d) {
    neighbours<true>(d);
}

// Lanes of one store that write one word: the same value, or not.
extern "C" __global__ void same_store_bad(int* d) {
    __shared__ int s;
    s = threadIdx.x >> 4;
    __syncthreads();
    d[threadIdx.x] = s;
}
extern "C" __global__ void same_store_good(int* d) {
    __shared__ int s;
    s = blockDim.x;
    __syncthreads();
    d[threadIdx.x] = s;
}

// Halves of one word by different warps are different bytes.
extern "C" __global__ void halves_bad(short* d) {
    __shared__ short s[64];
    s[threadIdx.x & 31] = threadIdx.x;
    __syncthreads();
    d[threadIdx.x] = s[threadIdx.x & 31];
}
extern "C" __global__ void halves_good(short* d) {
    __shared__ short s[64];
    const int at = threadIdx.x < 32 ? 2 * threadIdx.x : 2 * (threadIdx.x - 32) + 1;
    s[at] = threadIdx.x;
    s[at] += 1;
    __syncthreads();
    d[threadIdx.x] = s[threadIdx.x];
}

// Named barriers: warps 0-1 produce, warps 2-3 consume. A producer that waits only after it has written is too late.
template <bool kWaitsFirst>
__device__ void pipeline(const int* a, int* d) {
    __shared__ int ring[64];
    const int t = threadIdx.x & 63;
    for (int round = 0; round < 4; ++round) {
        if (threadIdx.x < 64) {
            if (kWaitsFirst && round) asm volatile("bar.sync 2, 128;" ::: "memory");
            ring[t] = a[round * 64 + t] * 2;
            if (!kWaitsFirst && round) asm volatile("bar.sync 2, 128;" ::: "memory");
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            d[round * 64 + t] = ring[63 - t];
            if (round < 3) asm volatile("bar.arrive 2, 128;" ::: "memory");
        }
    }
}
extern "C" __global__ void named_bad(const int* a, int* d) {
    pipeline<false>(a, d);
}
extern "C" __global__ void named_good(const int* a, int* d) {
    pipeline<true>(a, d);
}

// --- barriers

extern "C" __global__ void barrier_bad(int* d) {
    if (threadIdx.x % 32 < 16) __syncthreads();
    d[threadIdx.x] = threadIdx.x;
}
// Threads that have exited are not waited for.
extern "C" __global__ void barrier_good(int* d) {
    d[threadIdx.x] = threadIdx.x;
    if (threadIdx.x % 32 >= 16) return;
    __syncthreads();
    d[threadIdx.x] += 1;
}

// --- uninitialised data

template <bool kWrite>
__device__ void undefined_branch(int* d) {
    __shared__ int s[32];
    if (kWrite) s[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (((volatile int*)s)[threadIdx.x] > 3)
        d[threadIdx.x] = 1;
    else
        d[threadIdx.x] = threadIdx.x * 2;
}
extern "C" __global__ void undefined_bad(int* d) {
    undefined_branch<false>(d);
}
extern "C" __global__ void undefined_good(int* d) {
    undefined_branch<true>(d);
}

// A tile of which `n` lanes are loaded: what is not selected is nobody's business, what is multiplied by zero is.
__device__ float tile_element(const float* a, int n) {
    __shared__ float s[32];
    if (threadIdx.x < n) s[threadIdx.x] = a[threadIdx.x];
    __syncthreads();
    return *(volatile float*)(s + threadIdx.x);
}
extern "C" __global__ void tail_bad(const float* a, float* d, int n) {
    d[threadIdx.x] = tile_element(a, n) * (threadIdx.x < n ? 2.0f : 0.0f);
}
extern "C" __global__ void tail_good(const float* a, float* d, int n) {
    const float v = tile_element(a, n) * 2.0f;
    d[threadIdx.x] = threadIdx.x < n ? v : 0.0f;
}

// Byte by byte: `lower` of each word of `a` is defined, the rest is not.
extern "C" __global__ void bytes_bad(const unsigned* a, unsigned* d) {
    d[threadIdx.x] = a[threadIdx.x] & 0x1ff;
}
extern "C" __global__ void bytes_good(const unsigned* a, unsigned* d) {
    const unsigned v = a[threadIdx.x];
    d[threadIdx.x] = (v & 0xff) + (v << 24) + __byte_perm(v, 0x01020304, 0x7650);
}

// Even results do not depend on the upper half of `a`, odd ones do.
extern "C" __global__ void exact(const unsigned* a, const unsigned* b, unsigned* d) {
    const unsigned x = *a, y = *b;
    d[0] = x & 0xffff;
    d[1] = x & 0x1ffff;
    d[2] = x << 16;
    d[3] = x << 15;
    d[4] = __byte_perm(x, y, 0x7610);
    d[5] = __byte_perm(x, y, 0x7621);
    d[6] = x | 0xffff0000u;
    d[7] = x | 0xfffe0000u;
    d[8] = y & 1 ? (x & 0xff) * 3 : x << 24;
    d[9] = __brev(x) & 0xff00;
    d[10] = __funnelshift_l(y, x, 16) & 0xffff0000u;
    d[11] = __funnelshift_l(y, x, 8) & 0xff000000u;
}

extern "C" __global__ void copy(const unsigned* a, unsigned* d) {
    d[threadIdx.x] = a[threadIdx.x];
}

extern "C" __global__ void address_bad(const int* a, int* d) {
    __shared__ int s[32];
    d[a[threadIdx.x & 1] + s[threadIdx.x]] = 1;
}

// A sum of what a shuffle brings from a lane that has left.
extern "C" __global__ void shuffle_bad(int* d) {
    const int v = threadIdx.x * 3;
    if (threadIdx.x >= 16) return;
    d[threadIdx.x] = __shfl_xor_sync(0xffff, v, 16);
}
extern "C" __global__ void shuffle_good(int* d) {
    const int v = threadIdx.x * 3;
    if (threadIdx.x >= 16) return;
    d[threadIdx.x] = __shfl_xor_sync(0xffff, v, 8);
}

// --- the stack

// Recursive, so that each call has a frame of its own.
__device__ __noinline__ int* frame(int n, int depth) {
    int values[16];
    for (int i = 0; i < 16; ++i) values[i] = n * i;
    int* volatile first = depth > 0 ? frame(values[n & 15], depth - 1) : values + (n & 15);
    return first;
}
extern "C" __global__ void stack_bad(const int* a, int* d) {
    d[threadIdx.x] = *frame(a[threadIdx.x], 2);
}
extern "C" __global__ void stack_good(const int* a, int* d) {
    d[threadIdx.x] = frame(a[threadIdx.x], 2) != 0;
}
// One element of the array is never written.
extern "C" __global__ void local_bad(const int* a, int* d) {
    int values[16];
    for (int i = 1; i < 16; ++i) values[(i + a[0]) & 15] = i;
    d[threadIdx.x] = values[(a[threadIdx.x] + a[0]) & 15];
}

// --- blocks

extern "C" __global__ void blocks_bad(int* d) {
    d[threadIdx.x] = blockIdx.x + 1;
}
extern "C" __global__ void blocks_good(int* d) {
    d[blockIdx.x * blockDim.x + threadIdx.x] = blockIdx.x;
}
extern "C" __global__ void blocks_bytes_bad(char* d) {
    d[threadIdx.x + blockIdx.x] = blockIdx.x + 1;
}
extern "C" __global__ void blocks_bytes_good(char* d) {
    d[2 * threadIdx.x + blockIdx.x] = 1;
}

// --- the tensor core: one row of A (lane 0 of m8n8k4, row-major) may be bad

template <bool kStoreRow>
__device__ void product(const uint2* a, const uint2* b, float* d) {
    const int lane = threadIdx.x;
    const uint2 x = a[lane], y = b[lane];
    float c[8] = {};
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
        : "r"(x.x), "r"(x.y), "r"(y.x), "r"(y.y));
    for (int e = 0; e < 8; ++e) {
        // PTX manual, mma.m8n8k4 with .f32 accumulator: the row of element e in lane i.
        const int row = (lane & 1) + (e & 2) + (lane & 16 ? 4 : 0);
        if (kStoreRow || row != 0 || (lane & 12) != 0) d[lane * 8 + e] = c[e];
    }
}
extern "C" __global__ void product_bad(const uint2* a, const uint2* b, float* d) {
    product<true>(a, b, d);
}
extern "C" __global__ void product_good(const uint2* a, const uint2* b, float* d) {
    product<false>(a, b, d);
}
