// From the SM that was simulated to the launch: which blocks an SM gets, how the waves of all blocks fill all SMs, and
// how far to trust it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "instruments/timing/capture.h"
#include "instruments/timing/l2_reuse.h"
#include "instruments/timing/sm.h"

namespace sm70emu::timing {

struct LaunchShape {
    uint64_t blocks = 1;
    uint32_t warps = 1;  // per block
    uint32_t registers = 0;
    uint32_t shared_bytes = 0;
};

struct Occupancy {
    uint32_t blocks = 1;  // per SM
    std::string limit;    // what bounds it
    double l1_bytes = 0;  // what shared memory leaves
};

Occupancy occupancy(const LaunchShape& shape, const Machine& machine);

struct Estimate {
    double clock_mhz = 0;
    double cycles = 0;           // of the kernel, without the launch's fixed cost
    double ms = 0;               // with it
    SmResult sm;                 // the SM that decides
    double simulated_share = 1;  // of its instructions; the rest at the rate of the second half
    double busy_sms = 1;
    double sharing = 1;  // SMs that share L2 and DRAM with this one, in its terms
    double balance = 1;  // all blocks scheduled as they come, against this SM's own list
    double extrapolation_error = 0, sampling_error = 0, phase_error = 0;  // relative
    double instructions = 0;                                              // warp instructions of the launch
    double dram_read_bytes = 0, dram_write_bytes = 0, tensor_flops = 0;
};

Estimate compose(const LaunchShape& shape, const std::vector<BlockTrace>& blocks, const Program& program,
                 const Machine& machine, const L2Reuse& reuse, uint64_t instruction_budget);

}  // namespace sm70emu::timing
