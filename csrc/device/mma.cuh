// Volta's tensor-core instruction m8n8k4 with FP16 operands and FP32 accumulation.
//
// The warp is four quad-pairs, each with a product of its own. Lane l, with quad = l & 3 and upper = l >> 4, belongs to
// quad-pair (l >> 2) & 3. (PTX ISA, "Matrix Fragments for mma.m8n8k4 with .f16 floating point type")
//
//   A, row      row quad + 4 * upper, k = 0..3
//   B, column   column quad + 4 * upper, k = 0..3
//   B, row      k = quad, columns 4 * upper + 0..3
//   C, D        element i: row (l & 1) + (i & 2) + 4 * upper, column (i & 4) + (l & 2) + (i & 1)
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// Four halves: two registers.
struct HalfFragment {
    uint32_t low, high;
};

struct Lane {
    uint32_t index = threadIdx.x & 31;
    uint32_t quad = index & 3;
    uint32_t upper = index >> 4;
    uint32_t quad_pair = (index >> 2) & 3;
    uint32_t operand_row = quad + 4 * upper;             // of A; column of a column-major B
    uint32_t accumulator_row = (index & 1) + 4 * upper;  // of elements 0, 1, 4, 5; the others' is 2 more

    // The lane's two rows of an accumulator, numbers 0 and 1: element i is in row i / 2 % 2 of them.
    __device__ __forceinline__ uint32_t row(int number) const { return accumulator_row + 2 * number; }

    // Eight lanes have the same rows. One of them stores what there is once per row.
    __device__ __forceinline__ bool leads_its_rows() const { return (index & 14) == 0; }

    // Column of accumulator element i, whose bit 1 does not matter.
    __device__ __forceinline__ uint32_t accumulator_column(uint32_t i) const { return (i & 4) + (index & 2) + (i & 1); }
};

// accumulator += a x b, B column-major (keys as columns: scores).
__device__ __forceinline__ void mma_row_col(float (&accumulator)[8], HalfFragment a, HalfFragment b) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3]), "+f"(accumulator[4]),
          "+f"(accumulator[5]), "+f"(accumulator[6]), "+f"(accumulator[7])
        : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high));
}

// accumulator += a x b, B row-major (keys as rows: values).
__device__ __forceinline__ void mma_row_row(float (&accumulator)[8], HalfFragment a, HalfFragment b) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, "
        "{%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(accumulator[0]), "+f"(accumulator[1]), "+f"(accumulator[2]), "+f"(accumulator[3]), "+f"(accumulator[4]),
          "+f"(accumulator[5]), "+f"(accumulator[6]), "+f"(accumulator[7])
        : "r"(a.low), "r"(a.high), "r"(b.low), "r"(b.high));
}

}  // namespace sm70
