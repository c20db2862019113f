// Which of the DSO's two embedded images a device runs, and its kernels loaded there.
//
// A device of compute capability 7.0 runs the sm_70 cubin. Any other runs the compute_70 PTX, compiled by its driver,
// and only after SM70_KERNELS_ALLOW_JIT=1: its numbers are good for checking, its times are not a V100's. The choice
// is made from the capability before anything is loaded, because loading a wrong cubin fails late and obscurely. CPU
// tensors run the cubin on the emulator, where that is switched on (emulation.h).
#pragma once

#include <cuda.h>

#include <string>

namespace sm70::runtime {

enum class Image { kCubin, kPtx, kEmulatedCubin };

struct DeviceFacts {
    int index;
    std::string name;
    int major, minor;
    int multiprocessors;
    int max_dynamic_shared_bytes;  // with opt-in
    CUcontext context;             // the device's primary context, which torch uses

    bool emulated() const { return index < 0; }
};

// Facts of a CUDA device, read once. Throws std::runtime_error with the driver's code and text.
const DeviceFacts& device_facts(int index);

// The image for this device. Throws std::runtime_error, with the remedy, for a device that is refused.
Image choose_image(const DeviceFacts& device);

// Makes a device's context the calling thread's current one. A thread that has used no CUDA function has none, and
// torch's own guard does not give it one as long as it stays on device 0.
class CurrentContext {
 public:
    explicit CurrentContext(const DeviceFacts& device);
    ~CurrentContext();
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;
};

// A kernel of this DSO, ready to be launched on the device: image loaded and the dynamic shared-memory limit raised
// to the device's maximum. The device's context is current. Loaded on first use, thread-safe, also inside a stream
// capture.
CUkernel loaded_kernel(const char* name, const DeviceFacts& device, Image image);

}  // namespace sm70::runtime
