// The instruments that watch a launch together, and the names they are asked for by.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "instrument.h"

namespace sm70emu {

class Instruments {
 public:
    void add(const std::string& name, const std::string& options);
    void mark(const std::string& name, uint64_t address, uint64_t bytes, const std::string& what);
    std::string report(const std::string& name);

    bool empty() const { return named_.empty(); }
    /// Held for the length of a launch.
    std::mutex& mutex() { return mutex_; }
    void begin_launch(const LaunchState& state, const LoadedKernel& kernel, const LaunchRequest& request);
    /// The blocks to run, where any instrument has a wish: those of all that have one.
    std::vector<uint64_t> blocks();
    /// The blocks to run after those, again until there are none.
    std::vector<uint64_t> more_blocks();
    void end_launch(const std::string& error);
    std::vector<std::unique_ptr<Watcher>> watch();

 private:
    Instrument& named(const std::string& name);

    std::mutex mutex_;
    std::vector<std::pair<std::string, std::unique_ptr<Instrument>>> named_;
};

/// The observer of run_warp that hands on to watchers.
class WatcherList {
 public:
    explicit WatcherList(Instruments& instruments) : watchers_(instruments.watch()) {}
    void begin_block(Core& core) {
        for (auto& watcher : watchers_) watcher->begin_block(core);
    }
    void before(Core& core, const Instruction& instruction, uint32_t exec) {
        for (auto& watcher : watchers_) watcher->before(core, instruction, exec);
    }
    void after(Core& core, const Instruction& instruction, uint32_t exec) {
        for (auto& watcher : watchers_) watcher->after(core, instruction, exec);
    }
    /// Whether every watcher has seen enough of the block.
    bool enough() {
        for (auto& watcher : watchers_)
            if (!watcher->enough()) return false;
        return !watchers_.empty();
    }
    void end_block(Core& core) {
        for (auto& watcher : watchers_) watcher->end_block(core);
    }

 private:
    std::vector<std::unique_ptr<Watcher>> watchers_;
};

}  // namespace sm70emu
