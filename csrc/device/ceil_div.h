// Integer division that rounds up, for host and device.
#pragma once

#include "device/fixed_width.h"

namespace sm70 {

// a / b rounded up: a >= 0, b > 0, and a + b - 1 fits the type.
template <typename Integer>
SM70_HOST_DEVICE constexpr Integer ceil_div(Integer a, Integer b) {
    return (a + b - 1) / b;
}

}  // namespace sm70
