// Lane loops and address checks shared by the families that are not vectorised. Checks: every lane's access is inside
// one buffer (or the block's shared memory, or the thread's stack), aligned to its width, and allowed to write if it
// does.
#pragma once

#include <cstdint>
#include <string>

#include "emulator/error.h"
#include "emulator/machine.h"

namespace sm70emu {

inline bool lane_in(uint32_t mask, int lane) {
    return mask >> lane & 1;
}

// Calls body(lane) for the lanes of a mask, in ascending order.
template <class Body>
void for_each_lane(uint32_t lanes, Body body) {
    for (; lanes; lanes &= lanes - 1) body(__builtin_ctz(lanes));
}

inline void write_masked(uint32_t* row, uint32_t exec, uint32_t value) {
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lane_in(exec, lane)) row[lane] = value;
    }
}

struct LaneAddresses {
    uint64_t at[kLanes];
};

// 64-bit base (two rows) plus displacement.
inline LaneAddresses global_addresses(const Core& core, const Instruction& in) {
    LaneAddresses addresses;
    const uint32_t* base = core.row(in.a);
    const auto displacement = static_cast<uint64_t>(in.offset);
    for (int lane = 0; lane < kLanes; ++lane) {
        addresses.at[lane] = (static_cast<uint64_t>(base[kLanes + lane]) << 32 | base[lane]) + displacement;
    }
    return addresses;
}

// 32-bit base, scaled, plus displacement; wraps like the machine's 32-bit adder.
inline LaneAddresses window_addresses(const Core& core, const Instruction& in) {
    LaneAddresses addresses;
    const uint32_t* base = core.row(in.a);
    const auto displacement = static_cast<uint32_t>(in.offset);
    for (int lane = 0; lane < kLanes; ++lane) {
        addresses.at[lane] = static_cast<uint32_t>((base[lane] << in.mode) + displacement);
    }
    return addresses;
}

[[noreturn]] inline void refuse_access(Core& core, int lane, const std::string& why) {
    core.fault_lane = lane;
    fail(why);
}

inline void check_alignment(Core& core, int lane, uint64_t address, uint32_t width, const char* space) {
    if (address & (width - 1)) {
        refuse_access(core, lane,
                      std::string("misaligned ") + std::to_string(width) + "-byte access to " + space + " memory at " +
                          hex(address));
    }
}

inline bool holds(const GlobalBuffer& buffer, uint64_t address, uint32_t width, AccessKind kind) {
    const uint64_t into = address - buffer.address;
    return into < buffer.bytes && buffer.bytes - into >= width && buffer.allows(kind);
}

// Host address of a global access by one lane.
inline uint8_t* global_pointer(Core& core, int lane, uint64_t address, uint32_t width, AccessKind kind) {
    check_alignment(core, lane, address, width, "global");
    const GlobalBuffer*& buffer = core.buffers[core.pc];
    if (!buffer || !holds(*buffer, address, width, kind)) {
        const GlobalBuffer* found = core.launch->memory.find(address, width, kind);
        if (!found) refuse_access(core, lane, core.launch->memory.explain(address, width, kind));
        buffer = found;
    }
    return reinterpret_cast<uint8_t*>(address);
}

inline uint8_t* shared_pointer(Core& core, int lane, uint64_t address, uint32_t width) {
    check_alignment(core, lane, address, width, "shared");
    if (address + width > core.block->shared_bytes) {
        refuse_access(core, lane,
                      "access of " + std::to_string(width) + " bytes at shared address " + hex(address) +
                          ": out of bounds, the block has " + std::to_string(core.block->shared_bytes) + " bytes");
    }
    return core.block->shared + address;
}

// Stack words of a warp lie lane by lane: word w of lane l is at [w][l].
inline uint32_t* local_word(Core& core, int lane, uint64_t address, uint32_t width) {
    check_alignment(core, lane, address, width, "local");
    if (address + width > core.block->local_bytes) {
        refuse_access(core, lane,
                      "access of " + std::to_string(width) + " bytes at stack address " + hex(address) +
                          ": out of bounds, a thread has " + std::to_string(core.block->local_bytes) + " bytes");
    }
    return reinterpret_cast<uint32_t*>(core.warp->local) + address / 4 * kLanes + lane;
}

// Whether all lanes lie in one buffer, aligned; then no lane needs a check of its own.
inline bool all_in_one_buffer(Core& core, const LaneAddresses& addresses, uint32_t width, AccessKind kind) {
    const GlobalBuffer*& buffer = core.buffers[core.pc];
    if (!buffer || !holds(*buffer, addresses.at[0], width, kind)) {
        const GlobalBuffer* found = core.launch->memory.find(addresses.at[0], width, kind);
        if (!found) return false;
        buffer = found;
    }
    const uint64_t base = buffer->address, last = buffer->bytes - width;
    uint64_t outside = 0, low_bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        const uint64_t into = addresses.at[lane] - base;
        outside |= (last - into) | into;  // the top bit shows a negative difference
        low_bits |= addresses.at[lane];
    }
    return !(outside >> 63) && !(low_bits & (width - 1));
}

}  // namespace sm70emu
