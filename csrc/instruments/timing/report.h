// JSON of a launch's estimates.
#pragma once

#include <string>
#include <vector>

#include "instruments/timing/compose.h"

namespace sm70emu::timing {

// Everything that is reported about one launch.
struct LaunchReport {
    std::string kernel;
    uint32_t grid[3] = {}, block[3] = {};
    LaunchShape shape;
    Occupancy occupied;
    std::vector<uint64_t> traced_blocks;
    uint64_t heads = 0;
    L2Reuse reuse;
    std::vector<std::string> texts;
    std::vector<std::string> sources;  // "file:line" of an instruction, or empty
    std::vector<Estimate> estimates;   // by clock, the first with all details
    double seconds = 0;                // that the model took; not part of what repeats exactly
};

std::string to_json(const LaunchReport& launch, const Machine& machine);
std::string machine_to_json(const Machine& machine, const std::string& board, const std::vector<std::string>& changed);
// The table with its sources.
std::string table_to_json();

}  // namespace sm70emu::timing
