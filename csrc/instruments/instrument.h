// An instrument: a checker, statistics, a trace, the cycle model. It lives for any number of launches and reports in
// JSON what it saw. While a launch runs, each worker thread has an observer of its own, so that observing needs no
// locks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emulator/observer.h"

namespace sm70emu {

class Instrument {
 public:
    virtual ~Instrument() = default;
    // A launch starts. Launches that share an instrument run one after the other.
    virtual void begin_launch(const LaunchState&, const LoadedKernel&, const LaunchRequest&) {}
    // As LaunchObserver's.
    virtual std::vector<uint64_t> blocks() { return {}; }
    virtual std::vector<uint64_t> more_blocks() { return {}; }
    // An observer for one worker thread of the launch. Called from that thread; so is its destructor.
    virtual std::unique_ptr<ThreadObserver> observe_thread() = 0;
    // The launch is over and all thread observers are gone. `error` is empty if it succeeded.
    virtual void end_launch(const std::string& /*error*/) {}
    // The caller marks bytes of memory with a word that the instrument knows; throws if it does not.
    virtual void mark(uint64_t address, uint64_t bytes, const std::string& what);
    // JSON text.
    virtual std::string report() = 0;
};

// Options are lines "key=value".
using InstrumentFactory = std::unique_ptr<Instrument> (*)(const std::string& options);

}  // namespace sm70emu
