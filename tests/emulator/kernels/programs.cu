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
