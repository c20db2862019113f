// Which instructions access memory, where, how, and at which addresses.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/access.h"

namespace sm70emu {

enum class Space : uint8_t { None, Global, Shared, Local, Generic };
enum class Access : uint8_t { Load, Store, Atomic };

struct MemoryUse {
    Space space = Space::None;
    Access access = Access::Load;
};

/// "global", "shared", ...; empty for None.
const char* space_name(Space space);

/// By opcode. Constant loads are not among them: they are operands of a sort.
MemoryUse memory_use(const std::string& opcode);

/// Addresses as the instruction forms them: shared and stack addresses start at zero, generic ones have their windows.
inline void form_addresses(const Core& core, const Instruction& instruction, Space space, LaneAddresses& out) {
    if (space == Space::Shared || space == Space::Local)
        window_addresses(core, instruction, out);
    else
        global_addresses(core, instruction, out);
}

/// The executing lanes of an access by the memory that their addresses lie in; generic addresses lose their window.
struct LanesBySpace {
    uint32_t global = 0, shared = 0, local = 0;
};
LanesBySpace split_by_space(Space space, uint32_t exec, LaneAddresses& addresses);

}  // namespace sm70emu
