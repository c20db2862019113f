#include "runtime/environment.h"

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace sm70::runtime {

bool environment_flag(const char* name) {
    const char* value = std::getenv(name);
    if (value == nullptr || std::strcmp(value, "0") == 0) return false;
    if (std::strcmp(value, "1") == 0) return true;
    throw std::runtime_error(std::string("environment variable ") + name + ": got '" + value +
                             "', want '0' or '1'. Correct or unset it");
}

}  // namespace sm70::runtime
