// What watches launches: checkers, statistics, traces, timing. An instrument lives for any number of launches and tells
// in JSON what it saw. While a launch runs, each worker thread has a watcher of its own, so that watching needs no
// locks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../instruction.h"
#include "../machine.h"

namespace sm70emu {

struct LoadedKernel;
struct LaunchRequest;

/// Sees what one worker thread executes. The Core it is given names block, warp, registers and program counter.
/// Throwing EmulatorError stops the launch and reports kernel, instruction, block, warp and Core::fault_lane.
class Watcher {
 public:
    virtual ~Watcher() = default;
    virtual void begin_block(Core&) {}
    /// `exec`: the lanes that will execute the instruction; may be empty (all predicated off).
    virtual void before(Core&, const Instruction&, uint32_t /*exec*/) {}
    virtual void after(Core&, const Instruction&, uint32_t /*exec*/) {}
    /// Whether nothing more of the block need run; asked between turns of its warps. It ends there, without end_block.
    virtual bool enough() { return false; }
    /// The block came to its end.
    virtual void end_block(Core&) {}
};

class Instrument {
 public:
    virtual ~Instrument() = default;
    /// A launch starts, with all that stays the same in it. Launches that share an instrument run one after the other.
    virtual void begin_launch(const LaunchState&, const LoadedKernel&, const LaunchRequest&) {}
    /// The blocks to run where the caller leaves the choice; empty: no wish. Asked after begin_launch.
    virtual std::vector<uint64_t> blocks() { return {}; }
    /// The blocks to run next, when all those have run, are over and their watchers gone; empty: no more. Asked only
    /// where the choice is the instruments'.
    virtual std::vector<uint64_t> more_blocks() { return {}; }
    /// A watcher for one worker thread of the launch. Called from that thread; so is its destructor.
    virtual std::unique_ptr<Watcher> watch() = 0;
    /// The launch is over, all watchers are gone. `error` is empty if it succeeded.
    virtual void end_launch(const std::string& /*error*/) {}
    /// The caller says something about bytes of memory, in a word that the instrument knows; throws if it does not.
    virtual void mark(uint64_t address, uint64_t bytes, const std::string& what);
    /// JSON text.
    virtual std::string report() = 0;
};

/// Options are lines "key=value".
using InstrumentFactory = std::unique_ptr<Instrument> (*)(const std::string& options);

}  // namespace sm70emu
