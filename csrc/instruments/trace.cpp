#include "instruments/trace.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <vector>

#include "emulator/error.h"
#include "emulator/run_launch.h"
#include "instruments/control_flow.h"
#include "instruments/memory_use.h"
#include "instruments/options.h"

namespace sm70emu {
namespace {

namespace fs = std::filesystem;

constexpr int kBinaryVersion = 70;
constexpr int kTracerVersion = 5;
constexpr size_t kMaxSources = 4;  // what the NVBit tracer keeps

enum AddressFormat { kListAll = 0, kBaseStride = 1, kBaseDelta = 2 };

struct TraceSettings {
    fs::path folder;
    uint64_t blocks = 0;
    bool all_registers = true;
    bool compressed = true;
    bool lineinfo = false;
};

template <class... Arguments>
void append(std::string& text, const char* format, Arguments... arguments) {
    char buffer[128];
    std::snprintf(buffer, sizeof(buffer), format, arguments...);
    text += buffer;
}

// The parts of an instruction's line that every execution shares.
struct Line {
    std::string head;  // line number, program counter
    std::string body;  // registers and opcode
    std::string tail;  // the immediate
    MemoryUse memory;
};

std::vector<int> register_numbers(const std::vector<RegisterRange>& ranges, bool all) {
    std::vector<int> numbers;
    for (const auto& range : ranges) {
        for (int i = 0; i < (all ? range.count : 1); ++i) numbers.push_back(range.first + i);
    }
    if (!all && numbers.size() > kMaxSources) numbers.resize(kMaxSources);
    return numbers;
}

void append_registers(std::string& text, const std::vector<int>& numbers) {
    append(text, "%zu ", numbers.size());
    for (const int number : numbers) append(text, "R%d ", number);
}

std::vector<Line> make_lines(const LoadedKernel& kernel, const TraceSettings& settings) {
    std::vector<Line> lines;
    const auto code = parse_section(*kernel.section);
    for (size_t i = 0; i < code.size(); ++i) {
        const ParsedInstruction& instruction = code[i];
        const auto& sources = kernel.decoded->sources[i];
        Line line;
        if (settings.lineinfo) append(line.head, "%u ", sources.known() ? sources.lines[0].line : 0);
        append(line.head, "%04zx ", 16 * i);
        const RegisterOperands& registers = kernel.decoded->registers[i];
        append_registers(line.body, register_numbers(registers.written, settings.all_registers));
        line.body += instruction.opcode;
        for (const auto& modifier : instruction.modifiers) line.body += "." + modifier;
        line.body += " ";
        append_registers(line.body, register_numbers(registers.read, settings.all_registers));
        int32_t immediate = 0;
        for (const auto& operand : instruction.operands) {
            if (operand.kind == OperandKind::Immediate && !operand.is_float_text) {
                immediate = static_cast<int32_t>(operand.value);
            }
        }
        append(line.tail, "%d \n", immediate);
        line.memory = memory_use(instruction.opcode);
        lines.push_back(std::move(line));
    }
    return lines;
}

void append_addresses(std::string& text, const LaneAddresses& addresses, uint32_t mask, bool compressed) {
    std::vector<int> lanes;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lane_in(mask, lane)) lanes.push_back(lane);
    }
    if (!compressed || lanes.size() < 2) {
        append(text, "%d ", kListAll);
        for (const int lane : lanes) append(text, "0x%016" PRIx64 " ", addresses.at[lane]);
        return;
    }
    // A stride is for lanes that follow each other: the parser ends it at the first gap.
    const auto stride = static_cast<int64_t>(addresses.at[lanes[1]] - addresses.at[lanes[0]]);
    bool regular = stride == static_cast<int32_t>(stride);
    for (size_t i = 1; i < lanes.size(); ++i) {
        regular = regular && lanes[i] == lanes[i - 1] + 1 &&
                  static_cast<int64_t>(addresses.at[lanes[i]] - addresses.at[lanes[i - 1]]) == stride;
    }
    append(text, "%d 0x%" PRIx64 " ", regular ? kBaseStride : kBaseDelta, addresses.at[lanes[0]]);
    if (regular) {
        append(text, "%" PRId64 " ", stride);
        return;
    }
    for (size_t i = 1; i < lanes.size(); ++i) {
        append(text, "%" PRId64 " ", static_cast<int64_t>(addresses.at[lanes[i]] - addresses.at[lanes[i - 1]]));
    }
}

