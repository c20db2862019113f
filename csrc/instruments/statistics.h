// What a launch executed, instruction by instruction: warps and lanes, divergence, sectors of global memory, wavefronts
// and bank conflicts of shared memory, live registers.
#pragma once

#include "instruments/instrument.h"

namespace sm70emu {

std::unique_ptr<Instrument> make_statistics(const std::string& options);

}  // namespace sm70emu
