#include "instruments/statistics.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>
#include <utility>
#include <vector>

#include "emulator/error.h"
#include "emulator/run_launch.h"
#include "instruments/coalescing.h"
#include "instruments/json.h"
#include "instruments/liveness.h"
#include "instruments/memory_use.h"
#include "instruments/pipes.h"

namespace sm70emu {
namespace {

struct Counts {
    uint64_t warps = 0;      // times a warp issued it, predicated off or not
    uint64_t active = 0;     // lanes at its program counter
    uint64_t threads = 0;    // lanes that executed it: not predicated off
    uint64_t divergent = 0;  // branches after which lanes went different ways
    uint64_t requests = 0;   // memory accesses by at least one lane
    uint64_t bytes = 0;      // that lanes asked for
    uint64_t sectors = 0, ideal_sectors = 0;
    uint64_t wavefronts = 0, ideal_wavefronts = 0;

    static constexpr uint64_t Counts::* kFields[] = {
        &Counts::warps, &Counts::active,  &Counts::threads,       &Counts::divergent,  &Counts::requests,
        &Counts::bytes, &Counts::sectors, &Counts::ideal_sectors, &Counts::wavefronts, &Counts::ideal_wavefronts,
    };
    static constexpr const char* kNames[] = {
        "warps", "active",  "threads",       "divergent",  "requests",
        "bytes", "sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts",
    };
};

// What is known of an instruction before anything runs.
struct Facts {
    std::string opcode;
    PipeUse pipe;
    MemoryUse memory;
    uint32_t width = 0;  // bytes per lane
    uint32_t live = 0;
    bool is_branch = false;
};

struct Kernel {
    std::vector<std::string> texts;
    std::vector<SourceLocation> sources;
    std::vector<Facts> facts;
    std::vector<Counts> counts;
    uint32_t registers = 0;
    uint64_t launches = 0, blocks = 0, warps = 0;
    std::map<std::pair<uint64_t, uint32_t>, uint64_t> shapes;  // threads per block, dynamic shared bytes -> launches
};

bool is_branch(const std::string& opcode) {
    return opcode == "BRA" || opcode == "BRX" || opcode == "CALL" || opcode == "RET";
}

void fill(Kernel& kernel, const LoadedKernel& loaded) {
    const DecodedKernel& decoded = *loaded.decoded;
    const auto code = parse_section(*loaded.section);
    const auto live = live_registers(code, decoded.registers, control_flow(code, *loaded.section));
    kernel.registers = loaded.image->registers;
    kernel.texts.assign(decoded.texts.begin(), decoded.texts.begin() + static_cast<long>(code.size()));
    kernel.sources.assign(decoded.sources.begin(), decoded.sources.begin() + static_cast<long>(code.size()));
    kernel.counts.resize(code.size());
    for (size_t i = 0; i < code.size(); ++i) {
        kernel.facts.push_back({code[i].opcode, pipe_use(code[i]), memory_use(code[i].opcode),
                                decoded.instructions[i].width, live[i], is_branch(code[i].opcode)});
    }
}

void write_instruction(std::ostream& json, const Kernel& kernel, size_t i) {
    const Facts& facts = kernel.facts[i];
    json << "{\"text\": " << quoted(kernel.texts[i]) << ", \"opcode\": " << quoted(facts.opcode) << ", \"pipe\": \""
         << pipe_name(facts.pipe.pipe) << "\", \"pipe_cycles\": " << facts.pipe.cycles
         << ", \"live_registers\": " << facts.live;
    if (facts.memory.space != MemorySpace::None) {
        static constexpr const char* accesses[] = {"load", "store", "atomic"};
        json << ", \"space\": \"" << space_name(facts.memory.space) << "\", \"access\": \""
             << accesses[static_cast<int>(facts.memory.kind)] << "\", \"width\": " << facts.width;
    }
    if (facts.is_branch) json << ", \"is_branch\": true";
    if (kernel.sources[i].known()) {
        json << ", \"source\": [";
        const char* separator = "";
        for (const auto& line : kernel.sources[i].lines) {
            json << separator << "[" << quoted(line.file) << ", " << line.line << "]";
            separator = ", ";
        }
        json << "]";
    }
    for (size_t field = 0; field < std::size(Counts::kFields); ++field) {
        if (const uint64_t value = kernel.counts[i].*Counts::kFields[field]) {
            json << ", \"" << Counts::kNames[field] << "\": " << value;
        }
    }
    json << "}";
}

class Statistics : public Instrument {
 public:
    void begin_launch(const LaunchState&, const LoadedKernel& loaded, const LaunchRequest& request) override {
        Kernel& kernel = kernels_[loaded.decoded->name];
        if (kernel.counts.empty()) fill(kernel, loaded);
        if (!std::equal(kernel.texts.begin(), kernel.texts.end(), loaded.decoded->texts.begin())) {
            fail("statistics: two cubins have a kernel " + loaded.decoded->name +
                 "; use a set of instruments for each");
        }
        ++kernel.launches;
        const uint32_t* block = request.block;
        ++kernel.shapes[{static_cast<uint64_t>(block[0]) * block[1] * block[2], request.dynamic_shared_bytes}];
        current_ = &kernel;
    }

