#include "instruments/timing/sm.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "instruments/timing/sub_core.h"

namespace sm70emu::timing {
namespace {

constexpr int kSubCores = 4;
constexpr int kInstructionLine = 8;  // instructions of 16 bytes in a line of the instruction cache
// What an instruction whose lanes were all off keeps its scoreboards for.
constexpr int64_t kSkippedCycles = 2;

class Sm {
 public:
    Sm(const SmRun& run, const Program& program, const Machine& machine, const L2Reuse& reuse)
        : run_(run),
          program_(program),
          machine_(machine),
          memory_(machine, reuse, run.l1_bytes, run.sharing),
          sub_cores_(kSubCores, SubCore(machine)) {
        result_.instructions.resize(program.size());
    }

    SmResult simulate() {
        for (uint32_t i = 0; i < run_.residency && next_block_ < run_.blocks.size(); ++i)
            start_block(
                whole(machine_.block_start_cycles + i * (run_.sharing * machine_.dispatch_cycles + run_.start_gap)));
        while (!stopped_) {
            int64_t now = kNever;
            for (const auto& sub_core : sub_cores_) now = std::min(now, sub_core.wake);
            if (now == kNever) break;
            now_ = now;
            for (auto& sub_core : sub_cores_)
                if (sub_core.wake <= now && !stopped_) sub_core.wake = step(sub_core);
            if (run_.instructions && result_.issued >= run_.instructions) stopped_ = true;
        }
        result_.complete = !stopped_ && !resident_;
        result_.cycles = result_.complete ? std::max(double(now_), memory_.drained()) : double(now_);
        result_.memory = memory_.counters();
        for (auto& span : result_.blocks)
            if (span.end == 0) span.end = result_.cycles;
        return std::move(result_);
    }

 private:
    // --- blocks

    void start_block(int64_t when) {
        const BlockTrace* trace = run_.blocks[next_block_++];
        blocks_.push_back(std::make_unique<ResidentBlock>());
        ResidentBlock& block = *blocks_.back();
        block.trace = trace;
        block.span = result_.blocks.size();
        block.salt = uint64_t(next_block_) << 40;
        block.running = uint32_t(trace->warps.size());
        block.warps.resize(trace->warps.size());
        result_.blocks.push_back({trace->block, double(when), 0});
        ++resident_;
        for (uint32_t i = 0; i < block.warps.size(); ++i) {
            ResidentWarp& warp = block.warps[i];
            warp.trace = &trace->warps[i];
            warp.block = &block;
            warp.index = i;
            // Warps go round the sub-cores; a place that a block left is taken where there are fewest.
            for (int s = 1; s < kSubCores; ++s)
                if (sub_cores_[size_t(s)].warps.size() < sub_cores_[size_t(warp.sub_core)].warps.size())
                    warp.sub_core = s;
            SubCore& sub_core = sub_cores_[size_t(warp.sub_core)];
            sub_core.warps.push_back(&warp);
            warp.earliest = when;
            sub_core.wake = std::min(sub_core.wake, when);
        }
        for (auto& warp : block.warps)
            if (warp.at_end()) finish_warp(warp);
    }

    void finish_warp(ResidentWarp& warp) {
        if (warp.trace->executed > warp.trace->steps.size()) {
            stopped_ = true;  // the trace was cut here
            return;
        }
        SubCore& sub_core = sub_cores_[size_t(warp.sub_core)];
        sub_core.warps.erase(std::find(sub_core.warps.begin(), sub_core.warps.end(), &warp));
        if (sub_core.last == &warp) sub_core.last = nullptr;
        ResidentBlock& block = *warp.block;
        if (--block.running == 0) {
            result_.blocks[block.span].end = double(now_);
            --resident_;
            // The warps are not read again: the memory is kept until the end, since callers still hold references.
            if (next_block_ < run_.blocks.size()) start_block(now_ + whole(machine_.block_start_cycles));
            return;
        }
        for (auto& barrier : block.barriers) release_if_full(block, barrier);
    }

    // --- issue

    struct Blocked {
        uint32_t pc;
        Stall stall;
    };

