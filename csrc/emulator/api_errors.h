// Exceptions do not cross the C interface: they become text.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>

namespace sm70emu {

inline void put_error(const std::string& text, char* error, uint64_t bytes) {
    if (!error || bytes == 0) return;
    const size_t length = std::min<size_t>(text.size(), bytes - 1);
    std::memcpy(error, text.data(), length);
    error[length] = '\0';
}

// Runs the body; on an exception stores its text and returns false.
template <class Body>
bool guarded(char* error, uint64_t bytes, Body body) {
    put_error("", error, bytes);
    try {
        body();
        return true;
    } catch (const std::exception& exception) {
        put_error(exception.what(), error, bytes);
        return false;
    }
}

}  // namespace sm70emu
