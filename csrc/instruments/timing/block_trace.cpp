#include "instruments/timing/block_trace.h"

namespace sm70emu::timing {

TouchedLines touched_lines(const LaneAddresses& addresses, uint32_t exec, uint32_t width) {
    TouchedLines touched;
    TouchedLine* lines = touched.lines;
    for_each_lane(exec, [&](int lane) {
        const uint64_t first = addresses.at[lane], last = first + width - 1;
        for (uint64_t sector = first / 32; sector <= last / 32; ++sector) {
            const uint64_t tag = sector / 4;
            // Most often it is the line of the lane before.
            int at = touched.count - 1;
            while (at >= 0 && lines[at].tag() != tag) --at;
            if (at < 0) {
                at = touched.count++;
                lines[at] = TouchedLine(tag, 0);
            }
            lines[at].touch(1u << (sector & 3));
        }
    });
    return touched;
}

}  // namespace sm70emu::timing
