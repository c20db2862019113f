// The source line of an instruction, for reports.
#pragma once

#include <cstdint>
#include <string>

#include "instruction.h"

namespace sm70emu {

/// "file:line", empty where it is not known. A kernel decoded without line information knows none.
template <class Kernel>
auto source_text_of(const Kernel& kernel, uint64_t pc, int) -> decltype(kernel.sources[pc].text()) {
    return pc < kernel.sources.size() ? kernel.sources[pc].text() : std::string();
}
template <class Kernel>
std::string source_text_of(const Kernel&, uint64_t, long) {
    return {};
}
inline std::string source_text(const DecodedKernel& kernel, uint64_t pc) {
    return source_text_of(kernel, pc, 0);
}

}  // namespace sm70emu
