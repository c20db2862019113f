#include "instruments/timing/sm.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "instruments/timing/sm_simulation.h"

namespace sm70emu::timing {
namespace {

constexpr int kSubCores = 4;
constexpr int kInstructionLine = 8;  // instructions of 16 bytes in a line of the instruction cache
// For how many cycles an instruction whose lanes were all off holds its scoreboards.
constexpr int64_t kSkippedCycles = 2;

int64_t wake_of(const SubCore& sub_core) {
    int64_t next = kNever;
    for (const ResidentWarp* warp : sub_core.warps) next = std::min(next, warp->earliest);
    return next;
}

}  // namespace

SmSimulation::SmSimulation(const SmRun& run, const Program& program, const Machine& machine, const L2Reuse& reuse)
    : run_(run),
      program_(program),
      machine_(machine),
      memory_(machine, reuse, run.l1_bytes, run.sharing),
      sub_cores_(kSubCores, SubCore(machine)) {
    result_.instructions.resize(program.size());
}

SmResult SmSimulation::simulate() {
    for (uint32_t i = 0; i < run_.residency && next_block_ < run_.blocks.size(); ++i) {
        start_block(
            whole_cycles(machine_.block_start_cycles + i * (run_.sharing * machine_.dispatch_cycles + run_.start_gap)));
    }
    while (!stopped_) {
        int64_t now = kNever;
        for (const auto& sub_core : sub_cores_) now = std::min(now, sub_core.wake);
        if (now == kNever) break;
        now_ = now;
        for (auto& sub_core : sub_cores_) {
            if (sub_core.wake <= now && !stopped_) sub_core.wake = step(sub_core);
        }
        if (run_.instructions && result_.issued >= run_.instructions) stopped_ = true;
    }
    result_.complete = !stopped_ && !resident_;
    result_.cycles =
        result_.complete ? std::max(static_cast<double>(now_), memory_.drained()) : static_cast<double>(now_);
    result_.memory = memory_.counters();
    for (auto& span : result_.blocks) {
        if (span.end == 0) span.end = result_.cycles;
    }
    return std::move(result_);
}

// --- blocks

void SmSimulation::start_block(int64_t when) {
    const BlockTrace* trace = run_.blocks[next_block_++];
    blocks_.push_back(std::make_unique<ResidentBlock>());
    ResidentBlock& block = *blocks_.back();
    block.trace = trace;
    block.span = result_.blocks.size();
    block.salt = static_cast<uint64_t>(next_block_) << 40;
    block.running = static_cast<uint32_t>(trace->warps.size());
    block.warps.resize(trace->warps.size());
    result_.blocks.push_back({trace->block, static_cast<double>(when), 0});
    ++resident_;
    for (uint32_t i = 0; i < block.warps.size(); ++i) {
        ResidentWarp& warp = block.warps[i];
        warp.trace = &trace->warps[i];
        warp.block = &block;
        warp.index = i;
        // Each warp goes to the sub-core with the fewest warps.
        for (int s = 1; s < kSubCores; ++s) {
            if (sub_cores_[static_cast<size_t>(s)].warps.size() <
                sub_cores_[static_cast<size_t>(warp.sub_core)].warps.size()) {
                warp.sub_core = s;
            }
        }
        SubCore& sub_core = sub_cores_[static_cast<size_t>(warp.sub_core)];
        sub_core.warps.push_back(&warp);
        warp.earliest = when;
        sub_core.wake = std::min(sub_core.wake, when);
    }
    for (auto& warp : block.warps) {
        if (warp.at_end()) finish_warp(warp);
    }
}

void SmSimulation::finish_warp(ResidentWarp& warp) {
    if (warp.trace->executed > warp.trace->steps.size()) {
        stopped_ = true;  // the trace was cut here
        return;
    }
    SubCore& sub_core = sub_cores_[static_cast<size_t>(warp.sub_core)];
    sub_core.warps.erase(std::find(sub_core.warps.begin(), sub_core.warps.end(), &warp));
    if (sub_core.last == &warp) sub_core.last = nullptr;
    ResidentBlock& block = *warp.block;
    if (--block.running == 0) {
        result_.blocks[block.span].end = static_cast<double>(now_);
        --resident_;
        // The warps are not read again: the memory is kept until the end, since callers still hold references.
        if (next_block_ < run_.blocks.size()) start_block(now_ + whole_cycles(machine_.block_start_cycles));
        return;
    }
    for (auto& barrier : block.barriers) release_if_full(block, barrier);
}

// --- issue

// Issues an instruction of a sub-core if a warp is ready, and returns when to look again.
int64_t SmSimulation::step(SubCore& sub_core) {
    int64_t next = kNever;
    blocked_.clear();
    ResidentWarp* chosen = nullptr;
    int ready = 0;
    for (ResidentWarp* warp : sub_core.warps) {
        if (warp->earliest > now_) {
            next = std::min(next, warp->earliest);
            continue;
        }
        const Availability free = resources_free(sub_core, *warp);
        if (free.at > now_) {
            next = std::min(next, free.at);
            blocked_.push_back({warp->pc(), free.stall});
            continue;
        }
        ++ready;
        blocked_.push_back({warp->pc(), Stall::NotSelected});
        const bool greedy = chosen == sub_core.last && chosen;
        if (!chosen || (!greedy && (warp == sub_core.last || machine_.greedy_youngest != 0))) chosen = warp;
    }
    if (chosen) {
        const uint32_t pc = chosen->pc();
        issue(sub_core, *chosen);
        next = ready > 1 ? now_ + 1 : std::max(now_ + 1, std::min(next, wake_of(sub_core)));
        for (auto& entry : blocked_) {
            if (entry.pc == pc && entry.stall == Stall::NotSelected) {
                entry.stall = Stall::Selected;
                break;
            }
        }
    }
    const auto cycles = static_cast<double>(std::min<int64_t>(next, now_ + 1000000) - now_);
    for (const auto& entry : blocked_) {
        const bool one = entry.stall == Stall::Selected || entry.stall == Stall::NotSelected;
        result_.instructions[entry.pc].stalls[static_cast<size_t>(entry.stall)] += one ? 1.0 : cycles;
    }
    return next;
}

// Pipe, queue and issue slot for the warp's next instruction.
SmSimulation::Availability SmSimulation::resources_free(const SubCore& sub_core, const ResidentWarp& warp) const {
    if (sub_core.issue_free > now_) return {sub_core.issue_free, Stall::Dispatch};
    if (warp.skipped()) return {now_, Stall::NotSelected};
    const ModelOperation& operation = program_[warp.pc()];
    switch (operation.path) {
        case Path::Shared:
        case Path::Exchange:
        case Path::Xu: return {sub_core.mio.has_place(), Stall::MioThrottle};
        case Path::GlobalLoad:
        case Path::GlobalStore:
        case Path::GlobalAtomic: return {sub_core.lg.has_place(), Stall::LgThrottle};
        default: return {sub_core.pipe_free[static_cast<size_t>(operation.pipe)], Stall::MathPipeThrottle};
    }
}

void SmSimulation::issue(SubCore& sub_core, ResidentWarp& warp) {
    const uint32_t pc = warp.pc();
    const bool skipped = warp.skipped();
    const ModelOperation& operation = program_[pc];
    ++warp.step;
    ++result_.issued;
    ++result_.instructions[pc].issued;
    Bucket& bucket = bucket_now();
    bucket.issued += 1;
    sub_core.issue_free = now_ + 1 + (skipped ? 0 : operation.bank_conflicts);
    sub_core.last = operation.control.yield_hint ? nullptr : &warp;
    IssueResult issued;
    if (skipped) {
        issued.ready = now_ + std::max<int64_t>(1, operation.control.stall);
        Completion& done = issued.completion;
        done.result = done.result_for_tensor = done.operands = now_ + kSkippedCycles;
    } else {
        issued = execute(sub_core, warp, pc, operation);
    }
    const Completion& done = issued.completion;
    const ControlCode& control = operation.control;
    if (control.write_barrier < kScoreboards) {
        warp.scoreboards[control.write_barrier].add(done.result, done.result_for_tensor, done.stall);
    }
    if (control.read_barrier < kScoreboards) {
        warp.scoreboards[control.read_barrier].add(done.operands, done.operands, done.stall);
    }
    if (warp.at_end()) {
        finish_warp(warp);
        return;
    }
    if (operation.path == Path::Branch && warp.pc() != pc + 1) {
        const int64_t resolved = now_ + whole_cycles(machine_.branch_cycles);
        if (resolved > issued.ready) {
            issued.ready = resolved;
            issued.ready_stall = Stall::BranchResolve;
        }
    }
    if (issued.waits_at) {
        warp.earliest = kNever;
        warp.arrived = now_;
        release_if_full(*warp.block, *issued.waits_at);
    } else {
        schedule(sub_core, warp, issued.ready, issued.ready_stall);
    }
}

// Sets when the next instruction may issue, and accounts for the cycles until then.
void SmSimulation::schedule(SubCore& sub_core, ResidentWarp& warp, int64_t ready, Stall ready_stall) {
    const uint32_t pc = warp.pc();
    const ModelOperation& operation = program_[pc];
    auto& stalls = result_.instructions[pc].stalls;
    stalls[static_cast<size_t>(ready_stall)] += static_cast<double>(ready - now_ - 1);
    int64_t earliest = ready;
    const uint32_t line = pc / kInstructionLine;
    if (line != warp.line) {
        warp.line = line;
        const int64_t fetched = fetch(sub_core, line);
        fetch(sub_core, line + 1);  // the prefetcher runs ahead of a warp
        if (fetched > earliest) {
            stalls[static_cast<size_t>(Stall::NoInstruction)] += static_cast<double>(fetched - earliest);
            earliest = fetched;
        }
    }
    int64_t clear = earliest;
    Stall stall = Stall::Wait;
    for (uint32_t mask = operation.control.wait_mask; mask; mask &= mask - 1) {
        const Scoreboard& scoreboard = warp.scoreboards[static_cast<size_t>(__builtin_ctz(mask))];
        const int64_t zero = operation.path == Path::Tensor ? scoreboard.zero_for_tensor : scoreboard.zero;
        if (zero > clear) {
            clear = zero;
            stall = scoreboard.stall;
        }
    }
    if (operation.path == Path::Wait) {
        const Scoreboard& scoreboard = warp.scoreboards[operation.waited_barrier % kScoreboards];
        const int64_t down = scoreboard.down_to(operation.wait_until_count);
        if (down > clear) {
            clear = down;
            stall = scoreboard.stall;
        }
    }
    if (clear > earliest) stalls[static_cast<size_t>(stall)] += static_cast<double>(clear - earliest);
    warp.earliest = clear;
    sub_core.wake = std::min(sub_core.wake, clear);
}

// When a line of instructions is in the sub-core's cache.
int64_t SmSimulation::fetch(SubCore& sub_core, uint32_t line) const {
    CacheLine* cached = sub_core.instructions.find(line);
    if (!cached->sectors) {
        cached->sectors = 1;
        sub_core.fetch_free =
            std::max(sub_core.fetch_free, static_cast<double>(now_)) + machine_.instruction_fetch_cycles;
        cached->ready = sub_core.fetch_free;
    }
    return whole_cycles(cached->ready);
}

SmResult run_sm(const SmRun& run, const Program& program, const Machine& machine, const L2Reuse& reuse) {
    return SmSimulation(run, program, machine, reuse).simulate();
}

}  // namespace sm70emu::timing
