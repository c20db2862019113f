#include "instruments/check/shared_races.h"

#include <algorithm>
#include <cstring>

#include "instruments/check/findings.h"

namespace sm70emu::check {
namespace {

// A place: 1 bit "there is one", 1 bit atomic, lane, warp, program counter.
constexpr uint32_t kAtomic = 1u << 30, kPlace = 1u << 31;
constexpr uint32_t kLargestPc = (1u << 20) - 1;

uint32_t place_of(uint32_t pc, uint32_t warp, uint32_t lane, bool atomic) {
    return kPlace | (atomic ? kAtomic : 0) | lane << 25 | warp << 20 | std::min(pc, kLargestPc);
}
uint32_t lane_of(uint32_t place) {
    return place >> 25 & 31;
}
uint32_t warp_of(uint32_t place) {
    return place >> 20 & 31;
}

}  // namespace

void SharedRaces::begin_block(const Block& block) {
    // Stamps of the block before lie below the floor, so that records need no clearing; unless the counter is near its
    // end.
    const size_t words = (block.shared_bytes + 3) / 4;
    if (records_.size() != words || counter_ > 1u << 31) {
        records_.assign(words, Record());
        parts_.assign(words, 0);
        bytes_.clear();
        counter_ = 1;
    }
    floor_ = ++counter_;
    clocks_.resize(block.warps.size());
    for (auto& clock : clocks_) {
        clock.partial_stamps.clear();
        clock.partial_lanes.clear();
        std::fill_n(clock.seen, kLanes, 0u);
        restamp(clock, kAllLanes);
        clock.met = clock.stamps[0];
    }
    for (size_t i = 0; i < 16; ++i) {
        barriers_[i] = Barrier();
        barriers_[i].generation = block.barriers[i].generation;
    }
    split_barriers_ = false;
}

void SharedRaces::restamp(WarpClock& clock, uint32_t lanes) {
    const uint32_t stamp = ++counter_;
    if (lanes == kAllLanes) {
        std::fill_n(clock.stamps, kLanes, stamp);
        return;
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) clock.stamps[__builtin_ctz(rest)] = stamp;
}

void SharedRaces::meet(const Warp& warp, uint32_t lanes) {
    WarpClock& clock = clocks_[warp.index];
    if ((warp.live & ~lanes) == 0) {
        restamp(clock, kAllLanes);
        clock.met = clock.stamps[0];
        clock.partial_stamps.clear();
        clock.partial_lanes.clear();
        return;
    }
    restamp(clock, lanes);
    clock.partial_stamps.push_back(counter_);
    clock.partial_lanes.push_back(lanes);
    constexpr size_t kMostPartial = 64;  // the oldest are forgotten, at the price of a false report
    if (clock.partial_stamps.size() > kMostPartial) {
        clock.partial_stamps.erase(clock.partial_stamps.begin());
        clock.partial_lanes.erase(clock.partial_lanes.begin());
    }
}

void SharedRaces::arrive(const Warp& warp, uint32_t lanes, uint8_t index, bool counted, bool waits) {
    if (counted && !split_barriers_) {
        // From here on reads are kept with the stamp of their warp; those so far are as old as their warp at most.
        split_barriers_ = true;
        read_stamps_.resize(records_.size() * kLanes);
        for (size_t w = 0; w < clocks_.size(); ++w) {
            const uint32_t newest = *std::max_element(clocks_[w].stamps, clocks_[w].stamps + kLanes);
            for (size_t word = 0; word < records_.size(); ++word) read_stamps_[word * kLanes + w] = newest;
        }
    }
    Barrier& barrier = barriers_[index];
    WarpClock& clock = clocks_[warp.index];
    barrier.arrivals.push_back({warp.index, lanes, waits});
    for (int w = 0; w < kLanes; ++w) barrier.told[w] = std::max(barrier.told[w], clock.seen[w]);
    for (uint32_t rest = lanes; rest; rest &= rest - 1)
        barrier.told[warp.index] = std::max(barrier.told[warp.index], clock.stamps[__builtin_ctz(rest)]);
    meet(warp, lanes);
}

void SharedRaces::settle(const Block& block) {
    for (size_t index = 0; index < 16; ++index) {
        Barrier& barrier = barriers_[index];
        if (barrier.generation == block.barriers[index].generation) continue;
        barrier.generation = block.barriers[index].generation;
        uint32_t waited = 0;
        for (const auto& arrival : barrier.arrivals)
            if (arrival.waits) waited += uint32_t(__builtin_popcount(arrival.lanes & block.warps[arrival.warp].live));
        if (waited == block.live_lanes) {
            floor_ = ++counter_;
            for (auto& clock : clocks_) restamp(clock, kAllLanes);
            for (auto& clock : clocks_) clock.met = clock.stamps[0];
        } else {
            for (const auto& arrival : barrier.arrivals) {
                if (!arrival.waits) continue;
                WarpClock& clock = clocks_[arrival.warp];
                for (int w = 0; w < kLanes; ++w) clock.seen[w] = std::max(clock.seen[w], barrier.told[w]);
            }
        }
        barrier.arrivals.clear();
        std::fill_n(barrier.told, kLanes, 0u);
    }
}

/// Whether an access stamped so is over for a lane of the running warp.
bool SharedRaces::ordered(uint32_t stamp, uint32_t warp, uint32_t lane, const WarpClock& mine, uint32_t my_warp,
                          uint32_t my_lane) const {
    if (stamp < floor_) return true;
    if (warp != my_warp) return stamp <= mine.seen[warp];
    if (lane == my_lane || stamp < mine.met) return true;
    for (size_t i = 0; i < mine.partial_stamps.size(); ++i)
        if (stamp < mine.partial_stamps[i] && lane_in(mine.partial_lanes[i], int(lane)) &&
            lane_in(mine.partial_lanes[i], int(my_lane)))
            return true;
    return false;
}

SharedRaces::Record* SharedRaces::split(uint32_t word) {
    if (!parts_[word]) {
        bytes_.emplace_back(4, records_[word]);
        parts_[word] = uint32_t(bytes_.size());
        records_[word].write_stamp = ~0u;  // not below any floor: the way to its parts
    }
    return bytes_[parts_[word] - 1].data();
}

void SharedRaces::note_read(Record& record, uint32_t lane, uint32_t word) {
    const uint32_t stamp = mine_->stamps[lane];
    if (record.read_stamp == stamp) {
        record.read_lanes |= 1u << lane;
        return;
    }
    if (record.read_floor != floor_) {
        record.read_floor = floor_;
        record.readers = 0;
    }
    // Lanes of this warp that have read before and have not met this one since count as reading still.
    uint32_t others = 0;
    if (record.readers && warp_of(record.read_place) == warp_ && record.read_stamp >= mine_->met)
        for (uint32_t rest = record.read_lanes; rest; rest &= rest - 1) {
            const auto reader = uint32_t(__builtin_ctz(rest));
            if (!ordered(record.read_stamp, warp_, reader, *mine_, warp_, lane)) others |= 1u << reader;
        }
    record.read_stamp = stamp;
    record.read_lanes = others | 1u << lane;
    record.readers |= 1u << warp_;
    record.read_place = place_of(pc_, warp_, lane, false);
    if (split_barriers_) read_stamps_[size_t(word) * kLanes + warp_] = stamp;
}

uint32_t SharedRaces::check_read(Record& record, uint32_t lane, uint32_t word) {
    uint32_t race = 0;
    // A plain read beside an atomic is how a compare-and-swap loop begins, and how a flag is polled.
    if (record.write_stamp >= floor_ && !(record.write_place & kAtomic) &&
        !ordered(record.write_stamp, warp_of(record.write_place), lane_of(record.write_place), *mine_, warp_, lane))
        race = record.write_place;
    note_read(record, lane, word);
    return race;
}

uint32_t SharedRaces::check_write(Record& record, uint32_t lane, uint32_t word, bool atomic, bool same_value) {
    uint32_t race = 0;
    const bool both_atomic = atomic && (record.write_place & kAtomic);
    if (record.write_stamp >= floor_ && !both_atomic && !same_value &&
        !ordered(record.write_stamp, warp_of(record.write_place), lane_of(record.write_place), *mine_, warp_, lane))
        race = record.write_place;
    if (!race && !atomic && record.read_floor == floor_ && record.readers && !same_value) {
        const uint32_t last = warp_of(record.read_place);
        for (uint32_t rest = record.readers & ~(1u << warp_); rest; rest &= rest - 1) {
            const auto reader = uint32_t(__builtin_ctz(rest));
            const uint32_t stamp = split_barriers_ ? read_stamps_[size_t(word) * kLanes + reader] : floor_;
            if (!ordered(stamp, reader, 0, *mine_, warp_, lane))
                race = reader == last ? record.read_place : place_of(kLargestPc, reader, 0, false);
        }
        if (!race && last == warp_)
            for (uint32_t rest = record.read_lanes & ~(1u << lane); rest; rest &= rest - 1)
                if (!ordered(record.read_stamp, warp_, uint32_t(__builtin_ctz(rest)), *mine_, warp_, lane))
                    race = place_of(record.read_place & kLargestPc, warp_, uint32_t(__builtin_ctz(rest)), false);
    }
    record.write_stamp = mine_->stamps[lane];
    record.write_tick = tick_;
    record.write_place = place_of(pc_, warp_, lane, atomic);
    record.readers = 0;
    record.read_stamp = 0;
    return race;
}

bool SharedRaces::same_value(const Store& store, const Record& record, uint32_t lane, uint64_t address,
                             uint32_t size) const {
    const auto value_at = [&](uint32_t of, uint64_t at) {
        const uint64_t into = at - store.addresses[of];
        return store.values[into / 4 * kLanes + of] >> (8 * (into & 3));
    };
    const uint32_t mask = size == 4 ? ~0u : 0xffu, value = value_at(lane, address);
    uint32_t present = 0;
    if (record.write_tick == tick_)  // by another lane of this very store, whose value is not in memory yet
        present = value_at(lane_of(record.write_place), address);
    else
        std::memcpy(&present, store.shared + address, size);
    return ((present ^ value) & mask) == 0;
}

/// A word, or those of its bytes that are accessed, whichever has records of its own.
uint32_t SharedRaces::check(Access kind, const Store& store, uint32_t lane, uint64_t address, uint32_t width) {
    const auto word = uint32_t(address / 4);
    const bool in_parts = width < 4 || parts_[word];
    Record* records = in_parts ? split(word) + (address & 3) : &records_[word];
    const uint32_t count = in_parts ? std::min(width, 4u) : 1, size = in_parts ? 1 : 4;
    uint32_t race = 0;
    for (uint32_t i = 0; i < count; ++i) {
        Record& record = records[i];
        uint32_t other = 0;
        if (kind == Access::Read) {
            other = check_read(record, lane, word);
        } else {
            const bool recent = record.write_stamp >= floor_ || record.read_floor == floor_;
            const bool same = kind == Access::Write && recent && same_value(store, record, lane, address + i, size);
            other = check_write(record, lane, word, kind == Access::Atomic, same);
        }
        if (other) race = other;
    }
    return race;
}

int SharedRaces::access(const Core& core, Access kind, const uint64_t* addresses, uint32_t lanes, uint32_t width,
                        const uint32_t* values, std::string& what) {
    warp_ = core.warp->index;
    pc_ = core.pc;
    mine_ = &clocks_[warp_];
    ++tick_;
    const Store store{addresses, values, core.block->shared};
    const uint32_t step = std::min(width, 4u), floor = floor_;
    const uint64_t bytes = core.block->shared_bytes;
    uint32_t race = 0;
    int racing_lane = -1;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = addresses[lane];
        if (address + width > bytes || address & (width - 1)) continue;  // refused when it executes
        const uint32_t stamp = mine_->stamps[lane];
        for (uint32_t at = 0; at < width; at += step) {
            Record& record = records_[(address + at) / 4];
            // Most often nothing was written since the last barrier, and this warp has read the word since it last met,
            // or nobody has.
            if (width >= 4 && record.write_stamp < floor) {
                if (kind == Access::Read && record.read_stamp == stamp) {
                    record.read_lanes |= 1u << lane;
                    continue;
                }
                if (kind == Access::Write && record.read_floor != floor) {
                    record.write_stamp = stamp;
                    record.write_tick = tick_;
                    record.write_place = place_of(pc_, warp_, uint32_t(lane), false);
                    continue;
                }
            }
            const uint32_t other = check(kind, store, uint32_t(lane), address + at, step);
            if (other && racing_lane < 0) {
                race = other;
                racing_lane = lane;
            }
        }
    }
    if (racing_lane < 0) return -1;
    const bool same_warp = warp_of(race) == warp_;
    const uint32_t pc = race & kLargestPc;
    what = "no " + std::string(same_warp ? "__syncwarp()" : "barrier") + " between this " +
           (kind == Access::Read    ? "read"
            : kind == Access::Write ? "write"
                                    : "atomic") +
           " and the access by ";
    what += (same_warp ? "" : "warp " + std::to_string(warp_of(race)) + ", ") + "lane " + std::to_string(lane_of(race));
    what += pc < kLargestPc ? " at " + instruction_text(*core.launch->kernel, pc) : "";
    return racing_lane;
}

}  // namespace sm70emu::check
