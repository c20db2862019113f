// Help for kernels that need every register.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// The same number, of which the compiler does not know that: what is computed from it is computed again where it is
// needed, instead of being kept in registers, or spilled, through a long loop.
template <typename Integer>
__device__ __forceinline__ Integer forgotten(Integer number) {
    asm volatile("" : "+r"(number));
    return number;
}

// The same number, computed here: the compiler does not put the computation off, which would keep its operands in
// registers.
__device__ __forceinline__ float pinned(float number) {
    asm volatile("" : "+f"(number));
    return number;
}

}  // namespace sm70
