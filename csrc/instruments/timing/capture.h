// Records traces while blocks run: a few blocks from start to end, and the beginnings of all blocks that run at the
// same time, for what they share in L2.
#pragma once

#include <mutex>
#include <vector>

#include "instruments/instrument.h"
#include "instruments/timing/address_map.h"
#include "instruments/timing/block_trace.h"
#include "instruments/timing/program.h"
#include "instruments/timing/sampling.h"

namespace sm70emu::timing {

// What the observers of all worker threads hand in, in any order.
struct Captured {
    std::mutex mutex;
    std::vector<BlockTrace> blocks;
    std::vector<BlockHead> heads;
    // By block number, whatever the worker threads did.
    void sort();
};

std::unique_ptr<ThreadObserver> make_capture(const CapturePlan& plan, const Program& program,
                                             const AddressMap& addresses, Captured& captured);

}  // namespace sm70emu::timing
