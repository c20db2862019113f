#include "instruments/timing/block_trace.h"

namespace sm70emu::timing {

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
