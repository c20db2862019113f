#include <algorithm>
#include <vector>

#include "instruments/timing/sm_simulation.h"

namespace sm70emu::timing {

void SmSimulation::use_pipe(SubCore& sub_core, const ModelOperation& operation) {
    sub_core.pipe_free[static_cast<size_t>(operation.pipe)] = now_ + operation.issue_cycles;
    occupy(operation.pipe, operation.issue_cycles);
}

void SmSimulation::occupy(Pipe pipe, double cycles) {
    result_.busy[static_cast<size_t>(pipe)] += cycles;
    bucket_now().busy[static_cast<size_t>(pipe)] += cycles;
}

// Sends an instruction through its pipe.
SmSimulation::IssueResult SmSimulation::execute(SubCore& sub_core, ResidentWarp& warp, uint32_t pc,
                                                const ModelOperation& operation) {
    IssueResult issued;
    issued.ready = now_ + std::max<int64_t>(1, operation.control.stall);
    Completion& done = issued.completion;
    const auto finish = [&](double latency, Stall stall) {
        done.result = done.result_for_tensor = now_ + whole_cycles(latency);
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
            break;
        case Path::Tensor:
            use_pipe(sub_core, operation);
            finish(machine_.tensor_latency, Stall::TensorScoreboard);
            done.result_for_tensor = now_ + whole_cycles(machine_.tensor_chain_latency) + operation.issue_cycles - 2;
            break;
        case Path::Double:
            use_pipe(sub_core, operation);
            finish(machine_.fp64_latency, Stall::ShortScoreboard);
            break;
        case Path::Constant:
            use_pipe(sub_core, operation);
            finish(machine_.constant_latency, Stall::ShortScoreboard);
            break;
        case Path::Xu: {
            const int64_t start = sub_core.mio.pass(now_, machine_.mio_spacing, sub_core.xu_free);
            sub_core.xu_free = start + operation.issue_cycles;
            occupy(Pipe::Xu, operation.issue_cycles);
            finish(static_cast<double>(start - now_) + machine_.xu_latency, Stall::ShortScoreboard);
            done.operands = start + operation.issue_cycles;
            break;
        }
        case Path::Shared: {
            const auto wavefronts = static_cast<int64_t>(warp.trace->words[warp.word++]);
            done = port(sub_core.mio, machine_.shared_latency, wavefronts);
            break;
        }
        case Path::Exchange: {
            const bool lanes = operation.pipe == Pipe::Lsu;
            done = port(sub_core.mio, lanes ? machine_.shuffle_latency : machine_.special_register_latency, 1);
            break;
        }
        case Path::GlobalLoad:
        case Path::GlobalStore:
        case Path::GlobalAtomic: done = access(sub_core, warp, pc, operation); break;
        case Path::MemoryBarrier:
            issued.ready = std::max(issued.ready, now_ + whole_cycles(machine_.membar_latency));
            issued.ready_stall = Stall::Membar;
            finish(machine_.membar_latency, Stall::Membar);
            break;
        case Path::Barrier:
            use_pipe(sub_core, operation);
            issued.waits_at = arrive(warp, operation);
            break;
    }
    return issued;
}

// The SM's port takes a wavefront per cycle, for all sub-cores together.
SmSimulation::Completion SmSimulation::port(Queue& queue, double latency, int64_t wavefronts) {
    const int64_t start = queue.pass(now_, machine_.mio_spacing, port_free_);
    port_free_ = start + wavefronts;
    occupy(Pipe::Lsu, static_cast<double>(wavefronts));
    Completion done;
    done.result = done.result_for_tensor = start + whole_cycles(latency) + wavefronts - 1;
    done.operands = start + whole_cycles(machine_.operands_read_cycles) + wavefronts - 1;
    done.stall = Stall::ShortScoreboard;
    return done;
}

SmSimulation::Completion SmSimulation::access(SubCore& sub_core, ResidentWarp& warp, uint32_t pc,
                                              const ModelOperation& operation) {
    const uint64_t* words = &warp.trace->words[warp.word];
    const auto lines = static_cast<int>(words[0]);
    warp.word += 1 + static_cast<size_t>(lines);
    int sectors = 0;
    for (int i = 1; i <= lines; ++i) sectors += TouchedLine(words[i]).sector_count();
    const int64_t wavefronts =
        std::max<int64_t>(1, std::max(whole_cycles(lines / machine_.l1_tags), static_cast<int64_t>(sectors + 3) / 4));
    int64_t free = port_free_;
    if (operation.path != Path::GlobalLoad) {
        free = std::max(free, whole_cycles(memory_.store_gate(static_cast<double>(now_))));
    }
    const int64_t start = sub_core.lg.pass(now_, machine_.mio_spacing, free);
    port_free_ = start + wavefronts;
    occupy(Pipe::Lsu, static_cast<double>(wavefronts));
    const double before = memory_.counters().dram_read_bytes + memory_.counters().dram_write_bytes;
    double last = static_cast<double>(start) + machine_.l1_latency;
    for (int i = 0; i < lines; ++i) {
        const double at = static_cast<double>(start + std::min<int64_t>(i, wavefronts - 1));
        const TouchedLine line(words[i + 1]);
        if (operation.path == Path::GlobalLoad) {
            last = std::max(last, memory_.load(at, pc, line, warp.block->salt, operation.past_l1));
        } else if (operation.local) {
            memory_.store_to_stack(at, line, warp.block->salt);
        } else if (operation.path == Path::GlobalStore) {
            memory_.store(at, pc, line);
        } else {
            last = std::max(last, memory_.atomic(at, pc, line));
        }
    }
    bucket_now().dram_bytes += memory_.counters().dram_read_bytes + memory_.counters().dram_write_bytes - before;
    Completion done;
    done.result = done.result_for_tensor = whole_cycles(last);
    done.operands = start + whole_cycles(machine_.operands_read_cycles) + wavefronts - 1;
    done.stall = Stall::LongScoreboard;
    return done;
}

// --- barriers

// The barrier at which the warp now waits, or null if it goes on.
ModelBarrier* SmSimulation::arrive(ResidentWarp& warp, const ModelOperation& operation) {
    const BarrierStep step = BarrierStep::from_word(warp.trace->words[warp.word++]);
    uint32_t& arrived_lanes = warp.barrier_lanes[step.number];
    arrived_lanes += step.lanes;
    if (arrived_lanes < step.live_lanes) return nullptr;  // diverged lanes arrive later
    arrived_lanes = 0;
    ModelBarrier& barrier = warp.block->barriers[step.number];
    barrier.expected = step.threads / kLanes;
    ++barrier.arrived;
    if (operation.arrives_only) {
        release_if_full(*warp.block, barrier);
        return nullptr;
    }
    barrier.waiting.push_back(&warp);
    return &barrier;
}

void SmSimulation::release_if_full(ResidentBlock& block, ModelBarrier& barrier) {
    if (!barrier.arrived || barrier.arrived < (barrier.expected ? barrier.expected : block.running)) return;
    std::vector<ResidentWarp*> waiting;
    waiting.swap(barrier.waiting);
    barrier.arrived = 0;
    for (ResidentWarp* warp : waiting) {
        if (warp->at_end()) continue;
        auto& stalls = result_.instructions[warp->pc() ? warp->pc() - 1 : 0].stalls;
        stalls[static_cast<size_t>(Stall::Barrier)] += static_cast<double>(now_ - warp->arrived);
        schedule(sub_cores_[static_cast<size_t>(warp->sub_core)], *warp, now_ + whole_cycles(machine_.barrier_latency),
                 Stall::Barrier);
    }
}

}  // namespace sm70emu::timing
