// Predicated loads without branches.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// 16 bytes that the kernel never writes; zeros, the bits of 0 in every format, where `live` is false: nothing is loaded
// then. Without `wide` the address is only 8-byte aligned.
__device__ __forceinline__ uint4 load_16_bytes(const void* address, bool live, bool wide) {
    uint4 words = make_uint4(0, 0, 0, 0);
    const uint32_t as_one = live && wide, as_two = live && !wide;
    asm("{\n\t"
        ".reg .pred one, two;\n\t"
        "setp.ne.u32 one, %5, 0;\n\t"
        "setp.ne.u32 two, %6, 0;\n\t"
        "@one ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "@two ld.global.nc.v2.u32 {%0, %1}, [%4];\n\t"
        "@two ld.global.nc.v2.u32 {%2, %3}, [%4 + 8];\n\t"
        "}"
        : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)
        : "l"(address), "r"(as_one), "r"(as_two));
    return words;
}

// Loads where `live`; `words` stay as they are elsewhere. For a `live` that is always true this keeps the compiler from
// putting the load off until shortly before its result is used: nothing is gained by that if `words` are there anyway.
__device__ __forceinline__ void load_16_bytes_over(uint4& words, const void* address, bool live, bool wide) {
    const uint32_t as_one = live && wide, as_two = live && !wide;
    asm("{\n\t"
        ".reg .pred one, two;\n\t"
        "setp.ne.u32 one, %5, 0;\n\t"
        "setp.ne.u32 two, %6, 0;\n\t"
        "@one ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n\t"
        "@two ld.global.nc.v2.u32 {%0, %1}, [%4];\n\t"
        "@two ld.global.nc.v2.u32 {%2, %3}, [%4 + 8];\n\t"
        "}"
        : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)
        : "l"(address), "r"(as_one), "r"(as_two));
}

// The same of several addresses. `all`: all are live and aligned to 16 bytes, for all lanes of the warp; then the loads
// are one instruction each, with nothing to prepare.
template <int kCount, typename Address, typename Live>
__device__ __forceinline__ void load_16_bytes_each(uint4 (&words)[kCount], bool all, bool wide, Address address,
                                                   Live live) {
    if (all) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) words[i] = __ldg(reinterpret_cast<const uint4*>(address(i)));
    } else {
#pragma unroll
        for (int i = 0; i < kCount; ++i) words[i] = load_16_bytes(address(i), live(i), wide);
    }
}

}  // namespace sm70
