#include "instruments/timing/capture.h"

#include <algorithm>

#include "emulator/access.h"
#include "instruments/coalescing.h"

namespace sm70emu::timing {
namespace {

/// Stack accesses of a warp lie lane by lane in memory of their own: lines above any host address.
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
        const Operation& operation = program_[core.pc];
        switch (operation.path) {
            case Path::Shared: {
                if (!record) return;
                LaneAddresses addresses;
                window_addresses(core, in, addresses);
                trace_.warps[warp].words.push_back(
                    shared_wavefronts(addresses, exec, in.width, operation.access).taken);
                return;
            }
            case Path::GlobalLoad:
            case Path::GlobalStore:
            case Path::GlobalAtomic: touch(core, in, exec, operation, record, head, uint32_t(length)); return;
            case Path::Barrier:
                if (record) trace_.warps[warp].words.push_back(barrier_word(core, in, exec));
                return;
            default: return;
        }
    }

    bool enough() override {
        if (whole_) return false;
        for (size_t w = 0; w < lengths_.size(); ++w)
            if (lengths_[w] < plan_.head_length && !live_->warps[w].finished()) return false;
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
    void touch(Core& core, const Instruction& in, uint32_t exec, const Operation& operation, bool record, bool head,
               uint32_t order) {
        LaneAddresses addresses;
        uint64_t lines[2 * kLanes];
        int count = 0;
        if (operation.local) {
            window_addresses(core, in, addresses);
            // Words of one number lie together for all lanes.
            for (uint32_t rest = exec; rest; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                addresses.at[lane] = stack_line(core, addresses.at[lane] / 4) + uint64_t(lane) * 4;
            }
            count = global_lines(addresses.at, exec, 4, lines);
        } else {
            global_addresses(core, in, addresses);
            uint32_t global = 0;  // generic addresses may mean shared memory or the stack: taken as one line each
            for (uint32_t rest = exec; rest; rest &= rest - 1) {
                const int lane = __builtin_ctz(rest);
                if (addresses.at[lane] - kSharedWindow < 2 * kSharedWindow) continue;
                global |= 1u << lane;
                addresses.at[lane] = place_(addresses.at[lane]);
            }
            count = global_lines(addresses.at, global, in.width, lines);
        }
        if (record) {
            auto& words = trace_.warps[core.warp->index].words;
            words.push_back(uint64_t(count));
            words.insert(words.end(), lines, lines + count);
        }
        if (head)
            for (int i = 0; i < count; ++i)
                head_trace_.accesses.push_back({order, core.pc, lines[i], operation.path != Path::GlobalLoad});
    }

    /// See Instruction::mode of BAR in control.cpp: 8 has a thread count, 16 number and count are in one register.
    static uint64_t barrier_word(const Core& core, const Instruction& in, uint32_t exec) {
        const int lane = __builtin_ctz(exec);
        const uint32_t value = core.row(in.a)[lane];
        uint64_t threads = in.mode & 8 ? core.row(in.b)[lane] : 0;
        if (in.mode & 16) threads = threads >> 16 & 0xfff;
        const uint64_t number = (in.mode & 16 ? value & 0xffff : value) & 15;
        return number | uint64_t(__builtin_popcount(exec)) << 8 | uint64_t(__builtin_popcount(core.warp->live)) << 16 |
               threads << 32;
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
