// The memory that one SM sees: its L1, its port to L2, and its share of what L2 and DRAM give to all SMs. Requests come
// in the order of time and each stage is a queue, so when a request is done is known as soon as it is made.
#pragma once

#include <algorithm>

#include "cache.h"
#include "l2_reuse.h"
#include "machine.h"

namespace sm70emu::timing {

struct MemoryCounters {
    double l1_sectors = 0, l1_hit_sectors = 0;
    double l2_read_bytes = 0, l2_write_bytes = 0;
    double dram_read_bytes = 0, dram_write_bytes = 0;
    double dram_busy = 0, l2_busy = 0;  // cycles
};

class SmMemory {
 public:
    /// `sharing`: the SMs that are busy, this one included.
    SmMemory(const Machine& machine, const L2Reuse& reuse, double l1_bytes, double sharing);

    /// When the data of one line of a load is there. `salt` keeps blocks apart that replay one trace.
    double load(double now, uint32_t pc, uint64_t line, uint64_t salt, bool past_l1);
    /// When the line has been handed to L2.
    double store(double now, uint32_t pc, uint64_t line);
    double atomic(double now, uint32_t pc, uint64_t line);
    /// When a store may leave the SM: L2 holds back so much and no more.
    double store_gate(double now) const { return std::max(now, dram_free_ - machine_.store_backlog_cycles); }
    /// When all that was written is written.
    double drained() const { return std::max(std::max(dram_free_, to_l2_free_), from_l2_free_); }

    const MemoryCounters& counters() const { return counters_; }

 private:
    double dram_sectors(uint32_t pc, int sectors);
    double dram(double now, double bytes, double cost);

    const Machine& machine_;
    const L2Reuse& reuse_;
    Cache l1_;
    std::vector<double> owed_;  // by instruction: sectors that DRAM owes, below one
    double l2_bytes_per_cycle_, dram_bytes_per_cycle_, cycles_per_ns_;
    double from_l2_free_ = 0, to_l2_free_ = 0, dram_free_ = 0;
    double load_ = 0, load_at_ = 0;  // recent utilisation of DRAM
    MemoryCounters counters_;
};

}  // namespace sm70emu::timing
