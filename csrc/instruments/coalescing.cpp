#include "instruments/coalescing.h"

#include <algorithm>

namespace sm70emu {
namespace {

constexpr uint32_t kBanks = 32;
constexpr uint32_t kBankBytes = 4;

uint32_t distinct(uint64_t* values, size_t count) {
    std::sort(values, values + count);
    return static_cast<uint32_t>(std::unique(values, values + count) - values);
}

// Whether every lane has the address of its partner, lane number ^ step; a partner that does not take part agrees.
bool is_paired(const LaneAddresses& addresses, uint32_t lanes, int step) {
    bool paired = true;
    for_each_lane(lanes, [&](int lane) {
        const int partner = lane ^ step;
        if (lane_in(lanes, partner) && addresses.at[partner] != addresses.at[lane]) paired = false;
    });
    return paired;
}

// Passes that lanes served together take: as many as the busiest bank has words to deliver. Lanes that want the
// same word share it, but for atomics, which each need the word to themselves.
uint32_t passes(const LaneAddresses& addresses, uint32_t lanes, uint32_t width, bool atomic) {
    uint64_t words[kLanes * 4];
    size_t count = 0;
    const uint32_t words_a_lane = std::max(1u, width / kBankBytes);
    for_each_lane(lanes, [&](int lane) {
        for (uint32_t i = 0; i < words_a_lane; ++i) words[count++] = addresses.at[lane] / kBankBytes + i;
    });
    if (!atomic) {
        // Most accesses are free of conflicts, which needs no sorting to see: each bank has one word to deliver.
        uint64_t of_bank[kBanks] = {};
        uint32_t asked_once = 0;
        bool conflict = false;
        for (size_t i = 0; i < count && !conflict; ++i) {
            const uint32_t bank = words[i] % kBanks;
            conflict = asked_once >> bank & 1 && of_bank[bank] != words[i];
            of_bank[bank] = words[i];
            asked_once |= 1u << bank;
        }
        if (!conflict) return 1;
        count = distinct(words, count);
    }
    uint32_t asked[kBanks] = {}, most = 0;
    for (size_t i = 0; i < count; ++i) most = std::max(most, ++asked[words[i] % kBanks]);
    return most;
}

}  // namespace

uint32_t blocks_touched(const LaneAddresses& addresses, uint32_t lanes, unsigned shift) {
    uint64_t blocks[kLanes];
    size_t count = 0;
    for_each_lane(lanes, [&](int lane) { blocks[count++] = addresses.at[lane] >> shift; });
    return distinct(blocks, count);
}

uint32_t ideal_sectors(const LaneAddresses& addresses, uint32_t lanes, uint32_t width) {
    uint64_t values[kLanes];
    size_t count = 0;
    for_each_lane(lanes, [&](int lane) { values[count++] = addresses.at[lane]; });
    const uint32_t bytes = distinct(values, count) * width;
    return (bytes + (1u << kSectorShift) - 1) >> kSectorShift;
}

void interleave_stack(LaneAddresses& addresses) {
    for (int lane = 0; lane < kLanes; ++lane) {
        const uint64_t offset = addresses.at[lane];
        addresses.at[lane] = (offset / 4 * kLanes + static_cast<uint64_t>(lane)) * 4 + offset % 4;
    }
}

Wavefronts shared_wavefronts(const LaneAddresses& addresses, uint32_t lanes, uint32_t width, AccessKind kind) {
    // The port moves one register per wavefront, 128 bytes: 64-bit accesses go by half-warps, 128-bit ones by
    // quarter-warps, even if lanes share addresses. Only a load whose active lanes all pair up, each with lane^1
    // or each with lane^2, serves twice as many lanes at a time, because it packs the registers that it returns
    // (G. Smith, NVIDIA developer forum, "Unexpected shared memory bank conflict", of compute capability 7.0 to 7.5).
    int group = width <= 4 ? kLanes : width == 8 ? kLanes / 2 : kLanes / 4;
    if (width > 4 && kind == AccessKind::Load && (is_paired(addresses, lanes, 1) || is_paired(addresses, lanes, 2))) {
        group *= 2;
    }
    Wavefronts wavefronts;
    for (int first = 0; first < kLanes; first += group) {
        const uint32_t of_group = lanes & (group == kLanes ? kAllLanes : ((1u << group) - 1) << first);
        if (!of_group) continue;
        wavefronts.taken += passes(addresses, of_group, width, kind == AccessKind::Atomic);
        ++wavefronts.without_conflicts;
    }
    return wavefronts;
}

}  // namespace sm70emu
