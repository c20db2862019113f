// One SM, cycle by cycle: four sub-cores that issue one warp instruction each, the queues between them and the SM's
// port, and the blocks that come one after the other.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "instruments/timing/block_trace.h"
#include "instruments/timing/program.h"
#include "instruments/timing/sm_memory.h"

namespace sm70emu::timing {

// What a warp does with a cycle, by the names of Nsight Compute.
enum class Stall : uint8_t {
    Selected,
    Wait,              // a fixed latency, by the compiler's stall count
    LongScoreboard,    // global or stack memory
    ShortScoreboard,   // shared memory, shuffles, XU, constants
    TensorScoreboard,  // HMMA; Nsight Compute counts it as short scoreboard
    MathPipeThrottle,
    MioThrottle,
    LgThrottle,
    Barrier,
    Membar,
    BranchResolve,
    NoInstruction,
    Dispatch,  // register banks
    NotSelected,
};
constexpr int kStalls = static_cast<int>(Stall::NotSelected) + 1;
const char* stall_name(Stall stall);

struct InstructionCounters {
    uint64_t issued = 0;
    std::array<double, kStalls> stalls{};  // warp cycles
};

// Activity of the SM over time.
struct Bucket {
    double issued = 0;                  // warp instructions
    std::array<double, kPipes> busy{};  // pipe cycles, all sub-cores; the LSU's are the port's wavefronts
    double dram_bytes = 0;
};

struct Timeline {
    double width = 64;  // cycles per bucket
    std::vector<Bucket> buckets;

    // The bucket of a cycle; buckets grow twice as wide when there are too many.
    Bucket& at(double cycle);
};

struct BlockSpan {
    uint64_t block = 0;  // whose trace was run
    double begin = 0, end = 0;
};

struct SmResult {
    double cycles = 0;
    uint64_t issued = 0;    // warp instructions
    bool complete = false;  // all blocks ran to their end
    std::vector<InstructionCounters> instructions;
    std::array<double, kPipes> busy{};
    MemoryCounters memory;
    Timeline timeline;
    std::vector<BlockSpan> blocks;
};

struct SmRun {
    std::vector<const BlockTrace*> blocks;  // in the order in which they start
    uint32_t residency = 1;                 // blocks at a time
    double l1_bytes = 0;
    double start_gap = 0;       // cycles between the starts of the first blocks, beside their dispatch
    double sharing = 1;         // SMs that are busy
    uint64_t instructions = 0;  // stop after so many; 0: never
};

SmResult run_sm(const SmRun& run, const Program& program, const Machine& machine, const L2Reuse& reuse);

}  // namespace sm70emu::timing
