// Races in shared memory: two threads access a byte, one of them writes, and nothing orders the two accesses.
//
// Time is counted in stamps. Each lane has one, which changes when the lane takes part in a synchronisation; stamps
// only grow. Between warps a block barrier orders: one that all threads pass sets a floor, and accesses stamped below
// it are over. At a barrier for some of the threads, each thread that waits learns the stamps of those that arrived (a
// vector clock). Within a warp, the lanes that take part in a __syncwarp(), a shuffle, a vote or a matrix product are
// ordered. Being executed together orders nothing: the compiler does not promise it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/access.h"
#include "emulator/barrier.h"
#include "emulator/machine.h"

namespace sm70emu::check {

// The instruction and the lane of an access, in 32 bits: there is one of these for each word of shared memory.
class AccessSite {
 public:
    AccessSite() = default;
    AccessSite(uint32_t pc, uint32_t warp, uint32_t lane, bool atomic)
        : bits_(kPresent | (atomic ? kAtomic : 0) | lane << 25 | warp << 20 | std::min(pc, kUnknownPc)) {}
    bool present() const { return bits_ != 0; }
    bool atomic() const { return bits_ & kAtomic; }
    uint32_t lane() const { return bits_ >> 25 & 31; }
    uint32_t warp() const { return bits_ >> 20 & 31; }
    uint32_t pc() const { return bits_ & kUnknownPc; }

    // Stands for a program counter that is not known, or that does not fit.
    static constexpr uint32_t kUnknownPc = (1u << 20) - 1;

 private:
    static constexpr uint32_t kAtomic = 1u << 30, kPresent = 1u << 31;
    uint32_t bits_ = 0;
};

struct SharedRace {
    int lane = 0;
    std::string what;  // with whom
};

class SharedRaces {
 public:
    void begin_block(const Block& block);
    // The lanes meet: what one did before is ordered before what another does after.
    void meet(const Warp& warp, uint32_t lanes);
    // Before a BAR.
    void arrive(const Warp& warp, uint32_t lanes, const BarrierArrival& arrival);
    // After a BAR or an exit: barriers may have released their threads.
    void update_barriers(const Block& block);

    // Before an access of `width` bytes by executing lanes. `values`: rows of what is stored. Returns the first lane
    // that races, if there is one.
    std::optional<SharedRace> access(const Core& core, AccessKind kind, const LaneAddresses& addresses, uint32_t lanes,
                                     uint32_t width, const uint32_t* values);

 private:
    // The last accesses of a word, or of one of its bytes.
    struct Record {
        uint32_t write_stamp = 0;
        uint32_t write_tick = 0;  // which execution of an instruction
        AccessSite write_site;
        uint32_t read_stamp = 0;  // of the last reading warp
        uint32_t read_lanes = 0;  // its lanes, at that stamp
        uint32_t readers = 0;     // warps, since read_floor
        uint32_t read_floor = 0;
        AccessSite read_site;
    };
    struct WarpClock {
        uint32_t stamps[kLanes] = {};
        uint32_t met = 0;                                     // stamp of the last meeting of all live lanes
        std::vector<uint32_t> partial_stamps, partial_lanes;  // meetings of some lanes since
        uint32_t seen[kLanes] = {};                           // stamps of other warps, learnt at barriers
    };
    struct Arrival {
        uint32_t warp = 0, lanes = 0;
        bool waits = false;
    };
    struct BarrierClock {
        uint32_t generation = 0;
        std::vector<Arrival> arrivals;
        uint32_t newest[kLanes] = {};  // by warp, the largest stamp that the arrived know of
    };

    // What a store writes, by lane, and where.
    struct Store {
        const LaneAddresses& addresses;
        const uint32_t* values;  // rows
        const uint8_t* shared;
    };

    void restamp(WarpClock& clock, uint32_t lanes);
    // Whether an access by `warp` and `other` with this stamp is over for a lane of the running warp.
    bool ordered(uint32_t stamp, uint32_t warp, uint32_t other, uint32_t lane) const;
    // Checks and records one lane's access to a word or part of it; returns the access that it races with.
    __attribute__((noinline)) AccessSite check(AccessKind kind, const Store& store, uint32_t lane, uint64_t address,
                                               uint32_t width);
    AccessSite check_read(Record& record, uint32_t lane, uint32_t word);
    AccessSite check_write(Record& record, uint32_t lane, uint32_t word, bool atomic, bool same_value);
    void note_read(Record& record, uint32_t lane, uint32_t word);
    Record* split(uint32_t word);
    // Whether a store writes what is there already, which no reader can see.
    bool same_value(const Store& store, const Record& record, uint32_t lane, uint64_t address, uint32_t size) const;

    uint32_t counter_ = 0, floor_ = 0, tick_ = 0;
    uint32_t warp_ = 0, pc_ = 0;
    WarpClock* clock_ = nullptr;   // of the running warp
    bool split_barriers_ = false;  // counted barriers are in use: reads keep a stamp for each warp
    std::vector<WarpClock> clocks_;
    std::vector<Record> records_;             // by word
    std::vector<std::vector<Record>> bytes_;  // of words that are accessed in parts
    std::vector<uint32_t> parts_;             // by word: 0, or 1 + index in bytes_
    std::vector<uint32_t> read_stamps_;       // by word and warp
    BarrierClock barriers_[16];
};

}  // namespace sm70emu::check
