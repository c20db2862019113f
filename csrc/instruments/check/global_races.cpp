#include "instruments/check/global_races.h"

#include <algorithm>
#include <cstring>

#include "emulator/error.h"

namespace sm70emu::check {

void GlobalRaces::begin_launch() {
    pages_.clear();
    parts_.clear();
    passes_.clear();
    pass_ = 0;
}

GlobalRaces::Word* GlobalRaces::page(uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& words = pages_[number];
    if (!words) {
        words = std::make_unique<Word[]>(kWords);
        for (uint64_t i = 0; i < kWords; ++i) words[i].store(0, std::memory_order_relaxed);
    }
    return words.get();
}

uint32_t GlobalRaces::write_part(Word& word, uint64_t address, uint32_t bytes, uint32_t owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const uint32_t present = word.exchange(kInParts, std::memory_order_relaxed);
    auto& owners = parts_[address & ~uint64_t{3}];
    if (owners.empty()) owners.assign(4, present == kInParts ? 0 : present);
    uint32_t other = 0;
    for (uint64_t byte = address & 3; byte < (address & 3) + bytes; ++byte) {
        if (owners[byte] && owners[byte] != owner) other = owners[byte];
        owners[byte] = owner;
    }
    return other;
}

uint32_t GlobalRaces::write_word(Word& word, uint64_t address, uint32_t owner) {
    const uint32_t present = word.load(std::memory_order_relaxed);
    if (present == owner) return 0;
    if (present == kInParts) return write_part(word, address, 4, owner);
    const uint32_t before = word.exchange(owner, std::memory_order_relaxed);
    if (before == kInParts) return write_part(word, address, 4, owner);  // another thread just made parts of it
    return before == owner ? 0 : before;
}

void GlobalRaces::pass_atomic(uint32_t owner) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Passes& passes = passes_[owner];
    passes.last = ++pass_;
    if (!passes.first) passes.first = pass_;
}

bool GlobalRaces::met(uint32_t earlier, uint32_t later) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto first = passes_.find(earlier), second = passes_.find(later);
    return first != passes_.end() && second != passes_.end() && first->second.first < second->second.last;
}

void GlobalRaceCheck::begin_block(uint64_t linear) {
    if (linear + 1 >= GlobalRaces::kInParts) fail("the race check takes grids of less than 2^32 - 1 blocks");
    owner_ = static_cast<uint32_t>(linear + 1);
}

GlobalRaces::Word* GlobalRaceCheck::page(uint64_t address) {
    const uint64_t number = address >> GlobalRaces::kPageBits;
    Entry& entry = entries_[number % kEntries];
    if (entry.number != number) entry = {number, races_.page(number)};
    return entry.words;
}

namespace {

// Whether the bytes that a lane stores are there already: then the order of the writers shows in nothing.
bool changes_nothing(const Core& core, uint64_t address, uint32_t width, const uint32_t* values, int lane) {
    if (!core.launch->memory.find(address, width, AccessKind::Store)) return false;
    for (uint32_t at = 0; at < width; at += 4) {
        if (std::memcmp(reinterpret_cast<const void*>(address + at), values + at / 4 * kLanes + lane,
                        std::min(width, 4u)) != 0) {
            return false;
        }
    }
    return true;
}

}  // namespace

std::optional<GlobalRace> GlobalRaceCheck::store(const Core& core, const LaneAddresses& addresses, uint32_t lanes,
                                                 uint32_t width, const uint32_t* values) {
    std::optional<GlobalRace> race;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = addresses.at[lane];
        if (address & (width - 1)) continue;  // refused when it executes
        GlobalRaces::Word* words = page(address) + (address >> 2 & (GlobalRaces::kWords - 1));
        uint32_t found = 0;
        if (width < 4) {
            found = races_.write_part(*words, address, width, owner_);
        } else {
            for (uint32_t i = 0; i < width / 4; ++i) {
                if (const uint32_t before = races_.write_word(words[i], address + 4 * i, owner_)) found = before;
            }
        }
        if (found && !race && !races_.met(found, owner_) && !changes_nothing(core, address, width, values, lane)) {
            race = {lane, found - 1};
        }
    }
    return race;
}

void GlobalRaceCheck::atomic() {
    races_.pass_atomic(owner_);
}

}  // namespace sm70emu::check
