#include "instruments/timing/capture.h"

#include <algorithm>

#include "emulator/access.h"
#include "emulator/barrier.h"
#include "instruments/coalescing.h"

namespace sm70emu::timing {
namespace {

// Stack accesses of a warp lie lane by lane in memory of their own: lines above any host address.
uint64_t stack_line(const Core& core, uint64_t word) {
    return (1ull << 56) + ((core.block->linear * 64 + core.warp->index) << 24) + word * kLanes * 4;
}

class Capture : public ThreadObserver {
 public:
    Capture(const CapturePlan& plan, const Program& program, const AddressMap& addresses, Captured& captured)
        : plan_(plan), program_(program), place_(addresses), captured_(captured) {}
    ~Capture() override { hand_in_head(); }

    void begin_block(Core& core) override {
        hand_in_head();
        const uint64_t number = core.block->linear;
        whole_ = plan_.whole.count(number) > 0;
        head_ = number < plan_.heads;
        lengths_.assign(core.block->warps.size(), 0);
        live_ = core.block;
        if (whole_) {
            trace_ = {};
            trace_.block = number;
            trace_.warps.resize(core.block->warps.size());
        }
        if (head_) head_trace_ = {number, {}};
    }

    void before(Core& core, const Instruction& in, uint32_t exec) override {
        const uint32_t warp = core.warp->index;
        const uint64_t length = lengths_[warp]++;
        const bool record = whole_ && length < plan_.warp_limit;
        const bool head = head_ && length < plan_.head_length;
        if (!record && !head) return;
        if (record) trace_.warps[warp].steps.push_back(exec ? core.pc : core.pc | kSkipped);
        if (!exec) return;
        const ModelOperation& operation = program_[core.pc];
        switch (operation.path) {
            case Path::Shared: {
                if (!record) return;
                const LaneAddresses addresses = window_addresses(core, in);
                trace_.warps[warp].words.push_back(
                    shared_wavefronts(addresses, exec, in.width, operation.access_kind).taken);
                return;
            }
            case Path::GlobalLoad:
            case Path::GlobalStore:
            case Path::GlobalAtomic:
                touch(core, in, exec, operation, record, head, static_cast<uint32_t>(length));
                return;
            case Path::Barrier:
                if (record) trace_.warps[warp].words.push_back(barrier_word(core, in, exec));
                return;
            default: return;
        }
    }

    bool enough() override {
        if (whole_) return false;
        for (size_t w = 0; w < lengths_.size(); ++w) {
            if (lengths_[w] < plan_.head_length && !live_->warps[w].finished()) return false;
        }
        return true;
    }

    void end_block(Core&) override {
        if (!whole_) return;
        for (size_t w = 0; w < lengths_.size(); ++w) {
            trace_.warps[w].executed = lengths_[w];
            trace_.executed += lengths_[w];
            trace_.recorded += trace_.warps[w].steps.size();
        }
        const std::lock_guard<std::mutex> lock(captured_.mutex);
        captured_.blocks.push_back(std::move(trace_));
    }

 private:
    void touch(Core& core, const Instruction& in, uint32_t exec, const ModelOperation& operation, bool record,
               bool head, uint32_t order) {
        const TouchedLines touched = operation.local ? touched_stack(core, in, exec) : touched_global(core, in, exec);
        if (record) {
            auto& words = trace_.warps[core.warp->index].words;
            words.push_back(static_cast<uint64_t>(touched.count));
            for (const TouchedLine line : touched) words.push_back(line.word());
        }
        if (!head) return;
        for (const TouchedLine line : touched) {
            head_trace_.accesses.push_back({order, core.pc, line, operation.path != Path::GlobalLoad});
        }
    }

    // Words of one number lie together for all lanes.
    static TouchedLines touched_stack(const Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses = window_addresses(core, in);
        for_each_lane(exec, [&](int lane) {
            addresses.at[lane] = stack_line(core, addresses.at[lane] / 4) + static_cast<uint64_t>(lane) * 4;
        });
        return touched_lines(addresses, exec, 4);
    }

    // Generic addresses may mean shared memory or the stack: those count no lines.
    TouchedLines touched_global(const Core& core, const Instruction& in, uint32_t exec) const {
        LaneAddresses addresses = global_addresses(core, in);
        uint32_t global = 0;
        for_each_lane(exec, [&](int lane) {
            if (addresses.at[lane] - kSharedWindow < 2 * kSharedWindow) return;
            global |= 1u << lane;
            addresses.at[lane] = place_(addresses.at[lane]);
        });
        return touched_lines(addresses, global, in.width);
    }

    static uint64_t barrier_word(const Core& core, const Instruction& in, uint32_t exec) {
        const BarrierArrival arrival = barrier_arrival(core, in, __builtin_ctz(exec));
        BarrierStep step;
        step.number = arrival.number & 15;
        step.lanes = static_cast<uint32_t>(__builtin_popcount(exec));
        step.live_lanes = static_cast<uint32_t>(__builtin_popcount(core.warp->live));
        step.threads = arrival.threads;
        return step.word();
    }

    void hand_in_head() {
        if (!head_) return;
        head_ = false;
        const std::lock_guard<std::mutex> lock(captured_.mutex);
        captured_.heads.push_back(std::move(head_trace_));
    }

    const CapturePlan& plan_;
    const Program& program_;
    const AddressMap place_;
    Captured& captured_;
    bool whole_ = false, head_ = false;
    const Block* live_ = nullptr;
    std::vector<uint64_t> lengths_;  // instructions of each warp so far
    BlockTrace trace_;
    BlockHead head_trace_;
};

}  // namespace

void Captured::sort() {
    const auto by_block = [](const auto& a, const auto& b) { return a.block < b.block; };
    std::sort(blocks.begin(), blocks.end(), by_block);
    std::sort(heads.begin(), heads.end(), by_block);
}

std::unique_ptr<ThreadObserver> make_capture(const CapturePlan& plan, const Program& program,
                                             const AddressMap& addresses, Captured& captured) {
    return std::make_unique<Capture>(plan, program, addresses, captured);
}

}  // namespace sm70emu::timing
