#include "instruments/timing/timing.h"

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <sstream>

#include "emulator/error.h"
#include "emulator/run_launch.h"
#include "instruments/timing/report.h"

namespace sm70emu {
namespace timing {
namespace {

struct TimingSettings {
    Machine machine = default_machine();
    std::string board = "v100-sxm2";
    std::vector<std::string> changed;
    std::vector<double> clocks;
    CaptureLimits capture;
    uint64_t instructions = 2'000'000;  // simulated per SM, clock and start
};

double number(const std::string& key, const std::string& text) {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (text.empty() || *end || !std::isfinite(value)) fail("timing: " + key + ": got '" + text + "', want a number");
    return value;
}

uint64_t count(const std::string& key, const std::string& text) {
    const double value = number(key, text);
    if (value < 1 || value > 1e15) fail("timing: " + key + ": got '" + text + "', want a whole number from 1");
    return static_cast<uint64_t>(value);
}

TimingSettings parse(const std::string& options) {
    TimingSettings settings;
    std::vector<std::pair<std::string, std::string>> lines;
    std::istringstream stream(options);
    for (std::string line; std::getline(stream, line);) {
        if (line.empty()) continue;
        const size_t equals = line.find('=');
        if (equals == std::string::npos) fail("timing: got '" + line + "', want key=value");
        lines.emplace_back(line.substr(0, equals), line.substr(equals + 1));
    }
    for (const auto& [key, text] : lines) {
        // A board first: single values override it. A requested number of blocks is what runs.
        if (key == "board") apply_board(settings.machine, settings.board = text);
        if (key == "whole_blocks") settings.capture.emulated = std::numeric_limits<uint64_t>::max();
    }
    for (const auto& [key, text] : lines) {
        if (key == "board") continue;
        if (key == "clocks") {
            std::istringstream list(text);
            for (std::string item; std::getline(list, item, ',');) settings.clocks.push_back(number(key, item));
        } else if (key == "whole_blocks") {
            settings.capture.whole_blocks = count(key, text);
        } else if (key == "emulated") {
            settings.capture.emulated = count(key, text);
        } else if (key == "recorded") {
            settings.capture.recorded_per_block = count(key, text);
        } else if (key == "heads") {
            settings.capture.head_instructions = count(key, text);
        } else if (key == "instructions") {
            settings.instructions = count(key, text);
        } else {
            set_parameter(settings.machine, key, number(key, text));
            settings.changed.push_back(key);
        }
    }
    if (settings.clocks.empty()) settings.clocks.push_back(settings.machine.clock_mhz);
    for (const double clock : settings.clocks) {
        if (!(clock > 0)) fail("timing: clocks must be positive");
    }
    settings.machine.clock_mhz = settings.clocks.front();
    return settings;
}

class Timing : public Instrument {
 public:
    explicit Timing(TimingSettings settings) : settings_(std::move(settings)) {}

    void begin_launch(const LaunchState& state, const LoadedKernel& kernel, const LaunchRequest& request) override {
        launch_ = {};
        launch_.kernel = kernel.decoded->name;
        launch_.texts = kernel.decoded->texts;
        for (const auto& source : kernel.decoded->sources) launch_.sources.push_back(source.text());
        launch_.sources.resize(launch_.texts.size());
        uint64_t threads = 1;
        launch_.shape.blocks = 1;
        for (int i = 0; i < 3; ++i) {
            launch_.grid[i] = state.grid[i];
            launch_.block[i] = state.block[i];
            launch_.shape.blocks *= state.grid[i];
            threads *= state.block[i];
        }
        launch_.shape.warps = static_cast<uint32_t>((threads + kLanes - 1) / kLanes);
        launch_.shape.registers = kernel.image->registers;
        launch_.shape.shared_bytes = state.static_shared_bytes + state.dynamic_shared_bytes;
        launch_.occupied = occupancy(launch_.shape, settings_.machine);
        program_ = make_program(kernel, settings_.machine);
        std::vector<GlobalBuffer> buffers = request.buffers;
        buffers.insert(buffers.end(), kernel.globals->begin(), kernel.globals->end());
        addresses_ = AddressMap(buffers, left_in_l2_);
        left_in_l2_.clear();
        written_.clear();
        for (const auto& buffer : request.buffers) {
            if (buffer.writable && static_cast<double>(buffer.bytes) <= settings_.machine.l2_bytes / 2) {
                written_.push_back(buffer);
            }
        }
        captured_.blocks.clear();
        captured_.heads.clear();
        const uint64_t concurrent = static_cast<uint64_t>(settings_.machine.sms) * launch_.occupied.blocks;
        plan_ = plan_capture(launch_.shape.blocks, concurrent, launch_.shape.warps, settings_.capture);
        if (request.sampled) {
            // The caller has chosen the blocks.
            plan_.whole = {request.sampled_blocks.begin(), request.sampled_blocks.end()};
            plan_.pending.clear();
        }
    }

    std::vector<uint64_t> blocks() override { return first_round(plan_); }

    std::vector<uint64_t> more_blocks() override {
        if (plan_.pending.empty()) return {};
        captured_.sort();  // sums do not depend on which thread was first
        return next_round(plan_, captured_.blocks, launch_.shape.blocks, settings_.capture);
    }

    std::unique_ptr<ThreadObserver> observe_thread() override {
        return make_capture(plan_, program_, addresses_, captured_);
    }

    void end_launch(const std::string& error) override {
        if (!error.empty() || captured_.blocks.empty()) return;
        const auto begin = std::chrono::steady_clock::now();
        captured_.sort();
        for (const auto& trace : captured_.blocks) launch_.traced_blocks.push_back(trace.block);
        launch_.heads = captured_.heads.size();
        launch_.reuse = replay_heads(captured_.heads, program_, settings_.machine,
                                     launch_.occupied.l1_bytes / launch_.occupied.blocks);
        captured_.heads.clear();
        for (const double clock : settings_.clocks) {
            Machine machine = settings_.machine;
            machine.clock_mhz = clock;
            launch_.estimates.push_back(
                compose(launch_.shape, captured_.blocks, program_, machine, launch_.reuse, settings_.instructions));
        }
        captured_.blocks.clear();
        // A launch that writes little leaves it in L2 for the next one.
        if (launch_.estimates.front().dram_write_bytes <= settings_.machine.l2_bytes / 2) left_in_l2_ = written_;
        launch_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        reports_.push_back(to_json(launch_, settings_.machine));
    }

    std::string report() override {
        std::string json = "{\"machine\": " + machine_to_json(settings_.machine, settings_.board, settings_.changed) +
                           ", \"table\": " + table_to_json() + ", \"launches\": [";
        const char* separator = "";
        for (const auto& launch : reports_) {
            json += separator + launch;
            separator = ", ";
        }
        return json + "]}";
    }

 private:
    TimingSettings settings_;
    LaunchReport launch_;
    Program program_;
    CapturePlan plan_;
    AddressMap addresses_;
    std::vector<GlobalBuffer> written_, left_in_l2_;
    Captured captured_;
    std::vector<std::string> reports_;
};

}  // namespace
}  // namespace timing

std::unique_ptr<Instrument> make_timing(const std::string& options) {
    return std::make_unique<timing::Timing>(timing::parse(options));
}

}  // namespace sm70emu
