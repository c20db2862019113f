#include <algorithm>

#include "instruments/timing/sm.h"

namespace sm70emu::timing {
namespace {

constexpr size_t kMaxBuckets = 480;

}  // namespace

Bucket& Timeline::at(double cycle) {
    auto index = static_cast<size_t>(cycle / width);
    while (index >= kMaxBuckets) {
        // Twice as wide, half as many.
        buckets.resize((buckets.size() + 1) / 2 * 2);
        for (size_t i = 0; i < buckets.size() / 2; ++i) {
            Bucket sum = buckets[2 * i];
            const Bucket& other = buckets[2 * i + 1];
            sum.issued += other.issued;
            for (size_t p = 0; p < sum.busy.size(); ++p) sum.busy[p] += other.busy[p];
            sum.dram_bytes += other.dram_bytes;
            buckets[i] = sum;
        }
        buckets.resize(buckets.size() / 2);
        width *= 2;
        index = static_cast<size_t>(cycle / width);
    }
    if (index >= buckets.size()) buckets.resize(index + 1);
    return buckets[index];
}

const char* stall_name(Stall stall) {
    static constexpr const char* names[kStalls] = {
        "selected",           "wait",           "long_scoreboard", "short_scoreboard", "tensor_scoreboard",
        "math_pipe_throttle", "mio_throttle",   "lg_throttle",     "barrier",          "membar",
        "branch_resolve",     "no_instruction", "dispatch_stall",  "not_selected"};
    return names[static_cast<int>(stall)];
}

}  // namespace sm70emu::timing
