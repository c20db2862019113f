// The instrument "timing": estimates how long each launch would take on a V100. docs/cycle-model.md.
//
// Options: board, clocks (MHz, comma-separated; the first is the one whose details are reported), whole_blocks,
// emulated, recorded, heads, instructions (budgets, see CaptureLimits and compose), and any parameter of
// machine_table.cpp.
#pragma once

#include <memory>
#include <string>

#include "instruments/instrument.h"

namespace sm70emu {

std::unique_ptr<Instrument> make_timing(const std::string& options);

}  // namespace sm70emu
