// What a launch leaves for the model: each warp's instructions in order, and what its memory instructions touched.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/machine.h"

namespace sm70emu::timing {

/// One warp of a block: program counters, and beside them a stream of words that memory instructions and barriers
/// take theirs from, in order.
///   shared memory       wavefronts
///   global and local    number of lines, then each: (address / 128) << 4 | mask of 32-byte sectors
///   BAR                 number | lanes << 8 | live lanes of the warp << 16 | threads waited for (0: all) << 32
struct WarpTrace {
    std::vector<uint32_t> steps;  // program counter; kSkipped: no lane executed it
    std::vector<uint64_t> words;
    uint64_t executed = 0;  // more than steps.size() if the trace was cut
};

constexpr uint32_t kSkipped = 1u << 31;

/// A block that ran to its end.
struct BlockTrace {
    uint64_t block = 0;
    std::vector<WarpTrace> warps;
    uint64_t executed = 0;  // warp instructions
    uint64_t recorded = 0;
    bool complete() const { return recorded == executed; }
};

/// A line that a block touched in global memory, for the model of L2.
struct Access {
    uint32_t order = 0;  // the warp's instructions so far: blocks of a wave are taken to go in step
    uint32_t pc = 0;
    uint64_t line = 0;  // as in WarpTrace::words
    bool store = false;
};

/// The beginning of a block.
struct BlockHead {
    uint64_t block = 0;
    std::vector<Access> accesses;
};

/// The lines and sectors of a global access, as words; at most 64.
int global_lines(const uint64_t* addresses, uint32_t exec, uint32_t width, uint64_t* lines);

}  // namespace sm70emu::timing
