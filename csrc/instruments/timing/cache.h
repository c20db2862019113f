// A cache of 128-byte lines with four sectors each, least recently used line replaced. Sets are chosen by a hash, as
// GPUs do, so that strides do not collide.
#pragma once

#include <cstdint>
#include <vector>

namespace sm70emu::timing {

struct CacheLine {
    uint64_t tag = ~uint64_t{0};
    uint64_t used = 0;
    double ready = 0;  // when its newest sectors have arrived
    uint8_t sectors = 0;
    uint8_t dirty = 0;
};

class Cache {
 public:
    Cache(double bytes, int ways) : ways_(ways) {
        uint64_t sets = 1;
        while (static_cast<double>(sets * 2) * ways * 128 <= bytes) sets *= 2;
        // Sizes that are no power of two get the ways that fill them.
        ways_ = bytes < 128 ? 0 : static_cast<int>(bytes / 128 / static_cast<double>(sets));
        mask_ = sets - 1;
        lines_.resize(static_cast<size_t>(sets) * static_cast<size_t>(ways_));
    }

    // The line with this tag, or the one that makes place for it, its sectors cleared. Null for a cache of size 0.
    CacheLine* find(uint64_t tag) {
        if (!ways_) return nullptr;
        uint64_t h = tag;
        h ^= h >> 33;
        h *= 0xff51afd7ed558ccdull;
        h ^= h >> 33;
        CacheLine* set = &lines_[static_cast<size_t>(h & mask_) * static_cast<size_t>(ways_)];
        CacheLine* oldest = set;
        for (int way = 0; way < ways_; ++way) {
            if (set[way].tag == tag) {
                set[way].used = ++clock_;
                return &set[way];
            }
            if (set[way].used < oldest->used) oldest = &set[way];
        }
        *oldest = CacheLine{};
        oldest->tag = tag;
        oldest->used = ++clock_;
        return oldest;
    }

 private:
    int ways_;
    uint64_t mask_ = 0, clock_ = 0;
    std::vector<CacheLine> lines_;
};

}  // namespace sm70emu::timing
