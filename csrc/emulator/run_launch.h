// Runs the blocks of a launch on worker threads.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/cubin.h"
#include "emulator/machine.h"

namespace sm70emu {

class LaunchObserver;

struct LaunchRequest {
    uint32_t grid[3] = {1, 1, 1};
    uint32_t block[3] = {1, 1, 1};
    uint32_t dynamic_shared_bytes = 0;
    std::vector<uint8_t> parameters;
    std::vector<GlobalBuffer> buffers;
    std::vector<uint64_t> sampled_blocks;  // linear indices; used if `sampled`
    bool sampled = false;
    uint64_t seed = 0;     // 0: natural order; otherwise shuffles blocks, warps and time slices
    uint32_t threads = 0;  // 0: one per processor
    TensorRounding tensor_rounding = TensorRounding::Truncate;
    uint64_t instruction_limit = 0;      // warp instructions per block; 0: the default
    LaunchObserver* observer = nullptr;  // may be null
};

struct LaunchResult {
    std::string error;  // empty if the launch succeeded
    uint64_t warp_instructions = 0;
    uint64_t blocks_run = 0;
    uint64_t blocks_total = 0;
    double seconds = 0;
};

// A kernel with the state of its module that a launch needs.
struct LoadedKernel {
    const KernelImage* image = nullptr;
    const DecodedKernel* decoded = nullptr;
    const ListedSection* section = nullptr;  // the listing, for observers that parse it
    const std::vector<uint8_t>* constant3 = nullptr;
    const std::vector<uint8_t>* constant4 = nullptr;
    const std::vector<GlobalBuffer>* globals = nullptr;
    const std::vector<ExternalFunction>* externals = nullptr;
};

LaunchResult run_launch(const LoadedKernel& kernel, const LaunchRequest& request);

}  // namespace sm70emu
