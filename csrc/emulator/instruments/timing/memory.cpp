#include "memory.h"

#include <algorithm>
#include <cmath>

namespace sm70emu::timing {
namespace {

constexpr double kSectorBytes = 32;
constexpr int kL1Ways = 32;
// Over how many cycles utilisation is remembered: a few times the latency it decides.
constexpr double kLoadWindow = 2000;

}  // namespace

SmMemory::SmMemory(const Machine& machine, const L2Reuse& reuse, double l1_bytes, double sharing)
    : machine_(machine),
      reuse_(reuse),
      l1_(l1_bytes, kL1Ways),
      owed_(reuse.by_instruction.size(), 0.0),
      l2_bytes_per_cycle_(std::min(machine.l2_port_bytes, machine.l2_total_bytes / sharing)),
      // What one SM can take of DRAM is bounded by its port to L2.
      dram_bytes_per_cycle_(
          std::min(machine.l2_port_bytes, machine.dram_gbps * 1000 / machine.clock_mhz / sharing)),
      cycles_per_ns_(machine.clock_mhz / 1000) {}

/// The sectors of an instruction that go to DRAM: its share, carried over so that whole sectors come out.
double SmMemory::dram_sectors(uint32_t pc, int sectors) {
    owed_[pc] += reuse_.dram_share(pc) * sectors;
    const double whole = std::floor(owed_[pc] + 1e-9);
    owed_[pc] -= whole;
    return whole;
}

double SmMemory::dram(double now, double bytes, double cost) {
    const double busy = bytes * cost / dram_bytes_per_cycle_;
    const double start = std::max(now, dram_free_);
    dram_free_ = start + busy;
    counters_.dram_busy += busy;
    if (start > load_at_) {
        load_ *= std::exp((load_at_ - start) / kLoadWindow);
        load_at_ = start;
    }
    load_ += busy / kLoadWindow;
    return start + busy + (machine_.dram_latency_ns + machine_.dram_loaded_ns * std::min(1.0, load_)) * cycles_per_ns_;
}

double SmMemory::load(double now, uint32_t pc, uint64_t line, uint64_t salt, bool past_l1) {
    auto sectors = uint8_t(line & 15);
    double done = now + machine_.l1_latency;
    counters_.l1_sectors += __builtin_popcount(sectors);
    CacheLine* cached = past_l1 ? nullptr : l1_.find((line >> 4) ^ salt);
    if (cached) {
        const auto missing = uint8_t(sectors & ~cached->sectors);
        counters_.l1_hit_sectors += __builtin_popcount(sectors & cached->sectors);
        if (missing != sectors) done = std::max(done, cached->ready);
        cached->sectors |= sectors;
        sectors = missing;
    }
    if (!sectors) return done;
    const int count = __builtin_popcount(sectors);
    const double bytes = kSectorBytes * count, busy = bytes / l2_bytes_per_cycle_;
    const double start = std::max(now, from_l2_free_);
    from_l2_free_ = start + busy;
    counters_.l2_busy += busy;
    counters_.l2_read_bytes += bytes;
    double ready = start + busy + machine_.l2_latency;
    const double missed = dram_sectors(pc, count);
    if (missed > 0) {
        counters_.dram_read_bytes += missed * kSectorBytes;
        ready = std::max(ready, dram(start, missed * kSectorBytes, 1.0) + machine_.l2_latency);
    }
    if (cached) cached->ready = std::max(cached->ready, ready);
    return std::max(done, ready);
}

double SmMemory::store(double now, uint32_t pc, uint64_t line) {
    const int count = __builtin_popcount(unsigned(line & 15));
    const double bytes = kSectorBytes * count, busy = bytes / l2_bytes_per_cycle_;
    const double start = std::max(now, to_l2_free_);
    to_l2_free_ = start + busy;
    counters_.l2_write_bytes += bytes;
    const double missed = dram_sectors(pc, count);
    if (missed > 0) {
        counters_.dram_write_bytes += missed * kSectorBytes;
        dram(start, missed * kSectorBytes, machine_.dram_write_cost);
    }
    return start + busy;
}

double SmMemory::atomic(double now, uint32_t pc, uint64_t line) {
    const double done = store(now, pc, line);
    to_l2_free_ += machine_.atomic_cycles;
    return done + machine_.l2_latency;
}

}  // namespace sm70emu::timing
