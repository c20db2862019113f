// Writes what warps execute as Accel-Sim's SASS traces: one file per launch, kernel-1.traceg and so on, and
// kernelslist.g, which names them. The format is that of Accel-Sim's NVBit tracer, version 5, after its post-processing
// by block.
//
// Options: folder (required); blocks: at most so many of a launch, 0 all; registers: "all" of wide operands, or the
// "first" of each as the NVBit tracer has them (what an unmodified trace parser takes); addresses: "compressed" or
// "list"; lineinfo: 1 puts the source line before each instruction.
#pragma once

#include "instruments/instrument.h"

namespace sm70emu {

std::unique_ptr<Instrument> make_trace(const std::string& options);

}  // namespace sm70emu
