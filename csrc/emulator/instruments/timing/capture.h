// Records traces while blocks run: a few blocks from start to end, and the beginnings of all blocks that run at the
// same time, for what they share in L2.
#pragma once

#include <mutex>
#include <set>
#include <vector>

#include "address_map.h"
#include "emulator/instruments/instrument.h"
#include "program.h"
#include "trace.h"

namespace sm70emu::timing {

struct CaptureLimits {
    uint64_t whole_blocks = 8;                // blocks traced from start to end
    uint64_t recorded_per_block = 3'000'000;  // warp instructions kept of each; the rest is counted
    uint64_t head_instructions = 6'000'000;   // of all heads together
    uint64_t least_head = 1024;               // a warp
};

/// Which blocks run, and how far.
struct CapturePlan {
    std::set<uint64_t> whole;
    uint64_t heads = 0;        // blocks 0 .. heads-1
    uint64_t head_length = 0;  // instructions a warp
    uint64_t warp_limit = 0;   // recorded instructions a warp of a whole block
};

CapturePlan plan_capture(uint64_t blocks, uint64_t concurrent, uint32_t warps, const CaptureLimits& limits);

/// What the watchers of one launch hand in, in any order.
struct Captured {
    std::mutex mutex;
    std::vector<BlockTrace> blocks;
    std::vector<BlockHead> heads;
    /// By block number, whatever the worker threads did.
    void sort();
};

std::unique_ptr<Watcher> make_capture(const CapturePlan& plan, const Program& program, const AddressMap& addresses,
                                      Captured& captured);

}  // namespace sm70emu::timing
