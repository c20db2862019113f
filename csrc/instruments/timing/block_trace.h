// What the model reads of a launch: each warp's instructions in order, and what its memory instructions touched.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/access.h"
#include "emulator/machine.h"

namespace sm70emu::timing {

// A line of 128 bytes and those of its four sectors that an access touches, in one word.
class TouchedLine {
 public:
    TouchedLine() = default;
    explicit TouchedLine(uint64_t word) : word_(word) {}
    TouchedLine(uint64_t tag, uint32_t sectors) : word_(tag << 4 | sectors) {}
    uint64_t word() const { return word_; }
    // The line's address / 128.
    uint64_t tag() const { return word_ >> 4; }
    uint8_t sectors() const { return static_cast<uint8_t>(word_ & 15); }
    int sector_count() const { return __builtin_popcount(sectors()); }
    void touch(uint32_t sectors) { word_ |= sectors; }

 private:
    uint64_t word_;
};

// The lanes of a warp that arrive at a barrier.
struct BarrierStep {
    uint32_t number = 0;
    uint32_t lanes = 0;
    uint32_t live_lanes = 0;  // of the warp
    uint32_t threads = 0;     // that the barrier is for; 0: all

    uint64_t word() const { return number | lanes << 8 | live_lanes << 16 | static_cast<uint64_t>(threads) << 32; }
    static BarrierStep from_word(uint64_t word) {
        return {static_cast<uint32_t>(word & 15), static_cast<uint32_t>(word >> 8 & 63),
                static_cast<uint32_t>(word >> 16 & 63), static_cast<uint32_t>(word >> 32)};
    }
};

// One warp of a block: program counters, and beside them a stream of words, which memory instructions and barriers
// read in order.
//   shared memory       wavefronts
//   global and local    number of lines, then a TouchedLine for each
//   BAR                 a BarrierStep
struct WarpTrace {
    std::vector<uint32_t> steps;  // program counter; kSkipped: no lane executed it
    std::vector<uint64_t> words;
    uint64_t executed = 0;  // more than steps.size() if the trace was cut
};

constexpr uint32_t kSkipped = 1u << 31;

// A block that ran to its end.
struct BlockTrace {
    uint64_t block = 0;
    std::vector<WarpTrace> warps;
    uint64_t executed = 0;  // warp instructions
    uint64_t recorded = 0;
    bool complete() const { return recorded == executed; }
};

// A line that a block touched in global memory, for the model of L2.
struct HeadAccess {
    uint32_t order = 0;  // the warp's instructions so far: blocks of a wave are assumed to progress in step
    uint32_t pc = 0;
    TouchedLine line;
    bool store = false;
};

// The beginning of a block.
struct BlockHead {
    uint64_t block = 0;
    std::vector<HeadAccess> accesses;
};

struct TouchedLines {
    TouchedLine lines[2 * kLanes];  // the first `count` of them
    int count = 0;
    const TouchedLine* begin() const { return lines; }
    const TouchedLine* end() const { return lines + count; }
};

// The lines and sectors of a global access.
TouchedLines touched_lines(const LaneAddresses& addresses, uint32_t exec, uint32_t width);

}  // namespace sm70emu::timing
