#include "runtime/launch.h"

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/headeronly/util/shim_utils.h>

#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include "runtime/device_image.h"
#include "runtime/driver.h"
#include "runtime/emulation.h"

namespace sm70::runtime {

namespace {

struct LaunchCounts {
    std::mutex mutex;
    std::map<std::string, std::map<Image, uint64_t>> by_kernel;
};

LaunchCounts& launch_counts() {
    static LaunchCounts counts;
    return counts;
}

std::string describe(const Launch& request) {
    std::ostringstream text;
    text << "kernel '" << request.kernel << "' with grid (" << request.grid.x << ", " << request.grid.y << ", "
         << request.grid.z << "), block (" << request.block.x << ", " << request.block.y << ", " << request.block.z
         << "), " << request.dynamic_shared_bytes << " bytes of dynamic shared memory";
    return text.str();
}

void launch_on_cuda(const Launch& request, Image image) {
    const DeviceFacts& device = *request.device;
    const CurrentContext context(device);
    const CUkernel kernel = loaded_kernel(request.kernel, device, image);
    void* stream = nullptr;
    TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(device.index, &stream));
    void* arguments[] = {const_cast<void*>(request.params)};
    // A CUkernel is accepted where a CUfunction is wanted (CUDA driver API, cuLaunchKernel).
    const CUresult result =
        driver().launch_kernel(reinterpret_cast<CUfunction>(kernel), request.grid.x, request.grid.y, request.grid.z,
                               request.block.x, request.block.y, request.block.z, request.dynamic_shared_bytes,
                               static_cast<CUstream>(stream), arguments, nullptr);
    if (result != CUDA_SUCCESS) {
        throw std::runtime_error("launching " + describe(request) + " on " + device.name + ": driver error " +
                                 sm70::runtime::describe(result));
    }
}

const char* name_of(Image image) {
    switch (image) {
        case Image::kCubin: return "cubin";
        case Image::kPtx: return "ptx";
        case Image::kEmulatedCubin: return "emulated";
    }
    return "unknown";
}

}  // namespace

void launch(const Launch& request) {
    const DeviceFacts& device = *request.device;
    const Image image = choose_image(device);
    if (request.dynamic_shared_bytes > static_cast<uint32_t>(device.max_dynamic_shared_bytes)) {
        throw std::runtime_error(describe(request) + ": " + device.name + " has " +
                                 std::to_string(device.max_dynamic_shared_bytes) + " bytes a block");
    }
    if (image == Image::kEmulatedCubin) {
        launch_emulated(request);
    } else {
        launch_on_cuda(request, image);
    }
    LaunchCounts& counts = launch_counts();
    std::lock_guard lock(counts.mutex);
    ++counts.by_kernel[request.kernel][image];
}

std::string launch_counts_json() {
    LaunchCounts& counts = launch_counts();
    std::lock_guard lock(counts.mutex);
    std::ostringstream text;
    text << "{";
    const char* separator = "";
    for (const auto& [kernel, by_image] : counts.by_kernel) {
        text << separator << "\"" << kernel << "\": {";
        separator = "";
        for (const auto& [image, launches] : by_image) {
            text << separator << "\"" << name_of(image) << "\": " << launches;
            separator = ", ";
        }
        text << "}";
        separator = ", ";
    }
    text << "}";
    return text.str();
}

}  // namespace sm70::runtime
