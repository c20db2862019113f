// A warp in the model of an SM, its scoreboards, and the block it belongs to.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "instruments/timing/sm.h"

namespace sm70emu::timing {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 4;
constexpr int kScoreboards = 6;

// A counting scoreboard: instructions count it up when they issue and down when they are done. Since it is known at
// issue when they will be done, "until it is zero" is a time.
struct Scoreboard {
    int64_t zero = 0;
    int64_t zero_for_tensor = 0;  // for the next HMMA, which takes its accumulator early
    Stall stall = Stall::ShortScoreboard;
    std::array<int64_t, 8> latest{};  // ends of the last instructions, for DEPBAR
    uint32_t count = 0;

    void add(int64_t done, int64_t done_for_tensor, Stall reason) {
        if (done >= zero) stall = reason;
        zero = std::max(zero, done);
        zero_for_tensor = std::max(zero_for_tensor, done_for_tensor);
        latest[count++ % latest.size()] = done;
    }
    // When at most `left` of the latest instructions are not done.
    int64_t down_to(uint32_t left) const {
        int64_t time = 0;
        const auto known = std::min<uint32_t>(count, static_cast<uint32_t>(latest.size()));
        for (uint32_t back = left; back < known; ++back) {
            time = std::max(time, latest[(count - 1 - back) % latest.size()]);
        }
        return time;
    }
};

struct ResidentBlock;

struct ResidentWarp {
    const WarpTrace* trace = nullptr;
    ResidentBlock* block = nullptr;
    uint32_t index = 0;
    int sub_core = 0;
    size_t step = 0, word = 0;
    int64_t earliest = 0;  // when stall count and scoreboards let the next step issue
    int64_t arrived = 0;   // at the barrier it waits for
    std::array<Scoreboard, kScoreboards> scoreboards;
    uint32_t line = ~0u;  // of the instruction cache
    std::array<uint32_t, 16> barrier_lanes{};

    bool at_end() const { return step >= trace->steps.size(); }
    uint32_t pc() const { return trace->steps[step] & ~kSkipped; }
    bool skipped() const { return trace->steps[step] & kSkipped; }
};

struct ModelBarrier {
    uint32_t arrived = 0;   // warps
    uint32_t expected = 0;  // warps; 0: all that have not ended
    std::vector<ResidentWarp*> waiting;
};

struct ResidentBlock {
    const BlockTrace* trace = nullptr;
    size_t span = 0;  // in SmResult::blocks
    uint64_t salt = 0;
    uint32_t running = 0;  // warps
    std::array<ModelBarrier, 16> barriers;
    std::vector<ResidentWarp> warps;
};

}  // namespace sm70emu::timing
