// Options of an instrument: lines "key=value". Every line must be taken, so that a misspelt one is an error.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>

namespace sm70emu {

class Options {
 public:
    // `owner` is named in errors.
    Options(std::string owner, const std::string& lines);
    std::string text(const std::string& key, const std::string& otherwise);
    // One of the choices; the first is the default.
    std::string choice(const std::string& key, std::initializer_list<const char*> choices);
    uint64_t number(const std::string& key, uint64_t otherwise);
    // Throws if a line was not taken.
    void finish() const;

 private:
    bool take(const std::string& key, std::string& value);

    std::string owner_;
    std::map<std::string, std::string> left_;
    std::string known_;
};

}  // namespace sm70emu
