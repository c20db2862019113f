__constant__ float table[16];
__device__ unsigned counter;
__device__ float scale = 2.5f;

extern "C" __global__ void widths(const unsigned char* bytes, const short* shorts, const int4* quads, int* d, int4* q) {
    const int t = threadIdx.x;
    d[t] = bytes[t] + 256 * ((const signed char*)bytes)[t];
    d[64 + t] = shorts[t] + 7 * ((const unsigned short*)shorts)[t];
    const int4 v = quads[t];
    q[t] = make_int4(v.w, v.z, v.y, v.x);
    ((short*)(d + 128))[t] = (short)(shorts[t] * 3);
    ((char*)(d + 192))[t] = (char)(bytes[t] + 1);
    ((int2*)(d + 256))[t] = make_int2(v.x, v.w);
}

extern "C" __global__ void transpose(const float* in, float* out, int n) {
    __shared__ float tile[32][33];
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) tile[threadIdx.y + j][threadIdx.x] = in[(y + j) * n + x];
    __syncthreads();
    const int ox = blockIdx.y * 32 + threadIdx.x, oy = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(oy + j) * n + ox] = tile[threadIdx.x][threadIdx.y + j];
}

extern "C" __global__ void dynamic_shared(const float4* in, float4* out, int n) {
    extern __shared__ float4 buffer[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) buffer[i] = in[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = buffer[n - 1 - i];
}

extern "C" __global__ void barrier_votes(const int* a, int* d) {
    const int t = threadIdx.x;
    d[t] = __syncthreads_count(a[t] & 1);
    d[blockDim.x + t] = __syncthreads_and(a[t] >= 0);
    d[2 * blockDim.x + t] = __syncthreads_or(a[t] == 12345);
}

// Warps 0-1 produce, warps 2-3 consume, through named barriers.
extern "C" __global__ void producer_consumer(const int* a, int* d) {
    __shared__ int ring[64];
    const int t = threadIdx.x & 63;
    for (int round = 0; round < 4; ++round) {
        if (threadIdx.x < 64) {
            if (round) asm volatile("bar.sync 2, 128;");
            ring[t] = a[round * 64 + t] * 2;
            asm volatile("bar.arrive 1, 128;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 128;" ::: "memory");
            d[round * 64 + t] = ring[63 - t];
            if (round < 3) asm volatile("bar.arrive 2, 128;");
        }
    }
}

extern "C" __global__ void local_array(const int* a, int* d) {
    int stack[40];
    for (int i = 0; i < 40; ++i) stack[i] = a[(threadIdx.x + i) & 63];
    for (int i = 0; i < 40; ++i) {
        const int j = (a[threadIdx.x] + i * 7) & 31, s = stack[i];
        stack[i] = stack[j];
        stack[j] = s;
    }
    int sum = 0;
    for (int i = 0; i < 40; ++i) sum = sum * 31 + stack[i];
    d[threadIdx.x] = sum;
}

extern "C" __global__ void globals(float* d) {
    d[threadIdx.x] = table[threadIdx.x & 15] * scale;
    atomicAdd(&counter, 2u);
}

extern "C" __global__ void generic(float* x, int n) {
    __shared__ float s[32];
    float* p = n > 3 ? s : x;
    p[threadIdx.x] = threadIdx.x;
    __syncthreads();
    atomicAdd(&p[2], 1.5f);
    __syncthreads();
    x[32 + threadIdx.x] = p[31 - threadIdx.x];
}

extern "C" __global__ void atomics(const int* a, int* d, unsigned long long* w, float* f, double* g) {
    const int t = threadIdx.x + blockIdx.x * blockDim.x, v = a[t];
    atomicAdd(&d[0], v);
    atomicMin(&d[1], v);
    atomicMax(&d[2], v);
    atomicMax((unsigned*)&d[3], (unsigned)v);
    atomicAnd(&d[4], v);
    atomicOr(&d[5], v);
    atomicXor(&d[6], v);
    atomicInc((unsigned*)&d[7], 1000u);
    atomicDec((unsigned*)&d[8], 50u);
    d[64 + atomicAdd(&d[9], 1)] = v;
    atomicAdd(w, (unsigned long long)v);
    atomicMax(w + 1, (unsigned long long)(unsigned)v);
    atomicAdd(f, 1.0f);
    atomicAdd(g, 0.5);
}

extern "C" __global__ void shared_atomics(const int* a, int* d, float* f) {
    __shared__ int bins[16];
    __shared__ float total;
    if (threadIdx.x < 16) bins[threadIdx.x] = 0;
    if (threadIdx.x == 0) total = 0;
    __syncthreads();
    atomicAdd(&bins[a[threadIdx.x] & 15], 1);
    atomicAdd(&total, (float)(a[threadIdx.x] & 7));
    __syncthreads();
    if (threadIdx.x < 16) d[threadIdx.x] = bins[threadIdx.x];
    if (threadIdx.x == 0) *f = total;
}

extern "C" __global__ void stray_store(int* d, int index) {
    d[index] = 1;
}
extern "C" __global__ void stray_load(const int* a, int* d, int index) {
    d[threadIdx.x] = a[index + threadIdx.x];
}
extern "C" __global__ void unaligned(const char* a, int* d) {
    *d = *(const int*)(a + 2);
}
extern "C" __global__ void stray_shared(int* d, int index) {
    __shared__ int s[32];
    s[threadIdx.x] = 1;
    __syncthreads();
    d[threadIdx.x] = s[index + threadIdx.x];
}
extern "C" __global__ void lonely_barrier() {
    if (threadIdx.x < 32)
        asm volatile("bar.sync 1, 64;");
    else
        asm volatile("bar.sync 2, 64;");
}
extern "C" __global__ void endless(volatile int* flag) {
    while (*flag == 0) {
    }
}
extern "C" __global__ void trapped(int v) {
    if (v == 3) __trap();
}
