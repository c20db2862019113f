#include "runtime/device_image.h"

#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>
#include <tuple>

#include "runtime/driver.h"
#include "runtime/embedded.h"
#include "runtime/environment.h"

namespace sm70::runtime {

namespace {

void check(CUresult result, const std::string& what) {
    if (result != CUDA_SUCCESS) throw std::runtime_error(what + ": driver error " + describe(result));
}

int attribute(CUdevice device, CUdevice_attribute which) {
    int value = 0;
    check(driver().device_get_attribute(&value, which, device), "reading a device attribute");
    return value;
}

// Loading code is forbidden to a thread that captures a stream in the default mode, because it may synchronise. It
// records nothing into the capture, so the thread's mode is relaxed while it happens.
class RelaxedCapture {
 public:
    RelaxedCapture() { exchange(); }
    ~RelaxedCapture() { exchange(); }
    RelaxedCapture(const RelaxedCapture&) = delete;
    RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
    void exchange() { driver().thread_exchange_stream_capture_mode(&mode_); }
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

CUlibrary load_library(Image image) {
    char log[8192] = {};
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[] = {log, reinterpret_cast<void*>(sizeof(log))};
    const bool cubin = image == Image::kCubin;
    const void* data = cubin ? embedded_cubin().data() : embedded_ptx().data();
    CUlibrary library{};
    const CUresult result = driver().library_load_data(&library, data, options, values, 2, nullptr, nullptr, 0);
    if (result != CUDA_SUCCESS) {
        throw std::runtime_error(std::string("loading the embedded ") + (cubin ? "sm_70 cubin" : "compute_70 PTX") +
                                 ": driver error " + describe(result) + (log[0] ? std::string("\n") + log : ""));
    }
    return library;
}

}  // namespace

const DeviceFacts& device_facts(int index) {
    static std::mutex mutex;
    static std::map<int, std::unique_ptr<DeviceFacts>> known;  // pointers stay valid as the map grows
    std::lock_guard lock(mutex);
    std::unique_ptr<DeviceFacts>& entry = known[index];
    if (!entry) {
        CUdevice device{};
        check(driver().device_get(&device, index), "opening CUDA device " + std::to_string(index));
        char name[256] = {};
        check(driver().device_get_name(name, sizeof(name), device), "reading a device name");
        CUcontext context{};
        check(driver().device_primary_context_retain(&context, device), "retaining a device's primary context");
        entry = std::make_unique<DeviceFacts>(
            DeviceFacts{index, name, attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                        attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
                        attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT),
                        attribute(device, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), context});
    }
    return *entry;
}

Image choose_image(const DeviceFacts& device) {
    if (device.emulated()) return Image::kEmulatedCubin;
    if (device.major == 7 && device.minor == 0) return Image::kCubin;
    const std::string found = "device cuda:" + std::to_string(device.index) + ": got " + device.name + " (sm_" +
                              std::to_string(device.major) + std::to_string(device.minor) + "), want sm_70 (V100)";
    if (device.major < 7) throw std::runtime_error(found + ". This GPU can't run compute_70 code; use a V100");
    if (!environment_flag("SM70_KERNELS_ALLOW_JIT")) {
        throw std::runtime_error(found +
                                 ". Use a V100, or set SM70_KERNELS_ALLOW_JIT=1 to compile the embedded compute_70 "
                                 "PTX for this GPU (right results, times that say nothing about V100)");
    }
    return Image::kPtx;
}

CurrentContext::CurrentContext(const DeviceFacts& device) {
    check(driver().context_push_current(device.context), "making the context of " + device.name + " current");
}

CurrentContext::~CurrentContext() {
    CUcontext popped{};
    driver().context_pop_current(&popped);
}

CUkernel loaded_kernel(const char* name, const DeviceFacts& device, Image image) {
    static std::shared_mutex mutex;
    static std::map<Image, CUlibrary> libraries;  // never unloaded: a captured graph may hold their kernels
    static std::map<std::tuple<std::string, Image, int>, CUkernel> kernels;

    const auto key = std::make_tuple(std::string(name), image, device.index);
    {
        std::shared_lock lock(mutex);
        if (const auto found = kernels.find(key); found != kernels.end()) return found->second;
    }
    std::unique_lock lock(mutex);
    if (const auto found = kernels.find(key); found != kernels.end()) return found->second;

    const RelaxedCapture relaxed;
    if (libraries.find(image) == libraries.end()) libraries.emplace(image, load_library(image));
    const std::string what = std::string("loading kernel '") + name + "' for " + device.name;
    CUkernel kernel{};
    check(driver().library_get_kernel(&kernel, libraries.at(image), name), what);
    CUdevice cu_device{};
    check(driver().device_get(&cu_device, device.index), what);
    int static_bytes = 0;
    check(driver().kernel_get_attribute(&static_bytes, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel, cu_device), what);
    check(driver().kernel_set_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                        device.max_dynamic_shared_bytes - static_bytes, kernel, cu_device),
          what);
    kernels.emplace(key, kernel);
    return kernel;
}

}  // namespace sm70::runtime
