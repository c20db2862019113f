// Division of 31-bit numbers by a divisor that the host knows: one multiplication, one addition, one shift, where the
// compiler's division by a variable takes about 20 instructions, some of them on the slow XU pipe.
// Method: Granlund and Montgomery, "Division by invariant integers using multiplication", PLDI 1994.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

struct FastDivisor {
    uint32_t divisor;
    uint32_t multiplier;
    uint32_t shift;

    // Quotient of a value below 2^31.
    SM70_HOST_DEVICE uint32_t divide(uint32_t value) const {
#ifdef __CUDACC_RTC__
        return (__umulhi(value, multiplier) + value) >> shift;
#else
        return static_cast<uint32_t>(((static_cast<uint64_t>(value) * multiplier >> 32) + value) >> shift);
#endif
    }

    SM70_HOST_DEVICE uint32_t remainder(uint32_t value, uint32_t quotient) const { return value - quotient * divisor; }
};

#ifndef __CUDACC_RTC__
// `divisor` from 1 to 2^31 - 1.
inline FastDivisor make_fast_divisor(uint32_t divisor) {
    uint32_t shift = 0;
    while ((uint64_t{1} << shift) < divisor) ++shift;
    const uint64_t multiplier = ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1;
    return {divisor, static_cast<uint32_t>(multiplier), shift};
}
#endif

}  // namespace sm70
