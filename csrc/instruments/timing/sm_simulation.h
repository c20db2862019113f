// The simulation behind run_sm(). sm.cpp schedules blocks and issues instructions, sm_execute.cpp sends them through
// pipes, queues and barriers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "instruments/timing/sm.h"
#include "instruments/timing/sm_memory.h"
#include "instruments/timing/sub_core.h"

namespace sm70emu::timing {

class SmSimulation {
 public:
    SmSimulation(const SmRun& run, const Program& program, const Machine& machine, const L2Reuse& reuse);
    SmResult simulate();

 private:
    struct Blocked {
        uint32_t pc;
        Stall stall;
    };

    // When something is free for a warp, and what the warp waits for until then.
    struct Availability {
        int64_t at;
        Stall stall;
    };

    // When an instruction is done, as its scoreboards see it.
    struct Completion {
        int64_t result = 0, result_for_tensor = 0;  // when the write barrier counts down
        int64_t operands = 0;                       // when the read barrier does
        Stall stall = Stall::ShortScoreboard;
    };

    struct IssueResult {
        Completion completion;
        int64_t ready = 0;  // when the warp may issue again, but for scoreboards
        Stall ready_stall = Stall::Wait;
        ModelBarrier* waits_at = nullptr;
    };

    // --- sm.cpp: blocks
    void start_block(int64_t when);
    void finish_warp(ResidentWarp& warp);

    // --- sm.cpp: issue
    int64_t step(SubCore& sub_core);
    Availability resources_free(const SubCore& sub_core, const ResidentWarp& warp) const;
    void issue(SubCore& sub_core, ResidentWarp& warp);
    void schedule(SubCore& sub_core, ResidentWarp& warp, int64_t ready, Stall ready_stall);
    int64_t fetch(SubCore& sub_core, uint32_t line) const;

    // --- sm_execute.cpp
    void use_pipe(SubCore& sub_core, const ModelOperation& operation);
    void occupy(Pipe pipe, double cycles);
    IssueResult execute(SubCore& sub_core, ResidentWarp& warp, uint32_t pc, const ModelOperation& operation);
    Completion port(Queue& queue, double latency, int64_t wavefronts);
    Completion access(SubCore& sub_core, ResidentWarp& warp, uint32_t pc, const ModelOperation& operation);
    ModelBarrier* arrive(ResidentWarp& warp, const ModelOperation& operation);
    void release_if_full(ResidentBlock& block, ModelBarrier& barrier);

    Bucket& bucket_now() { return result_.timeline.at(static_cast<double>(now_)); }

    const SmRun& run_;
    const Program& program_;
    const Machine& machine_;
    SmMemory memory_;
    std::vector<SubCore> sub_cores_;
    std::vector<std::unique_ptr<ResidentBlock>> blocks_;
    std::vector<Blocked> blocked_;
    size_t next_block_ = 0;
    uint32_t resident_ = 0;
    int64_t now_ = 0, port_free_ = 0;
    bool stopped_ = false;
    SmResult result_;
};

}  // namespace sm70emu::timing
