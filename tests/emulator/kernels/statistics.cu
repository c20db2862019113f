// Kernels whose memory accesses, branches and trips the caller chooses.

#define SHARED_READ(name, Type)                                                      \
    extern "C" __global__ void name(const int* index, Type* out) {                   \
        extern __shared__ __align__(16) unsigned char bytes[];                       \
        const volatile Type* shared = reinterpret_cast<const volatile Type*>(bytes); \
        const int at = index[threadIdx.x];                                           \
        if (at >= 0) out[threadIdx.x] = shared_value(shared, at);                    \
    }

template <class T>
__device__ T shared_value(const volatile T* shared, int at) {
    return *const_cast<const T*>(shared + at);
}

SHARED_READ(shared_read_1, unsigned char)
SHARED_READ(shared_read_4, float)
SHARED_READ(shared_read_8, float2)
SHARED_READ(shared_read_16, float4)

extern "C" __global__ void shared_write_16(const int* index) {
    extern __shared__ __align__(16) unsigned char bytes[];
    reinterpret_cast<float4*>(bytes)[index[threadIdx.x]] = make_float4(1, 2, 3, 4);
}

extern "C" __global__ void shared_count(const int* index) {
    extern __shared__ __align__(16) unsigned char bytes[];
    atomicAdd(reinterpret_cast<int*>(bytes) + index[threadIdx.x], 1);
}

#define GLOBAL_READ(name, Type)                                                    \
    extern "C" __global__ void name(const Type* in, const int* index, Type* out) { \
        const int at = index[threadIdx.x];                                         \
        if (at >= 0) out[threadIdx.x] = in[at];                                    \
    }

GLOBAL_READ(global_read_1, unsigned char)
GLOBAL_READ(global_read_2, unsigned short)
GLOBAL_READ(global_read_4, float)
GLOBAL_READ(global_read_8, float2)
GLOBAL_READ(global_read_16, float4)

extern "C" __global__ void global_count(int* counts, const int* index) {
    atomicAdd(counts + index[threadIdx.x], 1);
}

/// Each thread goes round `trips[thread]` times, once at least.
extern "C" __global__ void trips(const int* count, float* out) {
    int left = count[threadIdx.x];
    float value = 0;
#pragma unroll 1
    do {
        asm volatile("add.f32 %0, %0, 0f3F800000;" : "+f"(value));
    } while (--left > 0);
    out[threadIdx.x] = value;
}

/// Where a pointer points to is only known when it runs.
extern "C" __global__ void generic_read(const float* in, float* out, int from_shared) {
    __shared__ float shared[32];
    const float* source = from_shared ? shared : in;
    shared[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = *(volatile const float*)(source + threadIdx.x);
}

/// An array on the stack.
extern "C" __global__ void stack(const int* index, int* out) {
    volatile int array[64];
#pragma unroll 1
    for (int i = 0; i < 64; ++i) array[i] = i;
    out[threadIdx.x] = array[index[threadIdx.x]];
}

/// y = a x + y
extern "C" __global__ void saxpy(float a, const float* x, float* y) {
    y[threadIdx.x] = a * x[threadIdx.x] + y[threadIdx.x];
}
