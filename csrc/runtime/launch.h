// The one launch: every operator goes through it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sm70::runtime {

struct DeviceFacts;

struct Dim3 {
    uint32_t x = 1, y = 1, z = 1;
};

// Memory that a kernel may touch: a tensor's extent in bytes and whether the kernel may write it.
struct Buffer {
    const char* name;
    const void* data;
    size_t bytes;
    bool writable;
};

struct Launch {
    const char* kernel;
    Dim3 grid, block;
    uint32_t dynamic_shared_bytes = 0;
    const void* params;  // the kernel's one parameter struct
    size_t params_bytes;
    const DeviceFacts* device;  // where the operator's tensors are
    std::vector<Buffer> buffers;
};

// Launches on the device's current stream, or runs the kernel on the emulator. Throws std::runtime_error naming kernel,
// grid, block, shared bytes and the driver's code and text; nothing has run then.
void launch(const Launch& request);

// Launches of this process by kernel and image, as JSON: {"kernel": {"cubin": 3}}, also "ptx", "emulated".
std::string launch_counts_json();

}  // namespace sm70::runtime
