#include "trace.h"

#include <algorithm>

namespace sm70emu::timing {
namespace {

constexpr int kBanks = 32;

/// Passes of one group of lanes: the most distinct words in one bank.
uint32_t passes(const uint64_t* addresses, uint32_t lanes, uint32_t width) {
    uint64_t words[kLanes * 4];
    int count = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        for (uint32_t word = 0; word < std::max(1u, width / 4); ++word) words[count++] = addresses[lane] / 4 + word;
    }
    if (!count) return 0;
    std::sort(words, words + count);
    const auto end = std::unique(words, words + count);
    uint8_t in_bank[kBanks] = {};
    uint8_t most = 0;
    for (auto* word = words; word != end; ++word) most = std::max(most, ++in_bank[*word % kBanks]);
    return most;
}

bool lanes_share(const uint64_t* addresses, uint32_t exec, int distance) {
    for (int lane = 0; lane < kLanes; ++lane)
        if (exec >> lane & 1 && (!(exec >> (lane ^ distance) & 1) || addresses[lane] != addresses[lane ^ distance]))
            return false;
    return true;
}

}  // namespace

uint32_t shared_wavefronts(const uint64_t* addresses, uint32_t exec, uint32_t width) {
    if (!exec) return 0;
    if (width <= 4) {
        // Consecutive words, the common case, take one.
        bool consecutive = exec == kAllLanes;
        for (int lane = 1; consecutive && lane < kLanes; ++lane)
            consecutive = addresses[lane] == addresses[0] + uint64_t(lane) * 4;
        return consecutive && addresses[0] % 4 == 0 ? 1 : passes(addresses, exec, width);
    }
    int group = width == 8 ? 16 : 8;
    if (lanes_share(addresses, exec, 1) || lanes_share(addresses, exec, 2)) group *= 2;
    const uint32_t lanes = group == 32 ? kAllLanes : (1u << group) - 1;
    uint32_t total = 0;
    for (int first = 0; first < kLanes; first += group) total += passes(addresses, exec & lanes << first, width);
    return total;
}

int global_lines(const uint64_t* addresses, uint32_t exec, uint32_t width, uint64_t* lines) {
    int count = 0;
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const uint64_t first = addresses[__builtin_ctz(rest)], last = first + width - 1;
        for (uint64_t sector = first / 32; sector <= last / 32; ++sector) {
            const uint64_t line = sector / 4, mask = 1ull << (sector & 3);
            // The line of the lane before, most often.
            int at = count - 1;
            while (at >= 0 && lines[at] >> 4 != line) --at;
            if (at < 0) lines[at = count++] = line << 4;
            lines[at] |= mask;
        }
    }
    return count;
}

}  // namespace sm70emu::timing
