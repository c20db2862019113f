// The checkers: use of uninitialised data, taint, races, barrier divergence, stack misuse. docs/checkers.md describes
// what each reports.
#pragma once

#include "instruments/instrument.h"

namespace sm70emu {

std::unique_ptr<Instrument> make_check(const std::string& options);

}  // namespace sm70emu
