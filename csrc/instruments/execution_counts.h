// How often each instruction of each kernel was executed: by warps, and by lanes.
#pragma once

#include "instruments/instrument.h"

namespace sm70emu {

std::unique_ptr<Instrument> make_execution_counts(const std::string& options);

}  // namespace sm70emu
