// CPU tensors on the emulated V100: whether it is switched on, and the launch.
//
// Off by default: a silent slow route is a fault. It is on for a thread inside Python's
// sm70_kernels.lab.emulator.enabled(), and for the process with SM70_KERNELS_EMULATE=1. The emulator is a DSO of its
// own, opened on first use.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/device_image.h"
#include "runtime/launch.h"

extern "C" {

// How a thread emulates; sm70_kernels/emulator.py has the same struct. Zeros are the emulator's defaults.
struct sm70_kernels_emulation {
    uint32_t struct_bytes;
    uint32_t round_to_nearest;   // tensor cores round to nearest instead of truncating
    uint32_t threads;            // worker threads; 0: one for each processor
    uint32_t multiprocessors;    // of the device that operators see; 0: 80
    uint64_t seed;               // shuffles the schedule; 0: natural order
    uint64_t max_blocks;         // run at most so many blocks of a grid, evenly spaced; 0: all
    uint64_t instruction_limit;  // warp instructions of a block before it is taken to hang
    void* instruments;           // sm70emu_observer, the instruments that watch the launches; may be null
};
}

namespace sm70::runtime {

// Whether CPU tensors go to the emulator in this thread. Throws on an unknown value of the environment variable.
bool emulation_enabled();

// The facts of the emulated V100.
const DeviceFacts& emulated_device();

// Runs a kernel of this DSO's cubin to its end. Throws std::runtime_error with the emulator's report.
void launch_emulated(const Launch& request);

}  // namespace sm70::runtime
