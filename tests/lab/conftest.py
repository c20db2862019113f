"""A module of small kernels that the laboratory's tests launch."""

from __future__ import annotations

import pytest

from sm70_kernels import lab

SOURCE = """
__device__ int counter;
__constant__ float weights[4];

extern "C" __global__ void saxpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
extern "C" __global__ void count(int* out) {
    if (threadIdx.x == 0) out[0] = atomicAdd(&counter, 1);
}
extern "C" __global__ void weigh(float* y) { y[threadIdx.x] = weights[threadIdx.x % 4]; }
extern "C" __global__ void reverse(int* values) {
    extern __shared__ int tile[];
    tile[threadIdx.x] = values[threadIdx.x];
    __syncthreads();
    values[threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}
struct View { const float* data; int offset; };
extern "C" __global__ void through(View view, float* y) { y[threadIdx.x] = view.data[threadIdx.x + view.offset]; }
extern "C" __global__ void __launch_bounds__(64) bounded(int* y) { y[threadIdx.x] = 1; }
extern "C" __global__ void nothing() {}

namespace lib {
template <typename T>
__global__ void scale(T* values, T factor) { values[threadIdx.x] *= factor; }
template __global__ void scale<float>(float*, float);
template __global__ void scale<double>(double*, double);
__global__ void fill(int* values) { values[threadIdx.x] = 7; }
}
"""


@pytest.fixture(scope="session")
def module() -> lab.Module:
    return lab.compile_source(SOURCE)
