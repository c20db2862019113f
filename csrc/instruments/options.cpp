#include "instruments/options.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "emulator/error.h"

namespace sm70emu {

Options::Options(std::string owner, const std::string& lines) : owner_(std::move(owner)) {
    std::istringstream stream(lines);
    for (std::string line; std::getline(stream, line);) {
        const size_t equals = line.find('=');
        if (equals == std::string::npos) fail(owner_ + ": option '" + line + "': want key=value");
        left_[line.substr(0, equals)] = line.substr(equals + 1);
    }
}

bool Options::take(const std::string& key, std::string& value) {
    known_ += (known_.empty() ? "" : ", ") + key;
    const auto found = left_.find(key);
    if (found == left_.end()) return false;
    value = found->second;
    left_.erase(found);
    return true;
}

std::string Options::text(const std::string& key, const std::string& otherwise) {
    std::string value = otherwise;
    take(key, value);
    return value;
}

std::string Options::choice(const std::string& key, std::initializer_list<const char*> choices) {
    std::string value = *choices.begin();
    if (!take(key, value)) return value;
    std::string names;
    for (const char* name : choices) {
        if (value == name) return value;
        names += (names.empty() ? "" : ", ") + std::string(name);
    }
    fail(owner_ + ": option '" + key + "': got '" + value + "', want one of " + names);
}

uint64_t Options::number(const std::string& key, uint64_t otherwise) {
    std::string value;
    if (!take(key, value)) return otherwise;
    const bool digits = !value.empty() && value.size() < 19 &&
                        std::all_of(value.begin(), value.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits) fail(owner_ + ": option '" + key + "': got '" + value + "', want a whole number");
    return std::stoull(value);
}

void Options::finish() const {
    if (!left_.empty()) fail(owner_ + ": unknown option '" + left_.begin()->first + "', want one of " + known_);
}

}  // namespace sm70emu
