// The pipes of a V100's sub-core, by the names of Nsight Compute, and for how long an instruction occupies one.
// Statistics, audit and timing read the one table in pipes.cpp.
#pragma once

#include <cstdint>

#include "emulator/listing.h"

namespace sm70emu {

enum class Pipe : uint8_t { Fma, Alu, Fp16, Fp64, Xu, Tensor, Lsu, Adu, Cbu, None };
constexpr int kPipes = static_cast<int>(Pipe::None) + 1;

// "fma", "alu", ...; "none" for what takes an issue slot and no pipe.
const char* pipe_name(Pipe pipe);

struct PipeUse {
    Pipe pipe = Pipe::None;
    // Cycles until the pipe takes the next warp instruction of the same sub-core, all four sub-cores busy. The LSU's
    // port is the SM's, one wavefront per cycle: its cycles are those of conflict-free accesses, bank conflicts apart.
    uint32_t cycles = 0;
    bool known = true;  // whether the table has the opcode
};

PipeUse pipe_use(const ParsedInstruction& instruction);

}  // namespace sm70emu
