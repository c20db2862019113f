// Predicated loads without branches.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// 8 bytes that the kernel never writes. Where `live` is false nothing is loaded, and the result is zeros, the bits of 0
// in every format.
__device__ __forceinline__ uint2 load_8_bytes(const void* address, bool live) {
    uint2 words = make_uint2(0, 0);
    asm("{\n\t"
        ".reg .pred live;\n\t"
        "setp.ne.u32 live, %3, 0;\n\t"
        "@live ld.global.nc.v2.u32 {%0, %1}, [%2];\n\t"
        "}"
        : "+r"(words.x), "+r"(words.y)
        : "l"(address), "r"(static_cast<uint32_t>(live)));
    return words;
}

// The same for 16 bytes. If `wide` is false the address is only 8-byte aligned, and two loads are needed.
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

// Loads where `live`; elsewhere `words` stay as they are. With a `live` that is always true, but not known to be when
// compiling, this keeps the load early: ptxas would gain no register by moving it down to where its result is used.
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

// load_16_bytes() from several addresses. `all` says that all of them are live and 16-byte aligned, in all lanes of the
// warp: then each load is one instruction, with nothing to prepare.
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
