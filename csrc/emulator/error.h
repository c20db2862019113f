// The one exception type of the emulator: every refusal is a sentence, never a wrong result.
#pragma once

#include <stdexcept>
#include <string>

namespace sm70emu {

class EmulatorError : public std::runtime_error {
 public:
    explicit EmulatorError(const std::string& what) : std::runtime_error(what) {}
};

[[noreturn]] inline void fail(const std::string& what) {
    throw EmulatorError(what);
}

std::string hex(unsigned long long value);

}  // namespace sm70emu
