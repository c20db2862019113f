// Whole programs of the kinds the package is made of.

#define INFINITY __int_as_float(0x7f800000)

// One warp a row; rows of any length; a row of length 0 gives zeros.
extern "C" __global__ void softmax(const float* x, const int* lengths, float* y, int stride) {
    const int row = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5), lane = threadIdx.x & 31;
    const int n = lengths[row];
    float top = -INFINITY, sum = 0;
    for (int i = lane; i < n; i += 32) {
        const float v = x[row * stride + i];
        if (v > top) {
            sum *= __expf(top - v);
            top = v;
        }
        sum += __expf(v - top);
    }
    for (int d = 16; d; d >>= 1) {
        const float other_top = __shfl_xor_sync(~0u, top, d), other_sum = __shfl_xor_sync(~0u, sum, d);
        const float both = fmaxf(top, other_top);
        sum = (top == -INFINITY ? 0 : sum * __expf(top - both)) +
              (other_top == -INFINITY ? 0 : other_sum * __expf(other_top - both));
        top = both;
    }
    for (int i = lane; i < stride; i += 32) y[row * stride + i] = i < n ? __expf(x[row * stride + i] - top) / sum : 0;
}

// Blocks sum parts; the last block to finish adds them up in order, so the result does not depend on the schedule.
extern "C" __global__ void split_reduction(const float* x, float* partial, unsigned* finished, float* total, int n) {
    __shared__ float warps[8];
    __shared__ bool last;
    float sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (int d = 16; d; d >>= 1) sum += __shfl_down_sync(~0u, sum, d);
    if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        float block = 0;
        for (int w = 0; w < 8; ++w) block += warps[w];
        partial[blockIdx.x] = block;
        __threadfence();
        last = atomicAdd(finished, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x) return;
    float sum_all = 0;
    for (int b = 0; b < gridDim.x; ++b) sum_all += ((volatile float*)partial)[b];
    *total = sum_all;
    *finished = 0;
}

// Blocks add up their parts and meet in atomics: whole numbers give one result whatever the order, floats do not.
extern "C" __global__ void split_atomics(const int* x, int* totals, float* float_total, int n) {
    int sum = 0, least = 0x7fffffff, greatest = -0x7fffffff - 1;
    float float_sum = 0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        sum += x[i];
        least = min(least, x[i]);
        greatest = max(greatest, x[i]);
        float_sum += (float)x[i];
        atomicAdd(totals + 8 + (x[i] & 7), 1);
    }
    for (int d = 16; d; d >>= 1) {
        sum += __shfl_xor_sync(~0u, sum, d);
        least = min(least, __shfl_xor_sync(~0u, least, d));
        greatest = max(greatest, __shfl_xor_sync(~0u, greatest, d));
        float_sum += __shfl_xor_sync(~0u, float_sum, d);
    }
    if (threadIdx.x & 31) return;
    atomicAdd(totals, sum);
    atomicMin(totals + 1, least);
    atomicMax(totals + 2, greatest);
    atomicXor(totals + 3, sum);
    atomicAdd(float_total, float_sum);
}

// A warp goes on until its last lane is done, so trip counts differ from warp to warp, and lanes that are done still
// take part in the exchange. Then each lane loops as often as it had steps.
extern "C" __global__ void warp_trips(const unsigned* start, const float* x, unsigned* steps, unsigned* turns,
                                      unsigned* mixed, float* sums) {
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned n = start[t], own = 0, all = 0, mix = 0;
    while (__any_sync(~0u, n != 1)) {
        if (n != 1) {
            n = n & 1 ? 3 * n + 1 : n / 2;
            ++own;
        }
        mix = mix * 31 + __shfl_xor_sync(~0u, n, 1 + (all & 15));
        ++all;
    }
    float sum = 0;
    for (unsigned i = 0; i < own; ++i) sum += x[(t + 7 * i) & 255];
    steps[t] = own;
    turns[t] = all;
    mixed[t] = mix;
    sums[t] = sum;
}
