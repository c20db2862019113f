#include "instruments/timing/compose.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <queue>

namespace sm70emu::timing {
namespace {

// An SM gives registers to a warp 256 at a time and shared memory to a block 256 bytes at a time (CUDA occupancy
// calculator, compute capability 7.0).
constexpr uint32_t kRegisterUnit = 8, kSharedUnit = 256, kWarpUnit = 4;
// What shared memory can be set to (CUDA C++ programming guide, compute capability 7.x).
constexpr uint32_t kCarveouts[] = {0, 8, 16, 32, 64, 96};
// FMA of one tensor-pipe cycle of a sub-core, two operations each.
constexpr double kTensorFlopsPerCycle = 256;

// The traced block that stands for another: the nearest.
const BlockTrace& stand_in(const std::vector<BlockTrace>& blocks, uint64_t block) {
    const auto after = std::lower_bound(blocks.begin(), blocks.end(), block,
                                        [](const BlockTrace& trace, uint64_t value) { return trace.block < value; });
    if (after == blocks.end()) return blocks.back();
    if (after == blocks.begin() || after->block == block) return *after;
    const auto before = after - 1;
    return after->block - block < block - before->block ? *after : *before;
}

// Blocks of an SM when all SMs keep step: its number and every so many after it.
std::vector<const BlockTrace*> list_of(uint64_t sm, uint64_t blocks, uint64_t sms,
                                       const std::vector<BlockTrace>& traces) {
    std::vector<const BlockTrace*> list;
    for (uint64_t b = sm; b < blocks; b += sms) list.push_back(&stand_in(traces, b));
    return list;
}

double work_of(const std::vector<const BlockTrace*>& list) {
    double work = 0;
    for (const auto* trace : list) work += static_cast<double>(trace->executed);
    return work;
}

// Time until all are done if each takes as long as it has instructions and goes to the first free place.
double makespan(const std::vector<double>& durations, uint64_t places) {
    std::priority_queue<double, std::vector<double>, std::greater<>> free;
    for (uint64_t i = 0; i < places; ++i) free.push(0);
    double end = 0;
    for (const double duration : durations) {
        const double done = free.top() + duration;
        free.pop();
        free.push(done);
        end = std::max(end, done);
    }
    return end;
}

// Blocks that share an SM fall into step with each other in ways that a few cycles at the start decide. SMs differ in
// that, so the mean of several starts stands for them.
constexpr double kStartGaps[] = {0, 61, 149};

// Instructions per cycle between two times.
double rate(const Timeline& timeline, double from, double to) {
    double issued = 0;
    const auto first = static_cast<size_t>(from / timeline.width), last = static_cast<size_t>(to / timeline.width);
    for (size_t i = first; i < std::min(last, timeline.buckets.size()); ++i) issued += timeline.buckets[i].issued;
    return last > first ? issued / (static_cast<double>(last - first) * timeline.width) : 0;
}

// Cycles of all the work, of which the run did a part: the rest goes on as the second half did.
void extrapolate(Estimate& estimate, double work) {
    const SmResult& sm = estimate.sm;
    const auto done = static_cast<double>(sm.issued);
    estimate.cycles = sm.cycles;
    if (sm.complete || done >= work) return;
    estimate.simulated_share = done / work;
    const double third = rate(sm.timeline, sm.cycles * 0.5, sm.cycles * 0.75);
    const double fourth = rate(sm.timeline, sm.cycles * 0.75, sm.cycles);
    const double steady = third > 0 && fourth > 0 ? (third + fourth) / 2 : done / sm.cycles;
    estimate.cycles += (work - done) / steady;
    estimate.extrapolation_error = std::abs(third - fourth) / steady / 2 * (1 - estimate.simulated_share);
}

}  // namespace

Occupancy occupancy(const LaunchShape& shape, const Machine& machine) {
    Occupancy result;
    const auto take = [&](double blocks, const char* limit) {
        if (result.limit.empty() || blocks < result.blocks) {
            result.blocks = static_cast<uint32_t>(blocks);
            result.limit = limit;
        }
    };
    take(machine.blocks, "blocks");
    take(std::floor(machine.warps / shape.warps), "warps");
    const uint32_t registers = (std::max(shape.registers, 1u) + kRegisterUnit - 1) / kRegisterUnit * kRegisterUnit * 32;
    const double warps = std::floor(std::floor(machine.registers / registers) / kWarpUnit) * kWarpUnit;
    take(std::floor(warps / shape.warps), "registers");
    const uint32_t shared = (shape.shared_bytes + kSharedUnit - 1) / kSharedUnit * kSharedUnit;
    if (shared) take(std::floor(machine.shared_bytes / shared), "shared memory");
    result.blocks = std::max(result.blocks, 1u);
    result.l1_bytes = machine.l1_bytes;
    for (const uint32_t carveout : kCarveouts) {
        result.l1_bytes = machine.l1_bytes - carveout * 1024.0;
        if (carveout * 1024 >= shared * result.blocks) break;
    }
    return result;
}

Estimate compose(const LaunchShape& shape, const std::vector<BlockTrace>& blocks, const Program& program,
                 const Machine& machine, const L2Reuse& reuse, uint64_t instruction_budget) {
    const Occupancy occupied = occupancy(shape, machine);
    const auto sms = static_cast<uint64_t>(machine.sms);
    Estimate estimate;
    estimate.clock_mhz = machine.clock_mhz;
    estimate.busy_sms = static_cast<double>(std::min(shape.blocks, sms));

    // The SM whose list has the most work decides, of those that start with a traced block.
    SmRun run;
    double work = -1;
    for (const auto& trace : blocks) {
        auto list = list_of(trace.block % sms, shape.blocks, sms, blocks);
        const double of_list = work_of(list);
        if (of_list > work) {
            work = of_list;
            run.blocks = std::move(list);
        }
    }
    run.residency = occupied.blocks;
    run.l1_bytes = occupied.l1_bytes;
    run.sharing = estimate.busy_sms;
    if (shape.blocks <= sms * occupied.blocks) {
        // One wave: SMs with less work end earlier and leave L2 and DRAM to the others. Of what all SMs move, this
        // one's part is that of its work.
        double all = 0;
        for (uint64_t b = 0; b < shape.blocks; ++b) all += static_cast<double>(stand_in(blocks, b).executed);
        run.sharing = std::max(1.0, all / work);
    }
    estimate.sharing = run.sharing;
    run.instructions = instruction_budget;
    estimate.sm = run_sm(run, program, machine, reuse);
    extrapolate(estimate, work);
    if (run.residency > 1 && run.blocks.size() > 1) {
        double sum = estimate.cycles, least = sum, most = sum;
        for (size_t i = 1; i < std::size(kStartGaps); ++i) {
            run.start_gap = kStartGaps[i];
            Estimate other;
            other.sm = run_sm(run, program, machine, reuse);
            extrapolate(other, work);
            sum += other.cycles;
            least = std::min(least, other.cycles);
            most = std::max(most, other.cycles);
        }
        estimate.cycles = sum / static_cast<double>(std::size(kStartGaps));
        estimate.phase_error = (most - least) / 2 / estimate.cycles;
    }

    // With more blocks than places, a block goes to the SM that is free first.
    double all_work = 0;
    std::vector<double> durations, own;
    for (uint64_t b = 0; b < shape.blocks; ++b) {
        durations.push_back(static_cast<double>(stand_in(blocks, b).executed));
        all_work += durations.back();
    }
    for (const auto* trace : run.blocks) own.push_back(static_cast<double>(trace->executed));
    if (shape.blocks > sms * occupied.blocks) {
        estimate.balance = makespan(durations, sms * occupied.blocks) / makespan(own, occupied.blocks);
    }
    estimate.cycles *= estimate.balance;
    estimate.ms = estimate.cycles / machine.clock_mhz / 1e3 + machine.launch_us / 1e3;
    estimate.sampling_error = sampling_error(blocks, shape.blocks);

    const double scale = estimate.sm.issued ? all_work / static_cast<double>(estimate.sm.issued) : 0;
    estimate.instructions = all_work;
    estimate.dram_read_bytes = estimate.sm.memory.dram_read_bytes * scale;
    estimate.dram_write_bytes = estimate.sm.memory.dram_write_bytes * scale;
    estimate.tensor_flops =
        estimate.sm.busy[static_cast<size_t>(Pipe::Tensor)] * kTensorFlopsPerCycle * 2 / machine.tensor_issue * scale;
    return estimate;
}

}  // namespace sm70emu::timing
