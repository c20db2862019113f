// What the checkers found: sentences for the launch's error, and the same in JSON.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "emulator/machine.h"

namespace sm70emu::check {

enum class Checker : uint8_t { Uninitialised, Taint, SharedRace, Barrier, GlobalRace, Stack };
constexpr const char* kCheckerNames[] = {"uninitialised", "taint", "shared_race", "barrier", "global_race", "stack"};
constexpr int kCheckers = 6;

// Memory that a finding is about.
struct MemoryRange {
    const char* space = nullptr;  // null: none
    uint64_t address = 0;
    uint32_t bytes = 0;
};

class Findings {
 public:
    // `limit`: findings to collect before the launch is stopped; 0 stops it at the first.
    explicit Findings(uint64_t limit) : limit_(limit) {}

    void begin_launch() { stopped_ = false; }
    // Keeps a finding of this lane and instruction. Throws EmulatorError if the launch is to stop. A second one of the
    // same checker and instruction is only counted.
    void add(Core& core, Checker checker, int lane, const std::string& sentence, const MemoryRange& place = {});
    // A check that is always on, or a fault of the kernel, stopped the launch.
    void add_error(const std::string& error);
    // JSON array.
    std::string json() const;

 private:
    struct Finding {
        std::string checker, kernel, sass, source, what, space, buffer;
        uint64_t offset = 0, address = 0, buffer_offset = 0, count = 1;
        uint32_t block[3] = {}, warp = 0, bytes = 0;
        int lane = -1;
    };

    const uint64_t limit_;
    bool stopped_ = false;  // by a finding, which is here
    mutable std::mutex mutex_;
    std::vector<Finding> findings_;
};

// "0x...: SASS" of an instruction, with its source line if that is known.
std::string instruction_text(const DecodedKernel& kernel, uint64_t pc);

}  // namespace sm70emu::check
