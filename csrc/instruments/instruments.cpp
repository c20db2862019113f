#include "instruments/instruments.h"

#include <algorithm>

#include "emulator/error.h"
#include "instruments/check/check.h"
#include "instruments/execution_counts.h"
#include "instruments/statistics.h"
#include "instruments/timing/timing.h"
#include "instruments/trace.h"

namespace sm70emu {
namespace {

struct Entry {
    const char* name;
    InstrumentFactory make;
};

// One line for each instrument.
constexpr Entry kEntries[] = {
    {"check", make_check},           {"execution_counts", make_execution_counts},
    {"statistics", make_statistics}, {"trace", make_trace},
    {"timing", make_timing},
};

std::string known_names() {
    std::string names;
    for (const auto& entry : kEntries) names += (names.empty() ? "" : ", ") + std::string(entry.name);
    return names;
}

}  // namespace

void Instrument::mark(uint64_t, uint64_t, const std::string& what) {
    fail("this instrument takes no marks, got '" + what + "'");
}

void Instruments::add(const std::string& name, const std::string& options) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto* entry = std::find_if(std::begin(kEntries), std::end(kEntries),
                                     [&](const Entry& candidate) { return name == candidate.name; });
    if (entry == std::end(kEntries)) fail("instrument: got '" + name + "', want one of " + known_names());
    for (const auto& present : named_) {
        if (present.first == name) fail("instrument: '" + name + "' is there already");
    }
    named_.emplace_back(name, entry->make(options));
}

Instrument& Instruments::named(const std::string& name) {
    for (auto& [present, instrument] : named_) {
        if (present == name) return *instrument;
    }
    fail("instrument: '" + name + "' was not added");
}

void Instruments::mark(const std::string& name, uint64_t address, uint64_t bytes, const std::string& what) {
    const std::lock_guard<std::mutex> lock(mutex_);
    named(name).mark(address, bytes, what);
}

std::string Instruments::report(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return named(name).report();
}

void Instruments::begin_launch(const LaunchState& state, const LoadedKernel& kernel, const LaunchRequest& request) {
    for (auto& [name, instrument] : named_) instrument->begin_launch(state, kernel, request);
}

std::vector<uint64_t> Instruments::blocks() {
    std::vector<uint64_t> wanted;
    for (auto& [name, instrument] : named_) {
        const auto blocks = instrument->blocks();
        wanted.insert(wanted.end(), blocks.begin(), blocks.end());
    }
    return wanted;
}

std::vector<uint64_t> Instruments::more_blocks() {
    std::vector<uint64_t> wanted;
    for (auto& [name, instrument] : named_) {
        const auto blocks = instrument->more_blocks();
        wanted.insert(wanted.end(), blocks.begin(), blocks.end());
    }
    return wanted;
}

void Instruments::end_launch(const std::string& error) {
    for (auto& [name, instrument] : named_) instrument->end_launch(error);
}

std::vector<std::unique_ptr<ThreadObserver>> Instruments::observe_thread() {
    std::vector<std::unique_ptr<ThreadObserver>> observers;
    for (auto& [name, instrument] : named_) observers.push_back(instrument->observe_thread());
    return observers;
}

}  // namespace sm70emu
