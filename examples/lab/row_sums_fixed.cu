// row_sums.cu without its two bugs.

extern "C" __global__ void row_sums(const float* matrix, float* sums, int columns) {
    __shared__ float partial[256];
    const float* row = matrix + blockIdx.x * columns;
    float sum = 0.0f;
    for (int column = threadIdx.x; column < columns; column += blockDim.x) {
        sum += row[column];
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int half = blockDim.x / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        sums[blockIdx.x] = partial[0];
    }
}
