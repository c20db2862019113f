// Which instructions access memory, where, how, and at which addresses.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/access.h"

namespace sm70emu {

struct MemoryUse {
    MemorySpace space = MemorySpace::None;
    AccessKind kind = AccessKind::Load;
};

// "global", "shared", ...; empty for None.
const char* space_name(MemorySpace space);

// By opcode. Constant loads are not among them: they count as operands.
MemoryUse memory_use(const std::string& opcode);

// Addresses as the instruction forms them: shared and stack addresses start at zero, generic ones have their windows.
inline LaneAddresses form_addresses(const Core& core, const Instruction& in, MemorySpace space) {
    const bool in_window = space == MemorySpace::Shared || space == MemorySpace::Local;
    return in_window ? window_addresses(core, in) : global_addresses(core, in);
}

// Where an access goes: for each lane an address within the memory that it reaches, and the lanes by that memory.
struct LaneAccess {
    LaneAddresses addresses;
    uint32_t global = 0, shared = 0, local = 0;
};
LaneAccess lane_access(const Core& core, const Instruction& in, MemorySpace space, uint32_t exec);

}  // namespace sm70emu
