// Which blocks of a launch run, how far, and when they are enough.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "instruments/timing/block_trace.h"

namespace sm70emu::timing {

struct CaptureLimits {
    uint64_t whole_blocks = 8;                // blocks traced from start to end, at most
    uint64_t emulated = 100'000'000;          // warp instructions of these that are taken to be cheap
    uint64_t recorded_per_block = 3'000'000;  // warp instructions kept of each; the rest is counted
    uint64_t head_instructions = 16'000'000;  // of all heads together
    uint64_t least_head = 1024;               // per warp
};

// Blocks run in rounds, each of them once, so that what is decided between rounds depends on nothing but what they
// executed.
struct CapturePlan {
    std::set<uint64_t> whole;       // run from start to end, in this round or one before
    std::vector<uint64_t> pending;  // run next, two per round, unless the blocks before are enough
    uint64_t heads = 0;             // of blocks 0 .. heads - 1
    uint64_t head_length = 0;       // instructions per warp
    uint64_t warp_limit = 0;        // recorded instructions a warp of a whole block
};

CapturePlan plan_capture(uint64_t blocks, uint64_t concurrent, uint32_t warps, const CaptureLimits& limits);

// The blocks of the first round.
std::vector<uint64_t> first_round(const CapturePlan& plan);
// Those of the next one, after `traces`; none: it is over.
std::vector<uint64_t> next_round(CapturePlan& plan, const std::vector<BlockTrace>& traces, uint64_t blocks,
                                 const CaptureLimits& limits);

// Standard error of the mean of the traced blocks' lengths, as a part of it.
double sampling_error(const std::vector<BlockTrace>& traces, uint64_t blocks);

}  // namespace sm70emu::timing
