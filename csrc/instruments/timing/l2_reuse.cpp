#include "instruments/timing/l2_reuse.h"

#include <algorithm>
#include <queue>

#include "instruments/timing/address_map.h"
#include "instruments/timing/cache.h"

namespace sm70emu::timing {
namespace {

constexpr int kL1Ways = 32, kL2Ways = 16;

}  // namespace

L2Reuse replay_heads(const std::vector<BlockHead>& heads, const Program& program, const Machine& machine,
                     double l1_bytes) {
    L2Reuse reuse;
    reuse.by_instruction.resize(program.size());
    Cache l2(machine.l2_bytes, kL2Ways);
    std::vector<Cache> l1(heads.size(), Cache(l1_bytes, kL1Ways));
    // A block's accesses are in the order in which its warps ran: sorted by each warp's own progress, blocks merge in
    // step.
    std::vector<std::vector<HeadAccess>> sorted;
    for (const auto& head : heads) {
        sorted.push_back(head.accesses);
        std::stable_sort(sorted.back().begin(), sorted.back().end(),
                         [](const HeadAccess& a, const HeadAccess& b) { return a.order < b.order; });
    }
    using Next = std::pair<uint32_t, size_t>;  // order, block
    std::priority_queue<Next, std::vector<Next>, std::greater<>> queue;
    std::vector<size_t> at(heads.size(), 0);
    for (size_t i = 0; i < sorted.size(); ++i) {
        if (!sorted[i].empty()) queue.push({sorted[i][0].order, i});
    }
    while (!queue.empty()) {
        const size_t block = queue.top().second;
        queue.pop();
        const HeadAccess& access = sorted[block][at[block]++];
        if (at[block] < sorted[block].size()) queue.push({sorted[block][at[block]].order, block});
        uint8_t sectors = access.line.sectors();
        const uint64_t tag = access.line.tag();
        if (!access.store && !program[access.pc].past_l1) {
            if (CacheLine* line = l1[block].find(tag)) {
                const uint8_t missing = sectors & static_cast<uint8_t>(~line->sectors);
                line->sectors |= sectors;
                sectors = missing;
            }
        }
        if (!sectors) continue;
        CacheLine* line = l2.find(tag);
        const bool warm = !access.store && (tag << 7 & kWarm);
        const uint8_t present = warm           ? 15
                                : access.store ? line->dirty
                                               : static_cast<uint8_t>(line->sectors | line->dirty);
        const uint8_t missing = sectors & static_cast<uint8_t>(~present);
        (access.store ? line->dirty : line->sectors) |= sectors;
        for (Traffic* traffic : {&reuse.by_instruction[access.pc], access.store ? &reuse.stores : &reuse.loads}) {
            traffic->sectors += static_cast<uint64_t>(__builtin_popcount(sectors));
            traffic->dram += static_cast<uint64_t>(__builtin_popcount(missing));
        }
    }
    return reuse;
}

}  // namespace sm70emu::timing
