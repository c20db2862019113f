// Where an instruction of a kernel can go next: what liveness, loops and bounds are computed on.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/listing.h"

namespace sm70emu {

struct ControlFlow {
    // Indices of the instructions that can follow, within a function: a call is followed by the instruction after it,
    // a return and an exit by nothing.
    std::vector<std::vector<uint32_t>> successors;
    // For a direct call the first instruction of the function, else -1.
    std::vector<int64_t> callees;
    // Whether the call's function is not known (through a register).
    std::vector<bool> calls_unknown;
    std::vector<bool> returns;

    // Instructions of the function that starts at `entry`.
    std::vector<uint32_t> body(uint32_t entry) const;
};

std::vector<ParsedInstruction> parse_section(const ListedSection& section);
ControlFlow control_flow(const std::vector<ParsedInstruction>& code, const ListedSection& section);

}  // namespace sm70emu
