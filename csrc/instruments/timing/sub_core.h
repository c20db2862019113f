// A sub-core of the model: its warps, its pipes, and its queues to the SM's port.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "instruments/pipes.h"
#include "instruments/timing/cache.h"
#include "instruments/timing/machine_table.h"
#include "instruments/timing/warp.h"

namespace sm70emu::timing {

inline int64_t whole_cycles(double cycles) {
    return static_cast<int64_t>(std::ceil(cycles - 1e-9));
}

// A queue of fixed depth between a sub-core and the SM's port: in order, so it is full until its oldest entry leaves.
class Queue {
 public:
    explicit Queue(double depth) : leaves_(static_cast<size_t>(depth), 0) {}
    int64_t has_place() const { return leaves_[next_]; }
    // An entry goes in at `now`, and leaves when the ones before it have left and what it needs is free.
    int64_t pass(int64_t now, double spacing, int64_t free) {
        last_ = std::max({now, last_ + whole_cycles(spacing), free});
        leaves_[next_] = last_;
        next_ = (next_ + 1) % leaves_.size();
        return last_;
    }

 private:
    std::vector<int64_t> leaves_;
    size_t next_ = 0;
    int64_t last_ = -1000;
};

struct SubCore {
    SubCore(const Machine& machine)
        : mio(machine.mio_queue), lg(machine.mio_queue), instructions(machine.instruction_cache_bytes, 8) {}
    std::vector<ResidentWarp*> warps;  // oldest first
    ResidentWarp* last = nullptr;      // issued last and asked for no change
    int64_t wake = kNever, issue_free = 0, xu_free = 0;
    double fetch_free = 0;
    std::array<int64_t, kPipes> pipe_free{};
    Queue mio, lg;
    Cache instructions;
};

}  // namespace sm70emu::timing