class Trace : public Instrument {
 public:
    explicit Trace(TraceSettings settings) : settings_(std::move(settings)) {
        std::error_code failed;
        fs::create_directories(settings_.folder, failed);
        if (!fs::is_directory(settings_.folder)) fail("trace: " + settings_.folder.string() + " is no folder");
        if (fs::exists(settings_.folder / kList)) {
            fail("trace: " + settings_.folder.string() + " holds traces already. Name a new folder");
        }
    }

    void begin_launch(const LaunchState& state, const LoadedKernel& kernel, const LaunchRequest& request) override {
        expected_.clear();
        if (request.sampled) {
            expected_ = request.sampled_blocks;
            std::sort(expected_.begin(), expected_.end());
            expected_.erase(std::unique(expected_.begin(), expected_.end()), expected_.end());
        } else {
            expected_.resize(static_cast<uint64_t>(state.grid[0]) * state.grid[1] * state.grid[2]);
            std::iota(expected_.begin(), expected_.end(), uint64_t{0});
        }
        const size_t total = expected_.size();
        if (settings_.blocks && settings_.blocks < total) expected_.resize(settings_.blocks);
        lines_ = make_lines(kernel, settings_);
        name_ = "kernel-" + std::to_string(kernels_.size() + 1) + ".traceg";
        stream_.open(settings_.folder / name_, std::ios::binary);
        stream_ << header(state, kernel);
        ready_.clear();
        written_ = 0;
    }

    std::unique_ptr<ThreadObserver> observe_thread() override { return std::make_unique<Writer>(*this); }

    void end_launch(const std::string& error) override {
        stream_.close();
        const bool whole = error.empty() && stream_ && written_ == expected_.size();
        if (!whole) {  // half a trace would pass for a whole one
            std::error_code ignored;
            fs::remove(settings_.folder / name_, ignored);
            if (error.empty()) fail("trace: " + name_ + " could not be written to " + settings_.folder.string());
            return;
        }
        std::ofstream(settings_.folder / kList, std::ios::app) << name_ << "\n";
        kernels_.push_back(name_);
    }

    std::string report() override {
        std::string json = "[";
        for (const auto& name : kernels_) json += (json.size() > 1 ? ", \"" : "\"") + name + "\"";
        return json + "]";
    }

 private:
    static constexpr const char* kList = "kernelslist.g";

    std::string header(const LaunchState& state, const LoadedKernel& kernel) const {
        std::string text = "-kernel name = " + kernel.decoded->name + "\n";
        append(text, "-kernel id = %zu\n", kernels_.size() + 1);
        const uint32_t* grid = state.grid;
        const uint64_t total = static_cast<uint64_t>(grid[0]) * grid[1] * grid[2];
        if (expected_.size() == total) {
            append(text, "-grid dim = (%u,%u,%u)\n", grid[0], grid[1], grid[2]);
        } else {
            // A simulator launches as many blocks as the grid says, and each must have a trace.
            append(text, "-grid dim = (%zu,1,1)\n", expected_.size());
            append(text, "-blocks of the grid = (%u,%u,%u)\n", grid[0], grid[1], grid[2]);
        }
        append(text, "-block dim = (%u,%u,%u)\n", state.block[0], state.block[1], state.block[2]);
        append(text, "-shmem = %u\n", state.static_shared_bytes + state.dynamic_shared_bytes);
        append(text, "-nregs = %u\n", kernel.image->registers);
        append(text, "-binary version = %d\n", kBinaryVersion);
        text += "-cuda stream id = 0\n";
        append(text, "-shmem base_addr = 0x%016" PRIx64 "\n", kSharedWindow);
        append(text, "-local mem base_addr = 0x%016" PRIx64 "\n", kLocalWindow);
        text += "-nvbit version = none, the emulated V100 of sm70_kernels\n";
        append(text, "-accelsim tracer version = %d\n", kTracerVersion);
        append(text, "-enable lineinfo = %d\n", settings_.lineinfo ? 1 : 0);
        return text +
               "\n#traces format = [line_num] PC mask dest_num [reg_dests] opcode src_num [reg_srcs] mem_width "
               "[adrrescompress?] [mem_addresses] immediate\n\n";
    }

