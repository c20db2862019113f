#include "instruments/check/shared_races.h"

#include <algorithm>
#include <cstring>

#include "instruments/check/findings.h"

namespace sm70emu::check {
void SharedRaces::begin_block(const Block& block) {
    // Stamps of the block before lie below the floor, so records need no clearing unless the counter is near its end.
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
        barriers_[i] = BarrierClock();
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

void SharedRaces::arrive(const Warp& warp, uint32_t lanes, const BarrierArrival& arrival) {
    if (arrival.counted && !split_barriers_) {
        // From here on reads are kept with the stamp of their warp; those so far are as old as their warp at most.
        split_barriers_ = true;
        read_stamps_.resize(records_.size() * kLanes);
        for (size_t w = 0; w < clocks_.size(); ++w) {
            const uint32_t newest = *std::max_element(clocks_[w].stamps, clocks_[w].stamps + kLanes);
            for (size_t word = 0; word < records_.size(); ++word) read_stamps_[word * kLanes + w] = newest;
        }
    }
    BarrierClock& barrier = barriers_[arrival.number];
    WarpClock& clock = clocks_[warp.index];
    barrier.arrivals.push_back({warp.index, lanes, arrival.waits});
    for (int w = 0; w < kLanes; ++w) barrier.newest[w] = std::max(barrier.newest[w], clock.seen[w]);
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        barrier.newest[warp.index] = std::max(barrier.newest[warp.index], clock.stamps[__builtin_ctz(rest)]);
    }
    meet(warp, lanes);
}

void SharedRaces::update_barriers(const Block& block) {
    for (size_t index = 0; index < 16; ++index) {
        BarrierClock& barrier = barriers_[index];
        if (barrier.generation == block.barriers[index].generation) continue;
        barrier.generation = block.barriers[index].generation;
        uint32_t waited = 0;
        for (const auto& arrival : barrier.arrivals) {
            if (arrival.waits) {
                waited += static_cast<uint32_t>(__builtin_popcount(arrival.lanes & block.warps[arrival.warp].live));
            }
        }
        if (waited == block.live_lanes) {
            floor_ = ++counter_;
            for (auto& clock : clocks_) restamp(clock, kAllLanes);
            for (auto& clock : clocks_) clock.met = clock.stamps[0];
        } else {
            for (const auto& arrival : barrier.arrivals) {
                if (!arrival.waits) continue;
                WarpClock& clock = clocks_[arrival.warp];
                for (int w = 0; w < kLanes; ++w) clock.seen[w] = std::max(clock.seen[w], barrier.newest[w]);
            }
        }
        barrier.arrivals.clear();
        std::fill_n(barrier.newest, kLanes, 0u);
    }
}

bool SharedRaces::ordered(uint32_t stamp, uint32_t warp, uint32_t other, uint32_t lane) const {
    if (stamp < floor_) return true;
    const WarpClock& clock = *clock_;
    if (warp != warp_) return stamp <= clock.seen[warp];
    if (other == lane || stamp < clock.met) return true;
    for (size_t i = 0; i < clock.partial_stamps.size(); ++i) {
        const uint32_t lanes = clock.partial_lanes[i];
        if (stamp < clock.partial_stamps[i] && lane_in(lanes, static_cast<int>(other)) &&
            lane_in(lanes, static_cast<int>(lane))) {
            return true;
        }
    }
    return false;
}

SharedRaces::Record* SharedRaces::split(uint32_t word) {
    if (!parts_[word]) {
        bytes_.emplace_back(4, records_[word]);
        parts_[word] = static_cast<uint32_t>(bytes_.size());
        records_[word].write_stamp = ~0u;  // not below any floor: the way to its parts
    }
    return bytes_[parts_[word] - 1].data();
}

void SharedRaces::note_read(Record& record, uint32_t lane, uint32_t word) {
    const uint32_t stamp = clock_->stamps[lane];
    if (record.read_stamp == stamp) {
        record.read_lanes |= 1u << lane;
        return;
    }
    if (record.read_floor != floor_) {
        record.read_floor = floor_;
        record.readers = 0;
    }
    // Lanes of this warp that have read before and have not met this one since still count as readers.
    uint32_t others = 0;
    if (record.readers && record.read_site.warp() == warp_ && record.read_stamp >= clock_->met) {
        for (uint32_t rest = record.read_lanes; rest; rest &= rest - 1) {
            const auto reader = static_cast<uint32_t>(__builtin_ctz(rest));
            if (!ordered(record.read_stamp, warp_, reader, lane)) others |= 1u << reader;
        }
    }
    record.read_stamp = stamp;
    record.read_lanes = others | 1u << lane;
    record.readers |= 1u << warp_;
    record.read_site = AccessSite(pc_, warp_, lane, false);
    if (split_barriers_) read_stamps_[static_cast<size_t>(word) * kLanes + warp_] = stamp;
}

AccessSite SharedRaces::check_read(Record& record, uint32_t lane, uint32_t word) {
    AccessSite race;
    // A plain read beside an atomic is how a compare-and-swap loop begins, and how a flag is polled.
    if (record.write_stamp >= floor_ && !record.write_site.atomic() &&
        !ordered(record.write_stamp, record.write_site.warp(), record.write_site.lane(), lane)) {
        race = record.write_site;
    }
    note_read(record, lane, word);
    return race;
}

AccessSite SharedRaces::check_write(Record& record, uint32_t lane, uint32_t word, bool atomic, bool same_value) {
    AccessSite race;
    const bool both_atomic = atomic && record.write_site.atomic();
    if (record.write_stamp >= floor_ && !both_atomic && !same_value &&
        !ordered(record.write_stamp, record.write_site.warp(), record.write_site.lane(), lane)) {
        race = record.write_site;
    }
    if (!race.present() && !atomic && record.read_floor == floor_ && record.readers && !same_value) {
        const uint32_t last = record.read_site.warp();
        for (uint32_t rest = record.readers & ~(1u << warp_); rest; rest &= rest - 1) {
            const auto reader = static_cast<uint32_t>(__builtin_ctz(rest));
            const uint32_t stamp = split_barriers_ ? read_stamps_[static_cast<size_t>(word) * kLanes + reader] : floor_;
            if (!ordered(stamp, reader, 0, lane)) {
                race = reader == last ? record.read_site : AccessSite(AccessSite::kUnknownPc, reader, 0, false);
            }
        }
        if (!race.present() && last == warp_) {
            for (uint32_t rest = record.read_lanes & ~(1u << lane); rest; rest &= rest - 1) {
                if (!ordered(record.read_stamp, warp_, static_cast<uint32_t>(__builtin_ctz(rest)), lane)) {
                    race = AccessSite(record.read_site.pc(), warp_, static_cast<uint32_t>(__builtin_ctz(rest)), false);
                }
            }
        }
    }
    record.write_stamp = clock_->stamps[lane];
    record.write_tick = tick_;
    record.write_site = AccessSite(pc_, warp_, lane, atomic);
    record.readers = 0;
    record.read_stamp = 0;
    return race;
}

bool SharedRaces::same_value(const Store& store, const Record& record, uint32_t lane, uint64_t address,
                             uint32_t size) const {
    const auto value_at = [&](uint32_t of, uint64_t at) {
        const uint64_t into = at - store.addresses.at[of];
        return store.values[into / 4 * kLanes + of] >> (8 * (into & 3));
    };
    const uint32_t mask = size == 4 ? ~0u : 0xffu, value = value_at(lane, address);
    uint32_t present = 0;
    if (record.write_tick == tick_) {  // by another lane of this very store, whose value is not in memory yet
        present = value_at(record.write_site.lane(), address);
    } else {
        std::memcpy(&present, store.shared + address, size);
    }
    return ((present ^ value) & mask) == 0;
}

// A word, or those of its bytes that are accessed, whichever has records of its own.
AccessSite SharedRaces::check(AccessKind kind, const Store& store, uint32_t lane, uint64_t address, uint32_t width) {
    const auto word = static_cast<uint32_t>(address / 4);
    const bool in_parts = width < 4 || parts_[word];
    Record* records = in_parts ? split(word) + (address & 3) : &records_[word];
    const uint32_t count = in_parts ? std::min(width, 4u) : 1, size = in_parts ? 1 : 4;
    AccessSite race;
    for (uint32_t i = 0; i < count; ++i) {
        Record& record = records[i];
        AccessSite other;
        if (kind == AccessKind::Load) {
            other = check_read(record, lane, word);
        } else {
            const bool recent = record.write_stamp >= floor_ || record.read_floor == floor_;
            const bool same = kind == AccessKind::Store && recent && same_value(store, record, lane, address + i, size);
            other = check_write(record, lane, word, kind == AccessKind::Atomic, same);
        }
        if (other.present()) race = other;
    }
    return race;
}

std::optional<SharedRace> SharedRaces::access(const Core& core, AccessKind kind, const LaneAddresses& addresses,
                                              uint32_t lanes, uint32_t width, const uint32_t* values) {
    warp_ = core.warp->index;
    pc_ = core.pc;
    clock_ = &clocks_[warp_];
    ++tick_;
    const Store store{addresses, values, core.block->shared};
    const uint32_t step = std::min(width, 4u), floor = floor_;
    const uint64_t bytes = core.block->shared_bytes;
    AccessSite race;
    int racing_lane = -1;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = addresses.at[lane];
        if (address + width > bytes || address & (width - 1)) continue;  // refused when it executes
        const uint32_t stamp = clock_->stamps[lane];
        for (uint32_t at = 0; at < width; at += step) {
            Record& record = records_[(address + at) / 4];
            // Most often nothing was written since the last barrier, and this warp has read the word since it last met,
            // or nobody has.
            if (width >= 4 && record.write_stamp < floor) {
                if (kind == AccessKind::Load && record.read_stamp == stamp) {
                    record.read_lanes |= 1u << lane;
                    continue;
                }
                if (kind == AccessKind::Store && record.read_floor != floor) {
                    record.write_stamp = stamp;
                    record.write_tick = tick_;
                    record.write_site = AccessSite(pc_, warp_, static_cast<uint32_t>(lane), false);
                    continue;
                }
            }
            const AccessSite other = check(kind, store, static_cast<uint32_t>(lane), address + at, step);
            if (other.present() && racing_lane < 0) {
                race = other;
                racing_lane = lane;
            }
        }
    }
    if (racing_lane < 0) return std::nullopt;
    const bool same_warp = race.warp() == warp_;
    std::string what = "no " + std::string(same_warp ? "__syncwarp()" : "barrier") + " between this " +
                       (kind == AccessKind::Load    ? "read"
                        : kind == AccessKind::Store ? "write"
                                                    : "atomic") +
                       " and the access by ";
    what += (same_warp ? "" : "warp " + std::to_string(race.warp()) + ", ") + "lane " + std::to_string(race.lane());
    if (race.pc() != AccessSite::kUnknownPc) what += " at " + instruction_text(*core.launch->kernel, race.pc());
    return SharedRace{racing_lane, what};
}

}  // namespace sm70emu::check
