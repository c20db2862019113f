// The state of an executing block: warps whose lanes move in groups of one program counter, barriers, shared and local
// memory, and the per-thread "core" that handlers work on.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/instruction.h"
#include "emulator/memory.h"

namespace sm70emu {

struct BarrierArrival;
struct Block;
struct LaunchState;

enum class GroupState : uint8_t { Ready, AtConvergence, AtWarpSync, AtBarrier };

// Lanes of a warp that execute together.
struct Group {
    uint32_t mask = 0;
    uint32_t pc = 0;  // next instruction; for a waiting group the one after the wait
    GroupState state = GroupState::Ready;
    uint8_t barrier = 0;
    uint32_t wait_mask = 0;  // lanes that a convergence point or WARPSYNC waits for
};

struct Warp {
    uint32_t* registers = nullptr;  // [row][32]
    uint32_t predicates[kPredicateSink + 1] = {};
    uint32_t convergence[16][kLanes] = {};  // participants of each B register, as each lane sees it
    uint32_t live = 0;                      // lanes that exist and have not exited
    uint32_t index = 0;
    uint32_t barrier_count = 0;  // result of the last BAR.RED, read by B2R.RESULT
    bool barrier_vote = false;
    std::vector<Group> groups;
    uint32_t thread_id[3][kLanes] = {};
    uint8_t* local = nullptr;  // [byte / 4][32] words
    uint64_t executed = 0;

    bool finished() const { return live == 0; }
};

enum class BarrierOperation : uint8_t { None, Popc, And, Or };

struct BlockBarrier {
    uint32_t waiting_lanes = 0;
    uint32_t contribution = 0;  // lanes counted toward an explicit thread count
    uint32_t expected = 0;      // 0: all live threads
    uint32_t votes = 0;
    uint32_t generation = 0;  // times the barrier released its threads
    BarrierOperation operation = BarrierOperation::None;
    bool active = false;
};

struct Block {
    uint32_t id[3] = {};
    uint64_t linear = 0;
    uint32_t live_lanes = 0;
    std::vector<Warp> warps;
    BlockBarrier barriers[16];
    uint8_t* shared = nullptr;
    uint32_t shared_bytes = 0;
    uint32_t local_bytes = 0;
    uint64_t executed = 0;
};

// Why the inner loop returns to the scheduler of the warp.
enum class Signal : uint8_t { None, Reschedule, Yield, Blocked, Exited };

enum class TensorRounding : uint8_t { Truncate, Nearest };

// What handlers see. One per worker thread.
struct Core {
    uint32_t* registers = nullptr;
    const uint32_t* bases[2] = {nullptr, nullptr};  // by Source::space
    uint32_t* predicates = nullptr;
    uint32_t active = 0;
    uint32_t pc = 0;
    uint32_t next_pc = 0;
    Signal signal = Signal::None;
    TensorRounding tensor_rounding = TensorRounding::Truncate;
    Warp* warp = nullptr;
    Block* block = nullptr;
    const LaunchState* launch = nullptr;
    const GlobalBuffer** buffers = nullptr;  // by instruction: the buffer it accessed last
    uint64_t executed = 0;
    // Where the fault is, for the report.
    int fault_lane = -1;

    const uint32_t* row(const Source& s) const { return bases[s.space] + static_cast<size_t>(s.row) * kLanes; }
    uint32_t* destination(uint16_t row) const { return registers + static_cast<size_t>(row) * kLanes; }
    uint32_t predicate(PredicateSource p) const { return p.negated ? ~predicates[p.index] : predicates[p.index]; }
    void write_predicate(uint8_t index, uint32_t value, uint32_t exec) {
        predicates[index] = (predicates[index] & ~exec) | (value & exec);
    }
};

// A function that a driver would provide, at an address that means nothing else.
struct ExternalFunction {
    std::string name;
    uint64_t address = 0;
};

// Immutable for the duration of a launch, shared by all worker threads.
struct LaunchState {
    const DecodedKernel* kernel = nullptr;
    GlobalMemory memory;
    std::vector<uint8_t> banks[5];
    std::vector<ExternalFunction> externals;
    const uint32_t* constants = nullptr;  // broadcast rows
    uint32_t grid[3] = {1, 1, 1};
    uint32_t block[3] = {1, 1, 1};
    uint32_t static_shared_bytes = 0;
    uint32_t dynamic_shared_bytes = 0;
    uint32_t local_bytes = 0;
    TensorRounding tensor_rounding = TensorRounding::Truncate;
    uint64_t seed = 0;
    uint64_t instruction_limit = 0;  // per block; 0: none
    std::atomic<bool>* stop = nullptr;
};

// --- convergence (convergence.cpp)

// Splits the executing lanes off to `target`; the rest goes on.
void branch(Core& core, uint32_t taken, uint32_t target);
void arrive_at_convergence(Core& core, uint8_t barrier, uint32_t exec);
// `members` holds the mask of each lane.
void arrive_at_warpsync(Core& core, uint32_t exec, const uint32_t* members);
void arrive_at_barrier(Core& core, const BarrierArrival& arrival, uint32_t votes, uint32_t exec);
void exit_lanes(Core& core, uint32_t exec);
// Releases the groups whose wait is over.
void release_waiting(Warp& warp);
// Ready groups at one program counter become one.
void merge_ready(Warp& warp);
// One sentence per waiting group of a block that cannot go on.
std::string describe_deadlock(const Block& block, const DecodedKernel& kernel);

}  // namespace sm70emu
