#include "emulator/memory.h"

#include <algorithm>

#include "emulator/error.h"

namespace sm70emu {

void GlobalMemory::add(GlobalBuffer buffer) {
    if (buffer.bytes == 0) return;
    if (buffer.address + buffer.bytes < buffer.address) {
        fail("buffer " + buffer.name + " wraps around the address space");
    }
    longest_ = std::max(longest_, buffer.bytes);
    buffers_.push_back(std::move(buffer));
}

void GlobalMemory::seal() {
    std::stable_sort(buffers_.begin(), buffers_.end(),
                     [](const auto& a, const auto& b) { return a.address < b.address; });
}

const GlobalBuffer* GlobalMemory::find(uint64_t address, uint64_t bytes, AccessKind kind) const {
    // Views may overlap, so walk back from the last buffer that starts at or before the address.
    auto at = std::upper_bound(buffers_.begin(), buffers_.end(), address,
                               [](uint64_t value, const GlobalBuffer& b) { return value < b.address; });
    while (at != buffers_.begin()) {
        --at;
        const uint64_t into = address - at->address;
        if (into >= longest_) break;
        if (into < at->bytes && bytes <= at->bytes - into && at->allows(kind)) return &*at;
    }
    return nullptr;
}

std::string GlobalMemory::explain(uint64_t address, uint64_t bytes, AccessKind kind) const {
    const bool writes = kind != AccessKind::Load;
    const std::string what =
        std::string(writes ? "write" : "read") + " of " + std::to_string(bytes) + " bytes at " + hex(address);
    if (writes) {
        if (const GlobalBuffer* buffer = find(address, bytes, AccessKind::Load)) {
            return what + ": buffer '" + buffer->name + "' (offset " + std::to_string(address - buffer->address) +
                   ") is read-only";
        }
    }
    const GlobalBuffer* nearest = nullptr;
    uint64_t distance = ~uint64_t{0};
    for (const auto& buffer : buffers_) {
        const uint64_t end = buffer.address + buffer.bytes;
        const uint64_t gap = address < buffer.address ? buffer.address - address
                             : address >= end         ? address - end + 1
                                                      : 0;
        if (gap < distance) {
            distance = gap;
            nearest = &buffer;
        }
    }
    if (!nearest) return what + ": out of bounds, the launch has no buffers";
    const int64_t into = static_cast<int64_t>(address - nearest->address);
    return what + ": out of bounds; nearest buffer '" + nearest->name + "' has " + std::to_string(nearest->bytes) +
           " bytes, the access is at its offset " + std::to_string(into);
}

}  // namespace sm70emu
