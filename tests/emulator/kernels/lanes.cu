// What lanes exchange, and how they part and meet.
extern "C" __global__ void shuffles(const int* a, int* d) {
    const int t = threadIdx.x;
    d[t] = __shfl_xor_sync(~0u, a[t], 5);
    d[32 + t] = __shfl_up_sync(~0u, a[t], 3);
    d[64 + t] = __shfl_down_sync(~0u, a[t], 7, 16);
    d[96 + t] = __shfl_sync(~0u, a[t], a[t] & 31);
    d[128 + t] = __shfl_sync(~0u, a[t], 3, 8);
    d[160 + t] = __shfl_xor_sync(~0u, a[t], 9, 8);
    d[192 + t] = __ballot_sync(~0u, a[t] & 1);
    d[224 + t] = __any_sync(~0u, a[t] == 7) + 2 * __all_sync(~0u, a[t] >= 0);
    d[256 + t] = __match_any_sync(~0u, a[t] & 3);
    int same;
    d[288 + t] = __match_all_sync(~0u, a[t] >> 16, &same) + same;
    d[320 + t] = __popc(__activemask());
}

extern "C" __global__ void nested(const int* a, int* d) {
    const int t = threadIdx.x;
    int r = 0;
    if (a[t] & 1) {
        if (a[t] & 2)
            r = 3 * t;
        else
            r = __popc(__activemask());
        r += 1000;
    } else {
        for (int i = 0; i < (a[t] & 15); ++i) {
            if (i == 9) break;
            if ((i + t) % 3 == 0) continue;
            r += i;
        }
    }
    d[t] = r;
    d[blockDim.x + t] = __shfl_xor_sync(~0u, r, 1);
}

// Trip counts differ within the warp; the shuffle inside makes the compiler emit its convergence spin.
extern "C" __global__ void variant_trips(const int* trips, const float* x, float* d, int* lanes) {
    const int t = threadIdx.x;
    float sum = 0;
    int together = 0;
    for (int i = 0; i < trips[t]; ++i) {
        const unsigned mask = __activemask();
        sum += __shfl_sync(mask, x[i * 32 + (t & 31)], t & 31) * 0.5f;
        together += __popc(mask);
    }
    d[t] = sum;
    lanes[t] = together;
}

extern "C" __global__ void early_exit(const int* a, int* d) {
    const int t = threadIdx.x;
    if (a[t] < 0) return;
    int r = 0;
    for (int i = 0; i < 100; ++i) {
        if (a[t] == i) {
            d[t] = r;
            return;
        }
        r += i ^ t;
    }
    d[t] = -r;
}

// Lanes take a lock in turn: only a fair schedule of the diverged lanes ends.
extern "C" __global__ void spin_lock(int* lock, int* counter) {
    bool done = false;
    while (!done) {
        if (atomicCAS(lock, 0, 1) == 0) {
            *(volatile int*)counter = *(volatile int*)counter + 1;
            __threadfence();
            atomicExch(lock, 0);
            done = true;
        }
    }
}

extern "C" __global__ void switch_case(const int* a, int* d) {
    const int t = threadIdx.x;
    int r;
    switch (a[t]) {
        case 0: r = t; break;
        case 1: r = t * t; break;
        case 2: r = -t; break;
        case 3: r = t / 3; break;
        case 4: r = t ^ 21; break;
        case 5: r = 1 << (t & 7); break;
        case 6: r = t % 5; break;
        default: r = 77;
    }
    d[t] = r;
}

__device__ __noinline__ int collatz(int n, int depth) {
    return n == 1 || depth > 60 ? depth : collatz(n & 1 ? 3 * n + 1 : n / 2, depth + 1);
}
extern "C" __global__ void recursion(const int* a, int* d) {
    d[threadIdx.x] = collatz(a[threadIdx.x], 0);
}

__device__ __noinline__ int twice(int x) {
    return 2 * x;
}
__device__ __noinline__ int square(int x) {
    return x * x;
}
extern "C" __global__ void pointer_call(const int* a, int* d) {
    int (*f)(int) = a[threadIdx.x] & 1 ? twice : square;
    d[threadIdx.x] = f(a[threadIdx.x]);
}
