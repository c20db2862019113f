#include "instruments/execution_counts.h"

#include <map>
#include <mutex>
#include <sstream>
#include <vector>

#include "emulator/error.h"
#include "emulator/run_launch.h"
#include "instruments/json.h"

namespace sm70emu {
namespace {

struct Count {
    uint64_t warps = 0;  // times a warp issued it, predicated off or not
    uint64_t lanes = 0;  // lanes that executed it
};

struct KernelCounts {
    std::vector<std::string> texts;
    std::vector<Count> counts;  // by instruction
};

class ExecutionCounts : public Instrument {
 public:
    void begin_launch(const LaunchState&, const LoadedKernel& kernel, const LaunchRequest&) override {
        current_ = &kernels_[kernel.decoded->name];
        if (current_->counts.empty()) {
            current_->texts = kernel.decoded->texts;
            current_->counts.resize(kernel.decoded->instructions.size());
        }
        if (current_->texts != kernel.decoded->texts) {
            fail("execution_counts: two cubins have a kernel " + kernel.decoded->name + "; count each with its own");
        }
    }

    std::unique_ptr<ThreadObserver> observe_thread() override { return std::make_unique<Counter>(*this); }

    std::string report() override {
        std::ostringstream json;
        json << "{";
        const char* kernel_separator = "";
        for (const auto& [name, kernel] : kernels_) {
            json << kernel_separator << "\"" << name << "\": [";
            const char* separator = "";
            for (size_t i = 0; i + 1 < kernel.counts.size(); ++i) {  // the last is the emulator's own sentinel
                json << separator << "[" << quoted(kernel.texts[i]) << ", " << kernel.counts[i].warps << ", "
                     << kernel.counts[i].lanes << "]";
                separator = ", ";
            }
            json << "]";
            kernel_separator = ", ";
        }
        json << "}";
        return json.str();
    }

 private:
    class Counter : public ThreadObserver {
     public:
        explicit Counter(ExecutionCounts& owner) : owner_(owner), counts_(owner.current_->counts.size()) {}
        ~Counter() override {
            const std::lock_guard<std::mutex> lock(owner_.mutex_);
            for (size_t i = 0; i < counts_.size(); ++i) {
                owner_.current_->counts[i].warps += counts_[i].warps;
                owner_.current_->counts[i].lanes += counts_[i].lanes;
            }
        }
        // Before, so that an instruction that stops the launch counts too.
        void before(Core& core, const Instruction&, uint32_t exec) override {
            Count& count = counts_[core.pc];
            ++count.warps;
            count.lanes += static_cast<uint64_t>(__builtin_popcount(exec));
        }

     private:
        ExecutionCounts& owner_;
        std::vector<Count> counts_;
    };

    std::mutex mutex_;
    std::map<std::string, KernelCounts> kernels_;
    KernelCounts* current_ = nullptr;
};

}  // namespace

std::unique_ptr<Instrument> make_execution_counts(const std::string& options) {
    if (!options.empty()) fail("execution_counts takes no options, got '" + options + "'");
    return std::make_unique<ExecutionCounts>();
}

}  // namespace sm70emu
