#include "runtime/driver.h"

#include <dlfcn.h>

#include <stdexcept>

namespace sm70::runtime {

namespace {

template <typename Function>
void resolve(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) {
        throw std::runtime_error(std::string("the CUDA driver (libcuda.so.1) has no function ") + name +
                                 ": it is older than CUDA 12.0. Install driver 525 or newer; 580 is the last branch "
                                 "that supports V100");
    }
}

Driver open_driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error(std::string("the CUDA driver library libcuda.so.1 can't be opened (") + dlerror() +
                                 "). Install the NVIDIA driver, or start the container with --gpus all");
    }
    Driver table{};
    resolve(library, "cuGetErrorName", table.get_error_name);
    resolve(library, "cuGetErrorString", table.get_error_string);
    resolve(library, "cuDeviceGet", table.device_get);
    resolve(library, "cuDeviceGetName", table.device_get_name);
    resolve(library, "cuDeviceGetAttribute", table.device_get_attribute);
    resolve(library, "cuDevicePrimaryCtxRetain", table.device_primary_context_retain);
    // cuda.h renames these two to their current versions.
    resolve(library, "cuCtxPushCurrent_v2", table.context_push_current);
    resolve(library, "cuCtxPopCurrent_v2", table.context_pop_current);
    resolve(library, "cuLibraryLoadData", table.library_load_data);
    resolve(library, "cuLibraryGetKernel", table.library_get_kernel);
    resolve(library, "cuKernelGetAttribute", table.kernel_get_attribute);
    resolve(library, "cuKernelSetAttribute", table.kernel_set_attribute);
    resolve(library, "cuLaunchKernel", table.launch_kernel);
    resolve(library, "cuThreadExchangeStreamCaptureMode", table.thread_exchange_stream_capture_mode);
    return table;
}

}  // namespace

const Driver& driver() {
    static const Driver table = open_driver();  // thread-safe; an exception leaves it to be tried again
    return table;
}

std::string describe(CUresult result) {
    const char* name = nullptr;
    const char* text = nullptr;
    driver().get_error_name(result, &name);
    driver().get_error_string(result, &text);
    return std::to_string(static_cast<int>(result)) + " (" + (name ? name : "unknown") + ": " +
           (text ? text : "no text") + ")";
}

}  // namespace sm70::runtime
