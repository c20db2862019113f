// What keeps the compiler from holding values in registers, for kernels that need every one.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// The same number, but hidden from the compiler. It computes what follows from the number again where it is needed,
// instead of keeping it in registers, or spilling it, through a long loop.
template <typename Integer>
__device__ __forceinline__ Integer forgotten(Integer number) {
    asm volatile("" : "+r"(number));
    return number;
}

// The same number, computed here. If the compiler put the computation off, its operands would stay in registers.
__device__ __forceinline__ float pinned(float number) {
    asm volatile("" : "+f"(number));
    return number;
}

}  // namespace sm70
