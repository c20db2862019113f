#include "instruments/timing/sm_memory.h"

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
      from_l2_(machine.l2_total_bytes / sharing, machine.l2_port_bytes, machine.burst_cycles),
      to_l2_(machine.l2_total_bytes / sharing, machine.l2_port_bytes, machine.burst_cycles),
      dram_(machine.dram_gbps * 1000 / machine.clock_mhz / sharing, machine.l2_port_bytes, machine.burst_cycles),
      cycles_per_ns_(machine.clock_mhz / 1000) {}

// The sectors of an instruction that go to DRAM: its share, the fraction kept for the next time, so that whole sectors
// come out.
double SmMemory::dram_sectors(uint32_t pc, int sectors) {
    owed_[pc] += reuse_.dram_share(pc) * sectors;
    const double whole = std::floor(owed_[pc] + 1e-9);
    owed_[pc] -= whole;
    return whole;
}

double SmMemory::from_dram(double now, double bytes, double cost) {
    const double busy = dram_.busy(bytes * cost), passed = dram_.pass(now, bytes * cost);
    counters_.dram_busy += busy;
    if (now > load_at_) {
        load_ *= std::exp((load_at_ - now) / kLoadWindow);
        load_at_ = now;
    }
    load_ += busy / kLoadWindow;
    return passed + (machine_.dram_latency_ns + machine_.dram_loaded_ns * std::min(1.0, load_)) * cycles_per_ns_;
}

double SmMemory::load(double now, uint32_t pc, TouchedLine line, uint64_t salt, bool past_l1) {
    uint8_t sectors = line.sectors();
    double done = now + machine_.l1_latency;
    counters_.l1_sectors += __builtin_popcount(sectors);
    CacheLine* cached = past_l1 ? nullptr : l1_.find(line.tag() ^ salt);
    if (cached) {
        const auto missing = static_cast<uint8_t>(sectors & ~cached->sectors);
        counters_.l1_hit_sectors += __builtin_popcount(sectors & cached->sectors);
        if (missing != sectors) done = std::max(done, cached->ready);
        cached->sectors |= sectors;
        sectors = missing;
    }
    if (!sectors) return done;
    const int count = __builtin_popcount(sectors);
    const double bytes = kSectorBytes * count;
    counters_.l2_busy += from_l2_.busy(bytes);
    counters_.l2_read_bytes += bytes;
    const double passed = from_l2_.pass(now, bytes);
    double ready = passed + machine_.l2_latency;
    const double missed = dram_sectors(pc, count);
    if (missed > 0) {
        counters_.dram_read_bytes += missed * kSectorBytes;
        ready = std::max(ready, from_dram(passed, missed * kSectorBytes, 1.0) + machine_.l2_latency);
    }
    if (cached) cached->ready = std::max(cached->ready, ready);
    return std::max(done, ready);
}

double SmMemory::store(double now, uint32_t pc, TouchedLine line) {
    const int count = line.sector_count();
    const double bytes = kSectorBytes * count, passed = to_l2_.pass(now, bytes);
    counters_.l2_write_bytes += bytes;
    const double missed = dram_sectors(pc, count);
    if (missed > 0) {
        counters_.dram_write_bytes += missed * kSectorBytes;
        from_dram(passed, missed * kSectorBytes, machine_.dram_write_cost);
    }
    return passed;
}

void SmMemory::store_to_stack(double now, TouchedLine line, uint64_t salt) {
    CacheLine* cached = l1_.find(line.tag() ^ salt);
    if (!cached) return;
    cached->sectors |= line.sectors();
    cached->ready = std::max(cached->ready, now);
}

double SmMemory::atomic(double now, uint32_t pc, TouchedLine line) {
    return store(now, pc, line) + machine_.atomic_cycles + machine_.l2_latency;
}

}  // namespace sm70emu::timing