    std::unique_ptr<ThreadObserver> observe_thread() override { return std::make_unique<Counter>(*this); }

    std::string report() override {
        std::ostringstream json;
        json << "{";
        const char* kernel_separator = "";
        for (const auto& [name, kernel] : kernels_) {
            json << kernel_separator << quoted(name) << ": {\"registers\": " << kernel.registers
                 << ", \"launches\": " << kernel.launches << ", \"blocks\": " << kernel.blocks
                 << ", \"warps\": " << kernel.warps << ", \"shapes\": [";
            const char* separator = "";
            for (const auto& [shape, launches] : kernel.shapes) {
                json << separator << "[" << shape.first << ", " << shape.second << ", " << launches << "]";
                separator = ", ";
            }
            json << "], \"instructions\": [";
            for (size_t i = 0; i < kernel.facts.size(); ++i) {
                if (i) json << ", ";
                write_instruction(json, kernel, i);
            }
            json << "]}";
            kernel_separator = ", ";
        }
        json << "}";
        return json.str();
    }

 private:
    class Counter : public ThreadObserver {
     public:
        explicit Counter(Statistics& owner)
            : owner_(owner), facts_(owner.current_->facts), counts_(owner.current_->counts.size() + 1) {}
        ~Counter() override {
            const std::lock_guard<std::mutex> lock(owner_.mutex_);
            Kernel& kernel = *owner_.current_;
            kernel.blocks += blocks_;
            kernel.warps += warps_;
            for (size_t i = 0; i < kernel.counts.size(); ++i) {
                for (const auto field : Counts::kFields) kernel.counts[i].*field += counts_[i].*field;
            }
        }

        void begin_block(Core& core) override {
            ++blocks_;
            warps_ += core.block->warps.size();
        }

        void before(Core& core, const Instruction& instruction, uint32_t exec) override {
            if (core.pc >= facts_.size()) return;  // past the end: the emulator reports it
            Counts& counts = counts_[core.pc];
            ++counts.warps;
            counts.active += static_cast<uint64_t>(__builtin_popcount(core.active));
            counts.threads += static_cast<uint64_t>(__builtin_popcount(exec));
            active_ = core.active;
            const MemoryUse memory = facts_[core.pc].memory;
            if (memory.space != MemorySpace::None && exec) count_access(core, instruction, memory, exec, counts);
        }

        void after(Core& core, const Instruction&, uint32_t) override {
            // A branch that some lanes take and some do not leaves fewer in the running group.
            if (core.pc < facts_.size() && facts_[core.pc].is_branch && core.active != active_) {
                ++counts_[core.pc].divergent;
            }
        }

     private:
        static void count_access(const Core& core, const Instruction& instruction, MemoryUse memory, uint32_t exec,
                                 Counts& counts) {
            const uint32_t width = instruction.width;
            LaneAccess access = lane_access(core, instruction, memory.space, exec);
            LaneAddresses& addresses = access.addresses;
            ++counts.requests;
            counts.bytes += static_cast<uint64_t>(__builtin_popcount(exec)) * width;
            if (access.global) {
                counts.sectors += blocks_touched(addresses, access.global, kSectorShift);
                counts.ideal_sectors += ideal_sectors(addresses, access.global, width);
            }
            if (access.shared) {
                const Wavefronts wavefronts = shared_wavefronts(addresses, access.shared, width, memory.kind);
                counts.wavefronts += wavefronts.taken;
                counts.ideal_wavefronts += wavefronts.without_conflicts;
            }
            if (access.local) {
                interleave_stack(addresses);
                // A wide access touches this for each of its words.
                const uint32_t words = std::max(1u, width / 4);
                counts.sectors += words * blocks_touched(addresses, access.local, kSectorShift);
                counts.ideal_sectors += words * ideal_sectors(addresses, access.local, std::min(width, 4u));
            }
        }

        Statistics& owner_;
        const std::vector<Facts>& facts_;
        std::vector<Counts> counts_;
        uint64_t blocks_ = 0, warps_ = 0;
        uint32_t active_ = 0;
    };

    std::mutex mutex_;
    std::map<std::string, Kernel> kernels_;
    Kernel* current_ = nullptr;
};

}  // namespace

std::unique_ptr<Instrument> make_statistics(const std::string& options) {
    if (!options.empty()) fail("statistics takes no options, got '" + options + "'");
    return std::make_unique<Statistics>();
}

}  // namespace sm70emu