    /// One look at a sub-core: issues if a warp can, and says when to look again.
    int64_t step(SubCore& sub_core) {
        int64_t next = kNever;
        blocked_.clear();
        ResidentWarp* chosen = nullptr;
        int ready = 0;
        for (ResidentWarp* warp : sub_core.warps) {
            if (warp->earliest > now_) {
                next = std::min(next, warp->earliest);
                continue;
            }
            Stall stall = Stall::NotSelected;
            const int64_t at = resources_free(sub_core, *warp, stall);
            if (at > now_) {
                next = std::min(next, at);
                blocked_.push_back({warp->pc(), stall});
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
        const auto cycles = double(std::min<int64_t>(next, now_ + 1000000) - now_);
        for (const auto& entry : blocked_) {
            const bool one = entry.stall == Stall::Selected || entry.stall == Stall::NotSelected;
            result_.instructions[entry.pc].stalls[size_t(entry.stall)] += one ? 1.0 : cycles;
        }
        return next;
    }

    static int64_t wake_of(const SubCore& sub_core) {
        int64_t next = kNever;
        for (const ResidentWarp* warp : sub_core.warps) next = std::min(next, warp->earliest);
        return next;
    }

    /// When pipe, queue and issue slot are free for the warp's next instruction, and what it waits for until then.
    int64_t resources_free(const SubCore& sub_core, const ResidentWarp& warp, Stall& stall) const {
        if (sub_core.issue_free > now_) {
            stall = Stall::Dispatch;
            return sub_core.issue_free;
        }
        if (warp.skipped()) return now_;
        const Operation& operation = program_[warp.pc()];
        switch (operation.path) {
            case Path::Shared:
            case Path::Exchange:
            case Path::Xu: stall = Stall::MioThrottle; return sub_core.mio.has_place();
            case Path::GlobalLoad:
            case Path::GlobalStore:
            case Path::GlobalAtomic: stall = Stall::LgThrottle; return sub_core.lg.has_place();
            default: stall = Stall::MathPipeThrottle; return sub_core.pipe_free[size_t(operation.pipe)];
        }
    }

    void issue(SubCore& sub_core, ResidentWarp& warp) {
        const uint32_t pc = warp.pc();
        const bool skipped = warp.skipped();
        const Operation& operation = program_[pc];
        ++warp.step;
        ++result_.issued;
        ++result_.instructions[pc].issued;
        Bucket& bucket = bucket_now();
        bucket.issued += 1;
        sub_core.issue_free = now_ + 1 + (skipped ? 0 : operation.bank_conflicts);
        sub_core.last = operation.control.yield_hint ? nullptr : &warp;
        int64_t ready = now_ + std::max<int64_t>(1, operation.control.stall);
        Stall ready_stall = Stall::Wait;
        Done done;
        bool waits = false;
        if (skipped)
            done.result = done.result_for_tensor = done.operands = now_ + kSkippedCycles;
        else
            waits = execute(sub_core, warp, pc, operation, done, ready, ready_stall);
        const ControlCode& control = operation.control;
        if (control.write_barrier < kScoreboards)
            warp.scoreboards[control.write_barrier].add(done.result, done.result_for_tensor, done.stall);
        if (control.read_barrier < kScoreboards)
            warp.scoreboards[control.read_barrier].add(done.operands, done.operands, done.stall);
        if (warp.at_end()) {
            finish_warp(warp);
            return;
        }
        if (operation.path == Path::Branch && warp.pc() != pc + 1) {
            const int64_t resolved = now_ + whole(machine_.branch_cycles);
            if (resolved > ready) {
                ready = resolved;
                ready_stall = Stall::BranchResolve;
            }
        }
        if (waits) {
            warp.earliest = kNever;
            warp.arrived = now_;
            release_if_full(*warp.block, *waiting_at_);
        } else {
            schedule(sub_core, warp, ready, ready_stall);
        }
    }

    /// Sets when the next instruction may issue, and accounts for the cycles until then.
    void schedule(SubCore& sub_core, ResidentWarp& warp, int64_t ready, Stall ready_stall) {
        const uint32_t pc = warp.pc();
        const Operation& operation = program_[pc];
        auto& stalls = result_.instructions[pc].stalls;
        stalls[size_t(ready_stall)] += double(ready - now_ - 1);
        int64_t earliest = ready;
        const uint32_t line = pc / kInstructionLine;
        if (line != warp.line) {
            warp.line = line;
            const int64_t fetched = fetch(sub_core, line);
            fetch(sub_core, line + 1);  // the prefetcher runs ahead of a warp
            if (fetched > earliest) {
                stalls[size_t(Stall::NoInstruction)] += double(fetched - earliest);
                earliest = fetched;
            }
        }
        int64_t clear = earliest;
        Stall stall = Stall::Wait;
        for (uint32_t mask = operation.control.wait_mask; mask; mask &= mask - 1) {
            const Scoreboard& scoreboard = warp.scoreboards[size_t(__builtin_ctz(mask))];
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
        if (clear > earliest) stalls[size_t(stall)] += double(clear - earliest);
        warp.earliest = clear;
        sub_core.wake = std::min(sub_core.wake, clear);
    }

    /// When a line of instructions is in the sub-core's cache.
    int64_t fetch(SubCore& sub_core, uint32_t line) const {
        CacheLine* cached = sub_core.instructions.find(line);
        if (!cached->sectors) {
            cached->sectors = 1;
            sub_core.fetch_free = std::max(sub_core.fetch_free, double(now_)) + machine_.instruction_fetch_cycles;
            cached->ready = sub_core.fetch_free;
        }
        return whole(cached->ready);
    }

    // --- execution

    struct Done {
        int64_t result = 0, result_for_tensor = 0;  // when the write barrier counts down
        int64_t operands = 0;                       // when the read barrier does
        Stall stall = Stall::ShortScoreboard;
    };

    void use_pipe(SubCore& sub_core, const Operation& operation) {
        sub_core.pipe_free[size_t(operation.pipe)] = now_ + operation.issue_cycles;
        occupy(operation.pipe, operation.issue_cycles);
    }

    void occupy(Pipe pipe, double cycles) {
        result_.busy[size_t(pipe)] += cycles;
        bucket_now().busy[size_t(pipe)] += cycles;
    }

    /// Takes an instruction through its pipe. True if the warp now waits at `waiting_at_`.
    bool execute(SubCore& sub_core, ResidentWarp& warp, uint32_t pc, const Operation& operation, Done& done,
                 int64_t& ready, Stall& ready_stall) {
        const auto finish = [&](double latency, Stall stall) {
            done.result = done.result_for_tensor = now_ + whole(latency);
            done.operands = now_ + operation.issue_cycles;
            done.stall = stall;
        };
        switch (operation.path) {
            case Path::Fixed:
            case Path::Branch:
            case Path::Wait:
            case Path::Exit:
                use_pipe(sub_core, operation);
                finish(operation.issue_cycles + 4.0, Stall::ShortScoreboard);
                return false;
            case Path::Tensor:
                use_pipe(sub_core, operation);
                finish(machine_.tensor_latency, Stall::TensorScoreboard);
                done.result_for_tensor = now_ + whole(machine_.tensor_chain_latency) + operation.issue_cycles - 2;
                return false;
            case Path::Double:
                use_pipe(sub_core, operation);
                finish(machine_.fp64_latency, Stall::ShortScoreboard);
                return false;
            case Path::Constant:
                use_pipe(sub_core, operation);
                finish(machine_.constant_latency, Stall::ShortScoreboard);
                return false;
            case Path::Xu: {
                const int64_t start = sub_core.mio.pass(now_, machine_.mio_spacing, sub_core.xu_free);
                sub_core.xu_free = start + operation.issue_cycles;
                occupy(Pipe::Xu, operation.issue_cycles);
                finish(double(start - now_) + machine_.xu_latency, Stall::ShortScoreboard);
                done.operands = start + operation.issue_cycles;
                return false;
            }
            case Path::Shared: {
                const auto wavefronts = int64_t(warp.trace->words[warp.word++]);
                port(sub_core.mio, machine_.shared_latency, wavefronts, done);
                return false;
            }
            case Path::Exchange: {
                const bool lanes = operation.pipe == Pipe::Lsu;
                port(sub_core.mio, lanes ? machine_.shuffle_latency : machine_.special_register_latency, 1, done);
                return false;
            }
            case Path::GlobalLoad:
            case Path::GlobalStore:
            case Path::GlobalAtomic: access(sub_core, warp, pc, operation, done); return false;
            case Path::MemoryBarrier:
                ready = std::max(ready, now_ + whole(machine_.membar_latency));
                ready_stall = Stall::Membar;
                finish(machine_.membar_latency, Stall::Membar);
                return false;
            case Path::Barrier: use_pipe(sub_core, operation); return arrive(warp, operation);
        }
        return false;
    }

    /// A wavefront a cycle, for all sub-cores together.
    void port(Queue& queue, double latency, int64_t wavefronts, Done& done) {
        const int64_t start = queue.pass(now_, machine_.mio_spacing, port_free_);
        port_free_ = start + wavefronts;
        occupy(Pipe::Lsu, double(wavefronts));
        done.result = done.result_for_tensor = start + whole(latency) + wavefronts - 1;
        done.operands = start + whole(machine_.operands_read_cycles) + wavefronts - 1;
        done.stall = Stall::ShortScoreboard;
    }

    void access(SubCore& sub_core, ResidentWarp& warp, uint32_t pc, const Operation& operation, Done& done) {
        const uint64_t* words = &warp.trace->words[warp.word];
        const auto lines = int(words[0]);
        warp.word += 1 + size_t(lines);
        int sectors = 0;
        for (int i = 1; i <= lines; ++i) sectors += __builtin_popcount(unsigned(words[i] & 15));
        const int64_t wavefronts =
            std::max<int64_t>(1, std::max(whole(lines / machine_.l1_tags), int64_t(sectors + 3) / 4));
        int64_t free = port_free_;
        if (operation.path != Path::GlobalLoad) free = std::max(free, whole(memory_.store_gate(double(now_))));
        const int64_t start = sub_core.lg.pass(now_, machine_.mio_spacing, free);
        port_free_ = start + wavefronts;
        occupy(Pipe::Lsu, double(wavefronts));
        const double before = memory_.counters().dram_read_bytes + memory_.counters().dram_write_bytes;
        double last = double(start) + machine_.l1_latency;
        for (int i = 0; i < lines; ++i) {
            const double at = double(start + std::min<int64_t>(i, wavefronts - 1));
            const uint64_t line = words[i + 1];
            if (operation.path == Path::GlobalLoad)
                last = std::max(last, memory_.load(at, pc, line, warp.block->salt, operation.past_l1));
            else if (operation.local)
                memory_.store_to_stack(at, line, warp.block->salt);
            else if (operation.path == Path::GlobalStore)
                memory_.store(at, pc, line);
            else
                last = std::max(last, memory_.atomic(at, pc, line));
        }
        bucket_now().dram_bytes += memory_.counters().dram_read_bytes + memory_.counters().dram_write_bytes - before;
        done.result = done.result_for_tensor = whole(last);
        done.operands = start + whole(machine_.operands_read_cycles) + wavefronts - 1;
        done.stall = Stall::LongScoreboard;
    }

    // --- barriers

    bool arrive(ResidentWarp& warp, const Operation& operation) {
        const uint64_t word = warp.trace->words[warp.word++];
        const auto number = size_t(word & 15), lanes = size_t(word >> 8 & 63), live = size_t(word >> 16 & 63);
        uint32_t& so_far = warp.barrier_lanes[number];
        so_far += uint32_t(lanes);
        if (so_far < live) return false;  // lanes that have parted come later
        so_far = 0;
        ModelBarrier& barrier = warp.block->barriers[number];
        barrier.expected = uint32_t(word >> 32) / kLanes;
        ++barrier.arrived;
        if (operation.arrives_only) {
            release_if_full(*warp.block, barrier);
            return false;
        }
        barrier.waiting.push_back(&warp);
        waiting_at_ = &barrier;
        return true;
    }

    void release_if_full(ResidentBlock& block, ModelBarrier& barrier) {
        if (!barrier.arrived || barrier.arrived < (barrier.expected ? barrier.expected : block.running)) return;
        std::vector<ResidentWarp*> waiting;
        waiting.swap(barrier.waiting);
        barrier.arrived = 0;
        for (ResidentWarp* warp : waiting) {
            if (warp->at_end()) continue;
            auto& stalls = result_.instructions[warp->pc() ? warp->pc() - 1 : 0].stalls;
            stalls[size_t(Stall::Barrier)] += double(now_ - warp->arrived);
            schedule(sub_cores_[size_t(warp->sub_core)], *warp, now_ + whole(machine_.barrier_latency), Stall::Barrier);
        }
    }

    // --- time

    Bucket& bucket_now() { return result_.timeline.at(double(now_)); }

    const SmRun& run_;
    const Program& program_;
    const Machine& machine_;
    SmMemory memory_;
    std::vector<SubCore> sub_cores_;
    std::vector<std::unique_ptr<ResidentBlock>> blocks_;
    std::vector<Blocked> blocked_;
    ModelBarrier* waiting_at_ = nullptr;
    size_t next_block_ = 0;
    uint32_t resident_ = 0;
    int64_t now_ = 0, port_free_ = 0;
    bool stopped_ = false;
    SmResult result_;
};

}  // namespace

SmResult run_sm(const SmRun& run, const Program& program, const Machine& machine, const L2Reuse& reuse) {
    return Sm(run, program, machine, reuse).simulate();
}

}  // namespace sm70emu::timing
