// The name of the kernel that serves a call, exported for Python.
#pragma once

#include <string>
#include <utility>

namespace sm70::runtime {

// Text for a C caller, valid until the next call on the same thread.
inline const char* route_text(std::string route) {
    thread_local std::string text;
    text = std::move(route);
    return text.c_str();
}

}  // namespace sm70::runtime
