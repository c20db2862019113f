// Size of a partial state in the workspace: what the host reserves and kernels index by.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// The partial state of one row and KV head over some of the row's keys: FP32 numerators [G][D], then the maximum and
// sum of each of the G query heads. Rounded up so that the next partial state starts 16-byte aligned.
SM70_HOST_DEVICE int64_t partial_state_floats(int64_t group, int64_t head_dim) {
    return (group * (head_dim + 2) + 3) / 4 * 4;
}

}  // namespace sm70
