// Chains whose cycles per link were measured on a V100 at 1530 MHz, for the timing model: docs/cycle-model.md.

namespace {

struct Tile {
    float d[8];
};

__device__ __forceinline__ void mma(Tile& t, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9}, {%10,%11}, "
        "{%0,%1,%2,%3,%4,%5,%6,%7};"
        : "+f"(t.d[0]), "+f"(t.d[1]), "+f"(t.d[2]), "+f"(t.d[3]), "+f"(t.d[4]), "+f"(t.d[5]), "+f"(t.d[6]), "+f"(t.d[7])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
}

// kChains independent accumulators, each fed `links` times; 128 links an iteration, 8 KB of code, so that the loop
// costs little and the code fits the first instruction cache.
template <int kChains>
__device__ __forceinline__ void tensor_chains(float* out, int links) {
    Tile tiles[kChains] = {};
    const unsigned a0 = threadIdx.x, a1 = threadIdx.x + 1, b0 = threadIdx.x + 2, b1 = threadIdx.x + 3;
#pragma unroll 1
    for (int i = 0; i < links; i += 128 / kChains) {
#pragma unroll
        for (int j = 0; j < 128 / kChains; ++j)
#pragma unroll
            for (int c = 0; c < kChains; ++c) mma(tiles[c], a0, a1, b0, b1);
    }
    float sum = 0;
    for (int c = 0; c < kChains; ++c)
        for (float value : tiles[c].d) sum += value;
    out[threadIdx.x] = sum;
}

}  // namespace

extern "C" __global__ void one_tensor_chain(float* out, int links) {
    tensor_chains<1>(out, links);
}
extern "C" __global__ void four_tensor_chains(float* out, int links) {
    tensor_chains<4>(out, links);
}

// A shared-memory load whose address is the value of the one before.
extern "C" __global__ void shared_chain(unsigned* out, int links) {
    __shared__ unsigned next[32];
    next[threadIdx.x] = static_cast<unsigned>(__cvta_generic_to_shared(&next[threadIdx.x]));
    __syncthreads();
    unsigned at = next[threadIdx.x];
    for (int i = 0; i < links; i += 16) {
#pragma unroll
        for (int j = 0; j < 16; ++j) asm volatile("ld.shared.u32 %0, [%0];" : "+r"(at));
    }
    out[threadIdx.x] = at;
}

// The same through global memory, past L1.
extern "C" __global__ void global_chain(unsigned long long* out, const unsigned long long* first, int links) {
    unsigned long long at = reinterpret_cast<unsigned long long>(first);
    for (int i = 0; i < links; i += 16) {
#pragma unroll
        for (int j = 0; j < 16; ++j) asm volatile("ld.global.cg.u64 %0, [%0];" : "+l"(at));
    }
    out[threadIdx.x] = at;
}
