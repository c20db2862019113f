// Global addresses as the model sees them: buffers at places that depend on nothing but their order, so that the same
// launch has the same cycles wherever the host put its memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "emulator/memory.h"

namespace sm70emu::timing {

// Set in the addresses of buffers that the launch before left in L2.
constexpr uint64_t kWarm = 1ull << 55;

class AddressMap {
 public:
    AddressMap() = default;
    // Buffers that overlap are one region. A region starts where CUDA's allocators would put it, at a multiple of 512
    // bytes, plus its own address modulo 64: torch gives CPU tensors that alignment.
    // `warm`: buffers that are in L2 when the launch starts.
    explicit AddressMap(const std::vector<GlobalBuffer>& buffers, const std::vector<GlobalBuffer>& warm = {}) {
        for (const auto& buffer : buffers) {
            if (buffer.bytes) regions_.push_back({buffer.address, buffer.address + buffer.bytes, 0, regions_.size()});
        }
        std::sort(regions_.begin(), regions_.end(), [](const Region& a, const Region& b) { return a.begin < b.begin; });
        std::vector<Region> merged;
        for (const auto& region : regions_) {
            if (!merged.empty() && region.begin < merged.back().end) {
                merged.back().end = std::max(merged.back().end, region.end);
                merged.back().order = std::min(merged.back().order, region.order);
            } else {
                merged.push_back(region);
            }
        }
        regions_ = std::move(merged);
        for (auto& region : regions_) {
            region.place = (static_cast<uint64_t>(region.order + 1) << 42) + region.begin % 64;
            for (const auto& buffer : warm) {
                if (region.begin >= buffer.address && region.end <= buffer.address + buffer.bytes) {
                    region.place |= kWarm;
                }
            }
        }
    }

    uint64_t operator()(uint64_t address) const {
        if (last_ >= regions_.size() || !regions_[last_].has(address)) {
            const auto after =
                std::upper_bound(regions_.begin(), regions_.end(), address,
                                 [](uint64_t value, const Region& region) { return value < region.begin; });
            if (after == regions_.begin() || !(after - 1)->has(address)) return address;
            last_ = static_cast<size_t>(after - 1 - regions_.begin());
        }
        return regions_[last_].place + (address - regions_[last_].begin);
    }

 private:
    struct Region {
        uint64_t begin, end, place;
        size_t order;  // of the launch's buffers
        bool has(uint64_t address) const { return address >= begin && address < end; }
    };
    std::vector<Region> regions_;
    mutable size_t last_ = 0;  // each observer has a map of its own
};

}  // namespace sm70emu::timing
