// Switches from the environment. sm70_kernels/_variables.py names them all.
#pragma once

namespace sm70::runtime {

// Whether a flag is set to 1. Unset and 0 are off; anything else throws std::runtime_error.
bool environment_flag(const char* name);

}  // namespace sm70::runtime
