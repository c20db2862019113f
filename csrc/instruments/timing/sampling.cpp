#include "instruments/timing/sampling.h"

#include <algorithm>
#include <cmath>

namespace sm70emu::timing {
namespace {

// Blocks per round: one for each core of a small machine.
constexpr size_t kRound = 2;
// Blocks whose lengths differ by less than the model's differences that mean something (3 %, docs/cycle-model.md) are
// alike.
constexpr double kAlike = 0.01;
// Blocks that differ are worth this many times as much emulation, and no more: sampling_error() reports what is left.
constexpr uint64_t kAtMost = 3;

bool are_enough(const std::vector<BlockTrace>& traces, uint64_t blocks, const CaptureLimits& limits) {
    uint64_t executed = 0;
    for (const auto& trace : traces) executed += trace.executed;
    if (executed < limits.emulated) return false;
    return executed / kAtMost >= limits.emulated || sampling_error(traces, blocks) <= kAlike;
}

}  // namespace

CapturePlan plan_capture(uint64_t blocks, uint64_t concurrent, uint32_t warps, const CaptureLimits& limits) {
    CapturePlan plan;
    const uint64_t whole = std::min(blocks, std::max<uint64_t>(limits.whole_blocks, 1));
    // The middle of each of so many parts of the grid: fair where work grows with the number, and the first and last
    // block, which often do less than the others, do not stand for many. In pairs from the ends inwards: where work
    // grows or falls with the number, the first pair shows it.
    for (uint64_t i = 0; i < whole; ++i) {
        const uint64_t part = i % 2 ? whole - 1 - i / 2 : i / 2;
        const auto middle =
            static_cast<uint64_t>((static_cast<unsigned __int128>(2 * part + 1) * blocks) / (2 * whole));
        if (i < kRound) {
            plan.whole.insert(middle);
        } else {
            plan.pending.push_back(middle);
        }
    }
    plan.heads = std::min(blocks, concurrent);
    plan.head_length = std::max(limits.least_head, limits.head_instructions / (plan.heads * warps));
    plan.warp_limit = std::max<uint64_t>(1, limits.recorded_per_block / warps);
    return plan;
}

std::vector<uint64_t> first_round(const CapturePlan& plan) {
    std::set<uint64_t> round = plan.whole;
    for (uint64_t block = 0; block < plan.heads; ++block) round.insert(block);
    for (const uint64_t block : plan.pending) round.erase(block);
    return {round.begin(), round.end()};
}

std::vector<uint64_t> next_round(CapturePlan& plan, const std::vector<BlockTrace>& traces, uint64_t blocks,
                                 const CaptureLimits& limits) {
    if (are_enough(traces, blocks, limits)) {
        // The others' beginnings are still wanted.
        std::vector<uint64_t> heads;
        for (const uint64_t block : plan.pending) {
            if (block < plan.heads) heads.push_back(block);
        }
        plan.pending.clear();
        return heads;
    }
    const size_t count = std::min(kRound, plan.pending.size());
    const std::vector<uint64_t> round(plan.pending.begin(), plan.pending.begin() + std::ptrdiff_t(count));
    plan.pending.erase(plan.pending.begin(), plan.pending.begin() + std::ptrdiff_t(count));
    plan.whole.insert(round.begin(), round.end());
    return round;
}

double sampling_error(const std::vector<BlockTrace>& traces, uint64_t blocks) {
    if (traces.size() < 2 || traces.size() >= blocks) return 0;
    double sum = 0, squares = 0;
    for (const auto& trace : traces) sum += static_cast<double>(trace.executed);
    const auto count = static_cast<double>(traces.size()), mean = sum / count;
    for (const auto& trace : traces) {
        squares += (static_cast<double>(trace.executed) - mean) * (static_cast<double>(trace.executed) - mean);
    }
    return std::sqrt(squares / (count - 1) / count) / mean;
}

}  // namespace sm70emu::timing
