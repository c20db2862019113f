// The memory that one SM sees: its L1, its port to L2, and its share of what L2 and DRAM give to all SMs. Requests come
// in the order of time and each stage is a queue, so when a request is done is known as soon as it is made.
#pragma once

#include <algorithm>

#include "instruments/timing/block_trace.h"
#include "instruments/timing/cache.h"
#include "instruments/timing/l2_reuse.h"
#include "instruments/timing/machine_table.h"

namespace sm70emu::timing {

struct MemoryCounters {
    double l1_sectors = 0, l1_hit_sectors = 0;
    double l2_read_bytes = 0, l2_write_bytes = 0;
    double dram_read_bytes = 0, dram_write_bytes = 0;
    double dram_busy = 0, l2_busy = 0;  // cycles
};

// What an SM gets of something that all SMs share: its part on average, and more for a while if it took less before.
class Share {
 public:
    Share(double bytes_per_cycle, double port_bytes, double burst_cycles)
        : rate_(std::min(bytes_per_cycle, port_bytes)), port_(port_bytes), burst_(burst_cycles) {}
    // When the bytes have passed.
    double pass(double now, double bytes) {
        const double start = std::max({now, port_free_, due_});
        due_ = std::max(due_, now - burst_) + bytes / rate_;
        port_free_ = start + bytes / port_;
        return port_free_;
    }
    // When it would be idle if it served at its average.
    double free() const { return std::max(due_, port_free_); }
    double busy(double bytes) const { return bytes / rate_; }

 private:
    double rate_, port_, burst_;
    double port_free_ = 0, due_ = 0;
};

class SmMemory {
 public:
    // `sharing`: the SMs that are busy, this one included.
    SmMemory(const Machine& machine, const L2Reuse& reuse, double l1_bytes, double sharing);

    // When the data of one line of a load is there. `salt` keeps blocks apart that replay one trace.
    double load(double now, uint32_t pc, TouchedLine line, uint64_t salt, bool past_l1);
    // When the line has been handed to L2.
    double store(double now, uint32_t pc, TouchedLine line);
    // A store to the stack stays in L1.
    void store_to_stack(double now, TouchedLine line, uint64_t salt);
    double atomic(double now, uint32_t pc, TouchedLine line);
    // When a store may leave the SM: L2 holds back so much and no more.
    double store_gate(double now) const { return std::max(now, dram_.free() - machine_.store_backlog_cycles); }
    // When all that was written is written.
    double drained() const { return std::max({dram_.free(), to_l2_.free(), from_l2_.free()}); }

    const MemoryCounters& counters() const { return counters_; }

 private:
    double dram_sectors(uint32_t pc, int sectors);
    double from_dram(double now, double bytes, double cost);

    const Machine& machine_;
    const L2Reuse& reuse_;
    Cache l1_;
    std::vector<double> owed_;  // by instruction: sectors that DRAM owes, below one
    Share from_l2_, to_l2_, dram_;
    double cycles_per_ns_;
    double load_ = 0, load_at_ = 0;  // recent utilisation of DRAM
    MemoryCounters counters_;
};

}  // namespace sm70emu::timing
