// Loops of one kind of instruction each, to measure how many of them the emulator runs in a second. Inputs come from
// memory and results go there, so that nothing can be computed beforehand.

extern "C" __global__ void integer(const unsigned* in, unsigned* out, int loops) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned a = in[i], b = in[i] ^ 0x9e3779b9u, c = a + b, d = a * 3u + 1u;
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            a = a * b + c;
            b = (b & c) ^ d;
            c = __funnelshift_l(c, a, 7);
            d = d + a + b;
        }
    }
    out[i] = a ^ b ^ c ^ d;
}

extern "C" __global__ void single_precision(const float* in, float* out, int loops) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    float a = in[i], b = a * 0.5f, c = a + 1.0f, d = a - 1.0f;
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            a = fmaf(a, 0.75f, b);
            b = b * c;
            c = c + d;
            d = fmaf(d, b, 0.125f);
        }
    }
    out[i] = a + b + c + d;
}

__device__ unsigned folded(unsigned value) {
    return value;
}
__device__ unsigned folded(uint4 value) {
    return value.x ^ value.y ^ value.z ^ value.w;
}

// Reads `words` (a power of two, at least 2048) of a buffer that has 2048 more, over and over; a warp's 32 words are
// neighbours.
template <typename Word>
__device__ void read_global(const Word* in, unsigned* out, unsigned words, int loops) {
    unsigned sum = 0, at = threadIdx.x;
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int u = 0; u < 16; ++u) sum ^= folded(__ldcg(in + at + u * 128));
        at = (at + 2048) & (words - 1);
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

extern "C" __global__ void __launch_bounds__(128)
    load_global_32(const unsigned* in, unsigned* out, unsigned words, int loops) {
    read_global(in, out, words, loops);
}

extern "C" __global__ void __launch_bounds__(128)
    load_global_128(const uint4* in, unsigned* out, unsigned words, int loops) {
    read_global(in, out, words, loops);
}

extern "C" __global__ void __launch_bounds__(128) load_shared(const unsigned* in, unsigned* out, int loops) {
    __shared__ unsigned tile[2048];
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = threadIdx.x; k < 2048; k += 128) tile[k] = in[i] + k;
    __syncthreads();
    unsigned sum = 0, at = threadIdx.x;
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int u = 0; u < 8; ++u) sum ^= *(volatile unsigned*)(tile + at + u * 128);
        at = (at + 1) & 1023;
    }
    out[i] = sum;
}

// A tile goes through shared memory as it does in attention kernels: 16 bytes a lane, two barriers a turn.
extern "C" __global__ void __launch_bounds__(128) tile_shared_128(const uint4* in, unsigned* out, int loops) {
    __shared__ uint4 tile[512];
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x, t = threadIdx.x;
    uint4 value = in[i];
    unsigned sum = 0;
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int u = 0; u < 4; ++u) tile[t + u * 128] = make_uint4(value.x + u, value.y, value.z, value.w);
        __syncthreads();
#pragma unroll
        for (int u = 0; u < 4; ++u) {
            const uint4 other = tile[(t ^ 37) + u * 128];
            value.x = value.x * 3 + other.y;
            value.y ^= other.z;
            value.z += other.w;
            sum += folded(other);
        }
        __syncthreads();
    }
    out[i] = sum;
}

// Eight m8n8k4 products a turn, on two accumulators: 32 HMMA steps.
extern "C" __global__ void tensor_core(const uint2* in, float* out, int loops) {
    const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint2 a = in[2 * i], b = in[2 * i + 1];
    float sums[2][8] = {};
    for (int n = 0; n < loops; ++n) {
#pragma unroll
        for (int u = 0; u < 8; ++u) {
            float(&c)[8] = sums[u & 1];
            asm volatile(
                "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
                "{%0,%1,%2,%3,%4,%5,%6,%7};"
                : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
                : "r"(a.x), "r"(a.y), "r"(b.x), "r"(b.y));
        }
    }
    float sum = 0;
    for (int e = 0; e < 8; ++e) sum += sums[0][e] + sums[1][e];
    out[i] = sum;
}
