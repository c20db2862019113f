#include "instruments/check/check.h"

#include <algorithm>
#include <functional>
#include <map>
#include <sstream>

#include "emulator/error.h"
#include "emulator/run_launch.h"
#include "instruments/check/check_observer.h"

namespace sm70emu {
namespace check {
namespace {

struct CheckOptions {
    Enabled enabled;
    uint64_t limit = 0;  // findings to collect; 0 stops the launch at the first
};

std::string checker_names() {
    std::string names;
    for (const char* name : kCheckerNames) names += (names.empty() ? "" : ", ") + std::string(name);
    return names;
}

Enabled parse_checkers(const std::string& list) {
    Enabled enabled;
    std::fill_n(enabled.on, kCheckers, false);
    std::istringstream names(list);
    for (std::string name; std::getline(names, name, ',');) {
        const auto* found = std::find(std::begin(kCheckerNames), std::end(kCheckerNames), name);
        if (found == std::end(kCheckerNames)) fail("check: checker '" + name + "', want some of " + checker_names());
        enabled.on[found - std::begin(kCheckerNames)] = true;
    }
    return enabled;
}

CheckOptions parse(const std::string& text) {
    CheckOptions options;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const size_t equals = line.find('=');
        const std::string key = line.substr(0, equals),
                          value = equals == std::string::npos ? "" : line.substr(equals + 1);
        if (key == "checkers") {
            options.enabled = parse_checkers(value);
        } else if (key == "findings") {
            const bool digits =
                !value.empty() && value.size() < 10 && value.find_first_not_of("0123456789") == std::string::npos;
            if (!digits) fail("check: findings '" + value + "', want a whole number");
            options.limit = std::stoull(value);
        } else {
            fail("check takes the options checkers and findings, got '" + line + "'");
        }
    }
    return options;
}

class Check : public Instrument {
 public:
    explicit Check(const CheckOptions& options)
        : options_(options), findings_(options.limit), context_{options.enabled, findings_, shadow_, races_} {}

    void begin_launch(const LaunchState& state, const LoadedKernel& kernel, const LaunchRequest&) override {
        findings_.begin_launch();
        races_.begin_launch();
        context_.flows = &flows(*kernel.decoded);
        context_.several_blocks = static_cast<uint64_t>(state.grid[0]) * state.grid[1] * state.grid[2] > 1;
        ++launches_;
    }

    std::unique_ptr<ThreadObserver> observe_thread() override { return std::make_unique<CheckObserver>(context_); }

    void end_launch(const std::string& error) override { findings_.add_error(error); }

    void mark(uint64_t address, uint64_t bytes, const std::string& what) override {
        shadow_.mark(address, bytes, what);
    }

    std::string report() override {
        std::ostringstream json;
        json << "{\"checkers\": [";
        const char* separator = "";
        for (int i = 0; i < kCheckers; ++i) {
            if (!options_.enabled.on[i]) continue;
            json << separator << "\"" << kCheckerNames[i] << "\"";
            separator = ", ";
        }
        json << "], \"launches\": " << launches_ << ", \"findings\": " << findings_.json() << "}";
        return json.str();
    }

 private:
    // Kernels of one name may differ (tests compile variants), so the texts say which is which.
    const std::vector<Flow>& flows(const DecodedKernel& kernel) {
        size_t hash = kernel.texts.size();
        for (const auto& text : kernel.texts) hash = hash * 0x100000001b3ull ^ std::hash<std::string>()(text);
        auto& known = flows_[{kernel.name, hash}];
        if (known.empty()) known = flows_of(kernel);
        return known;
    }

    const CheckOptions options_;
    Findings findings_;
    GlobalShadow shadow_;
    GlobalRaces races_;
    LaunchContext context_;
    std::map<std::pair<std::string, size_t>, std::vector<Flow>> flows_;
    uint64_t launches_ = 0;
};

}  // namespace
}  // namespace check

std::unique_ptr<Instrument> make_check(const std::string& options) {
    return std::make_unique<check::Check>(check::parse(options));
}

}  // namespace sm70emu
