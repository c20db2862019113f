// Blocks of one launch that write the same byte of global memory. Nobody promises an order of blocks, so the result
// depends on chance, unless both write the same value, or write with atomics, or the blocks met in an atomic in
// between: the last block of a reduction, which counts the others, may write what they wrote.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "emulator/access.h"

namespace sm70emu::check {

class GlobalRaces {
 public:
    void begin_launch();

    // For a word: 0, or 1 + the block that wrote it, or kInParts.
    using Word = std::atomic<uint32_t>;
    static constexpr int kPageBits = 16;
    static constexpr uint64_t kWords = (uint64_t{1} << kPageBits) / 4;
    static constexpr uint32_t kInParts = ~0u;

    Word* page(uint64_t number);
    // Another block that wrote the bytes [address, address + bytes) of one word in parts, or 0; notes `owner`.
    uint32_t write_part(Word& word, uint64_t address, uint32_t bytes, uint32_t owner);
    // Same for a whole word.
    uint32_t write_word(Word& word, uint64_t address, uint32_t owner);

    // The block passes an atomic on global memory: what it wrote before is over for blocks that pass one later.
    void pass_atomic(uint32_t owner);
    bool met(uint32_t earlier, uint32_t later);

 private:
    struct Passes {
        uint64_t first = 0, last = 0;
    };
    std::mutex mutex_;
    std::unordered_map<uint64_t, std::unique_ptr<Word[]>> pages_;
    std::unordered_map<uint64_t, std::vector<uint32_t>> parts_;  // by word address: the owner of each byte
    std::unordered_map<uint32_t, Passes> passes_;
    uint64_t pass_ = 0;
};

struct GlobalRace {
    int lane = 0;
    uint64_t other_block = 0;  // that wrote the bytes before
};

// What one worker thread needs to check its stores.
class GlobalRaceCheck {
 public:
    explicit GlobalRaceCheck(GlobalRaces& races) : races_(races) {}
    void begin_block(uint64_t linear);
    // Before a plain store of `values`' rows: the first lane that writes what another block wrote, if there is one.
    std::optional<GlobalRace> store(const Core& core, const LaneAddresses& addresses, uint32_t lanes, uint32_t width,
                                    const uint32_t* values);
    void atomic();

 private:
    GlobalRaces::Word* page(uint64_t address);

    static constexpr uint64_t kEntries = 64;
    struct Entry {
        uint64_t number = ~uint64_t{0};
        GlobalRaces::Word* words = nullptr;
    };
    GlobalRaces& races_;
    Entry entries_[kEntries];
    uint32_t owner_ = 0;
};

}  // namespace sm70emu::check