    // Blocks end in any order and are written in the order of their numbers.
    void deliver(uint64_t block, std::string text) {
        const std::lock_guard<std::mutex> lock(mutex_);
        ready_[block] = std::move(text);
        for (auto next = ready_.begin(); next != ready_.end() && next->first == expected_[written_];
             next = ready_.erase(next)) {
            stream_ << next->second;
            ++written_;
            if (written_ == expected_.size()) break;
        }
        if (written_ == expected_.size()) ready_.clear();
    }

    class Writer : public ThreadObserver {
     public:
        explicit Writer(Trace& owner) : owner_(owner) {}

        void begin_block(Core& core) override {
            const auto& expected = owner_.expected_;
            recording_ = std::binary_search(expected.begin(), expected.end(), core.block->linear);
            warps_.assign(core.block->warps.size(), {});
            counts_.assign(core.block->warps.size(), 0);
        }

        void before(Core& core, const Instruction& instruction, uint32_t exec) override {
            if (!recording_ || core.pc >= owner_.lines_.size()) return;
            const Line& line = owner_.lines_[core.pc];
            std::string& text = warps_[core.warp->index];
            ++counts_[core.warp->index];
            text += line.head;
            append(text, "%08x ", exec);
            text += line.body;
            if (line.memory.space == MemorySpace::None) {
                text += "0 ";
            } else {
                const LaneAddresses addresses = form_addresses(core, instruction, line.memory.space);
                append(text, "%u ", static_cast<unsigned>(instruction.width));
                append_addresses(text, addresses, exec, owner_.settings_.compressed);
            }
            text += line.tail;
        }

        void end_block(Core& core) override {
            if (!recording_) return;
            const uint32_t* id = core.block->id;
            std::string text = "\n#BEGIN_TB\n\n";
            append(text, "thread block = %u,%u,%u\n", id[0], id[1], id[2]);
            for (size_t warp = 0; warp < warps_.size(); ++warp) {
                append(text, "\nwarp = %zu\ninsts = %" PRIu64 "\n", warp, counts_[warp]);
                text += warps_[warp];
            }
            owner_.deliver(core.block->linear, text + "\n#END_TB\n");
        }

     private:
        Trace& owner_;
        bool recording_ = false;
        std::vector<std::string> warps_;
        std::vector<uint64_t> counts_;
    };

    const TraceSettings settings_;
    std::vector<Line> lines_;
    std::vector<uint64_t> expected_;  // blocks that the file will hold, ascending
    std::vector<std::string> kernels_;
    std::string name_;
    std::ofstream stream_;
    std::mutex mutex_;
    std::map<uint64_t, std::string> ready_;
    size_t written_ = 0;
};

}  // namespace

std::unique_ptr<Instrument> make_trace(const std::string& options) {
    Options given("trace", options);
    TraceSettings settings;
    settings.folder = given.text("folder", "");
    if (settings.folder.empty()) fail("trace: option 'folder' is missing: where the files go");
    settings.blocks = given.number("blocks", 0);
    settings.all_registers = given.choice("registers", {"all", "first"}) == "all";
    settings.compressed = given.choice("addresses", {"compressed", "list"}) == "compressed";
    settings.lineinfo = given.choice("lineinfo", {"0", "1"}) == "1";
    given.finish();
    return std::make_unique<Trace>(std::move(settings));
}

}  // namespace sm70emu
