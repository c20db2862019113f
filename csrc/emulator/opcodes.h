// The opcode table: families of entries, chosen once for the machine the emulator runs on.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/instruction.h"
#include "emulator/machine.h"

namespace sm70emu {

// Arithmetic families compiled for AVX2, FMA and F16C, and for plain x86-64; results are identical.
std::vector<OpcodeFamily> arithmetic_families_avx2();
std::vector<OpcodeFamily> arithmetic_families_generic();
OpcodeFamily control_family();
OpcodeFamily exchange_family();
OpcodeFamily memory_family();
OpcodeFamily atomic_family();
OpcodeFamily tensor_family_avx2();
OpcodeFamily tensor_family_scalar();

bool machine_has_avx2();

// Which implementations to bind: the best for this machine, or those that run anywhere (for tests that compare them).
enum class InstructionSet : uint8_t { Best, Portable };

// Decodes a whole kernel; throws with kernel, offset and text at the first thing that is not implemented.
DecodedKernel decode_kernel(const ListedSection& section, uint32_t registers, InstructionSet instruction_set);
// One instruction, for tools and tests; throws if it is not implemented.
void check_instruction(const ParsedInstruction& parsed, uint32_t registers);

}  // namespace sm70emu
