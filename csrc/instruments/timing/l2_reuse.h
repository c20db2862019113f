// How much of an instruction's traffic L2 serves: all blocks that run at the same time are replayed through one L2, in
// step, from their heads.
#pragma once

#include <cstdint>
#include <vector>

#include "instruments/timing/block_trace.h"
#include "instruments/timing/program.h"

namespace sm70emu::timing {

struct Traffic {
    uint64_t sectors = 0;  // that reach L2
    uint64_t dram = 0;     // of these, that DRAM must read or, for stores, will be written
};

struct L2Reuse {
    std::vector<Traffic> by_instruction;
    Traffic loads, stores;
    // Part of the sectors of an instruction that go to DRAM. An instruction that no head reached is assumed to miss.
    double dram_share(uint32_t pc) const {
        const Traffic& traffic = by_instruction[pc];
        return traffic.sectors ? static_cast<double>(traffic.dram) / static_cast<double>(traffic.sectors) : 1.0;
    }
};

// `l1_bytes`: what one block has of its SM's L1.
L2Reuse replay_heads(const std::vector<BlockHead>& heads, const Program& program, const Machine& machine,
                     double l1_bytes);

}  // namespace sm70emu::timing
