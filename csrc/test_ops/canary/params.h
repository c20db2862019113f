// Kernel parameters of the canary: plain data shared by the kernels and op.cpp.
#pragma once

#include "device/fixed_width.h"

namespace sm70::canary {

constexpr int32_t kThreads = 128;

struct Params {
    int32_t* out;       // [elements]
    const int32_t* in;  // [elements], read by some faults
    int32_t elements;
};

}  // namespace sm70::canary
