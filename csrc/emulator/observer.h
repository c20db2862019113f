// What the emulator knows of whatever watches a launch: two interfaces, implemented outside the emulator.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/instruction.h"
#include "emulator/machine.h"

namespace sm70emu {

struct LoadedKernel;
struct LaunchRequest;

// Sees what one worker thread executes. The Core names block, warp, registers and program counter. An EmulatorError
// thrown here stops the launch; its report names kernel, instruction, block, warp and Core::fault_lane.
class ThreadObserver {
 public:
    virtual ~ThreadObserver() = default;
    virtual void begin_block(Core&) {}
    // `exec`: the lanes that will execute the instruction. It is empty if all are predicated off.
    virtual void before(Core&, const Instruction&, uint32_t /*exec*/) {}
    virtual void after(Core&, const Instruction&, uint32_t /*exec*/) {}
    // Whether the rest of the block need not run. Asked between the time slices of its warps; if so, the block stops
    // there, without end_block.
    virtual bool enough() { return false; }
    // All threads of the block have exited.
    virtual void end_block(Core&) {}
};

// Watches launches, one at a time.
class LaunchObserver {
 public:
    virtual ~LaunchObserver() = default;
    // Held from before begin_launch until after end_launch.
    virtual std::unique_lock<std::mutex> lock() = 0;
    virtual void begin_launch(const LaunchState&, const LoadedKernel&, const LaunchRequest&) = 0;
    // The blocks to run where the caller leaves the choice open; empty: no preference. Called after begin_launch.
    virtual std::vector<uint64_t> blocks() = 0;
    // The blocks of the next round; empty: no more. Called when all blocks of the round before have run and its thread
    // observers are gone, and only if blocks() made the choice.
    virtual std::vector<uint64_t> more_blocks() = 0;
    // Observers of one worker thread. Called and destroyed on that thread, so that observing needs no locks.
    virtual std::vector<std::unique_ptr<ThreadObserver>> observe_thread() = 0;
    // All thread observers are gone. `error` is empty if the launch succeeded.
    virtual void end_launch(const std::string& error) = 0;
};

// The observer of run_warp() for a launch that is watched.
class ObserverList {
 public:
    explicit ObserverList(LaunchObserver& launch) : observers_(launch.observe_thread()) {}
    void begin_block(Core& core) {
        for (auto& observer : observers_) observer->begin_block(core);
    }
    void before(Core& core, const Instruction& instruction, uint32_t exec) {
        for (auto& observer : observers_) observer->before(core, instruction, exec);
    }
    void after(Core& core, const Instruction& instruction, uint32_t exec) {
        for (auto& observer : observers_) observer->after(core, instruction, exec);
    }
    // Whether every observer has seen enough of the block.
    bool enough() {
        for (auto& observer : observers_) {
            if (!observer->enough()) return false;
        }
        return !observers_.empty();
    }
    void end_block(Core& core) {
        for (auto& observer : observers_) observer->end_block(core);
    }

 private:
    std::vector<std::unique_ptr<ThreadObserver>> observers_;
};

}  // namespace sm70emu
