// What the model knows of each instruction before anything runs: its control code, its pipe, and which queue it goes
// through.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/run_launch.h"
#include "instruments/memory_use.h"
#include "instruments/pipes.h"
#include "instruments/timing/machine_table.h"

namespace sm70emu::timing {

enum class Path : uint8_t {
    Fixed,         // the compiler's stall counts cover its latency
    Tensor,        // HMMA: scoreboard, forwarded to the next HMMA
    Xu,            // one unit per sub-core, behind the MIO queue
    Double,        // FP64
    Shared,        // LDS, STS, ATOMS
    Exchange,      // SHFL, S2R and others that go through the port of shared memory
    Constant,      // LDC
    GlobalLoad,    // LDG, LD, LDL
    GlobalStore,   // STG, ST, STL
    GlobalAtomic,  // ATOMG, ATOM, RED
    Barrier,
    MemoryBarrier,
    Wait,  // DEPBAR
    Branch,
    Exit
};

struct ModelOperation {
    ControlCode control;
    Pipe pipe = Pipe::None;
    Path path = Path::Fixed;
    AccessKind access_kind = AccessKind::Load;
    uint8_t issue_cycles = 1;    // of the pipe
    uint8_t bank_conflicts = 0;  // issue slots lost to register banks
    bool past_l1 = false;        // a load that must see L2
    bool local = false;
    bool arrives_only = false;     // BAR.ARV
    uint8_t waited_barrier = 0;    // DEPBAR
    uint8_t wait_until_count = 0;  // DEPBAR.LE
};

using Program = std::vector<ModelOperation>;

Program make_program(const LoadedKernel& kernel, const Machine& machine);

}  // namespace sm70emu::timing
