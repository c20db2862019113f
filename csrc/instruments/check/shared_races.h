// Races in shared memory: two threads access a byte, one of them writes, and nothing orders the two accesses.
//
// Time is counted in stamps. Each lane has one, which changes when the lane takes part in a synchronisation; stamps
// only grow. Between warps a block barrier orders: one that all threads pass sets a floor, and accesses stamped below
// it are over. A barrier for some of the threads tells each thread that waits the stamps of those that arrived (a
// vector clock). Within a warp the lanes that take part in a __syncwarp(), a shuffle, a vote or a matrix product are
// ordered; being executed together is not enough, as the compiler promises it to nobody.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "emulator/access.h"
#include "emulator/machine.h"

namespace sm70emu::check {

enum class Access : uint8_t { Read, Write, Atomic };

class SharedRaces {
 public:
    void begin_block(const Block& block);
    /// The lanes meet: what one did before is ordered before what another does after.
    void meet(const Warp& warp, uint32_t lanes);
    /// Before a BAR: the lanes arrive at barriers[index]; `counted`: it is for a number of threads, not for all.
    void arrive(const Warp& warp, uint32_t lanes, uint8_t index, bool counted, bool waits);
    /// After a BAR or an exit: barriers may have let their threads go.
    void settle(const Block& block);

    /// Before an access of `width` bytes by executing lanes. `values`: rows of what is stored. Returns the first lane
    /// that races, or -1; `what` says with whom.
    int access(const Core& core, Access kind, const uint64_t* addresses, uint32_t lanes, uint32_t width,
               const uint32_t* values, std::string& what);

 private:
    /// The last accesses of a word, or of one of its bytes.
    struct Record {
        uint32_t write_stamp = 0;
        uint32_t write_tick = 0;  // which execution of an instruction
        uint32_t write_place = 0;
        uint32_t read_stamp = 0;  // of the last reading warp
        uint32_t read_lanes = 0;  // its lanes, at that stamp
        uint32_t readers = 0;     // warps, since read_floor
        uint32_t read_floor = 0;
        uint32_t read_place = 0;
    };
    struct WarpClock {
        uint32_t stamps[kLanes] = {};
        uint32_t met = 0;                                     // stamp of the last meeting of all live lanes
        std::vector<uint32_t> partial_stamps, partial_lanes;  // meetings of some lanes since
        uint32_t seen[kLanes] = {};                           // stamps of other warps that a barrier told of
    };
    struct Arrival {
        uint32_t warp = 0, lanes = 0;
        bool waits = false;
    };
    struct Barrier {
        uint32_t generation = 0;
        std::vector<Arrival> arrivals;
        uint32_t told[kLanes] = {};  // by warp, the largest stamp that the arrived know of
    };

    /// What a store brings, by lane, and where it goes.
    struct Store {
        const uint64_t* addresses;
        const uint32_t* values;  // rows
        const uint8_t* shared;
    };

    void restamp(WarpClock& clock, uint32_t lanes);
    bool ordered(uint32_t stamp, uint32_t warp, uint32_t lane, const WarpClock& mine, uint32_t my_warp,
                 uint32_t my_lane) const;
    /// Checks and records one lane's access to a word or part of it; returns the other party's place, or 0.
    __attribute__((noinline)) uint32_t check(Access kind, const Store& store, uint32_t lane, uint64_t address,
                                             uint32_t width);
    uint32_t check_read(Record& record, uint32_t lane, uint32_t word);
    uint32_t check_write(Record& record, uint32_t lane, uint32_t word, bool atomic, bool same_value);
    void note_read(Record& record, uint32_t lane, uint32_t word);
    Record* split(uint32_t word);
    /// Writing what is there already changes nothing for anybody.
    bool same_value(const Store& store, const Record& record, uint32_t lane, uint64_t address, uint32_t size) const;

    uint32_t counter_ = 0, floor_ = 0, tick_ = 0;
    uint32_t warp_ = 0, pc_ = 0;
    WarpClock* mine_ = nullptr;
    bool split_barriers_ = false;  // counted barriers are in use: reads keep a stamp for each warp
    std::vector<WarpClock> clocks_;
    std::vector<Record> records_;             // by word
    std::vector<std::vector<Record>> bytes_;  // of words that are accessed in parts
    std::vector<uint32_t> parts_;             // by word: 0, or 1 + index in bytes_
    std::vector<uint32_t> read_stamps_;       // by word and warp
    Barrier barriers_[16];
};

}  // namespace sm70emu::check
