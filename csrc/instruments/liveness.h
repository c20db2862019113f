// How many general registers hold a value that is still needed, at each instruction of a kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/instruction.h"
#include "instruments/control_flow.h"

namespace sm70emu {

// Registers that are live before the instruction or written by it: what a register allocation must hold there. A write
// under a guard does not end the old value's life. In a function that several calls reach, what any of them needs
// afterwards counts.
std::vector<uint32_t> live_registers(const std::vector<ParsedInstruction>& code,
                                     const std::vector<RegisterOperands>& registers, const ControlFlow& flow);

}  // namespace sm70emu
