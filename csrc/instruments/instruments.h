// The instruments that watch a launch together, and the names by which they are added.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "instruments/instrument.h"

namespace sm70emu {

class Instruments final : public LaunchObserver {
 public:
    void add(const std::string& name, const std::string& options);
    void mark(const std::string& name, uint64_t address, uint64_t bytes, const std::string& what);
    std::string report(const std::string& name);

    std::unique_lock<std::mutex> lock() override { return std::unique_lock(mutex_); }
    void begin_launch(const LaunchState& state, const LoadedKernel& kernel, const LaunchRequest& request) override;
    // The blocks of all instruments that have a preference.
    std::vector<uint64_t> blocks() override;
    std::vector<uint64_t> more_blocks() override;
    std::vector<std::unique_ptr<ThreadObserver>> observe_thread() override;
    void end_launch(const std::string& error) override;

 private:
    Instrument& named(const std::string& name);

    std::mutex mutex_;
    std::vector<std::pair<std::string, std::unique_ptr<Instrument>>> named_;
};

}  // namespace sm70emu
