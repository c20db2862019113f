// Small kernels that keep one unit of the SM busy, for tests of the timing model.

// Shared-memory loads of 4 bytes, lanes `stride` words apart.
extern "C" __global__ void shared_stride(unsigned* out, int stride, int count) {
    __shared__ unsigned words[32 * 32];
    for (int i = threadIdx.x; i < 32 * 32; i += blockDim.x) words[i] = 0;
    __syncthreads();
    unsigned sum = 0;
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&words[threadIdx.x % 32 * stride]));
    for (int i = 0; i < count; ++i) {
        unsigned value;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(at));
        at += value;  // zero, which the compiler can't know: the load stays in the loop
        sum += at;
    }
    out[threadIdx.x] = sum;
}

// Of 16 bytes, `shared_by` neighbouring lanes at one address.
extern "C" __global__ void shared_wide(unsigned* out, int shared_by, int count) {
    __shared__ __align__(16) unsigned words[32 * 4];
    for (int i = threadIdx.x; i < 32 * 4; i += blockDim.x) words[i] = 0;
    __syncthreads();
    unsigned sum = 0;
    unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(&words[threadIdx.x % 32 / shared_by * 4]));
    for (int i = 0; i < count; ++i) {
        unsigned a, b, c, d;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
        at += a + b + c + d;
        sum += at;
    }
    out[threadIdx.x] = sum;
}

// Dst = src, 16 bytes a thread.
extern "C" __global__ void copy16(const uint4* src, uint4* dst) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    dst[i] = src[i];
}

// All blocks read the same words, each thread `count` times 16 bytes, a block at a time; nothing fits L1 twice.
extern "C" __global__ void read_shared_by_all(const uint4* src, unsigned* out, int count) {
    unsigned sum = 0;
    for (int i = 0; i < count; ++i) {
        const uint4 q = __ldcg(&src[i * blockDim.x + threadIdx.x]);
        sum += q.x + q.y + q.z + q.w;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A block reads words of its own, each thread `count` times 16 bytes.
extern "C" __global__ void read_own(const uint4* src, unsigned* out, int count) {
    unsigned sum = 0;
    src += blockIdx.x * count * blockDim.x;
#pragma unroll 4
    for (int i = 0; i < count; ++i) {
        const uint4 q = src[i * blockDim.x + threadIdx.x];
        sum += q.x + q.y + q.z + q.w;
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// A block's work grows with its number.
extern "C" __global__ void triangle(float* out, int turns) {
    float x = threadIdx.x;
    for (int i = 0; i < turns * (int(blockIdx.x) + 1); ++i) x = x * 1.0001f + 1.0f;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

// Every warp waits for the slowest at each turn.
extern "C" __global__ void barriers(float* out, int turns) {
    float x = threadIdx.x;
    for (int i = 0; i < turns; ++i) {
        if (threadIdx.x < 32)
            for (int j = 0; j < 64; ++j) x = x * 1.0001f + 1.0f;
        __syncthreads();
    }
    out[threadIdx.x] = x;
}
