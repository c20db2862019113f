// Leaves of the reduction tree: a row's keys in runs of 128, counted from the row's start.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

constexpr uint32_t kLeafTokens = 128;

SM70_HOST_DEVICE int32_t leaves_of(int32_t length) {
    return static_cast<int32_t>((static_cast<uint32_t>(length) + (kLeafTokens - 1)) / kLeafTokens);
}

}  // namespace sm70
