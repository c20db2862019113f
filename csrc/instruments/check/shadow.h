// What is known about the bytes of 32-bit words. A word has one shadow byte: bit i says that byte i is undefined, bit
// 4 + i that it is tainted, so that a clean word is 0 and both kinds move together. Registers, stack, shared and global
// memory all have it, and a register row's shadow is 32 bytes.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator/instruction.h"

namespace sm70emu::check {

using Shadow = uint8_t;
constexpr Shadow kUndefined = 0x0f, kTainted = 0xf0;

// The kinds, and where their four bits lie.
enum Kind : int { kUndefinedKind = 0, kTaintedKind = 4 };
constexpr Kind kKinds[] = {kUndefinedKind, kTaintedKind};

// Shadow of a row of 32 lanes.
struct alignas(32) Row {
    uint64_t words[4] = {};

    Shadow& operator[](int lane) { return reinterpret_cast<Shadow*>(words)[lane]; }
    Shadow operator[](int lane) const { return reinterpret_cast<const Shadow*>(words)[lane]; }
    bool clean() const { return !(words[0] | words[1] | words[2] | words[3]); }
    void fill(Shadow value) { std::memset(words, value, sizeof(words)); }
};

// Eight bytes, 0xff where the bit of an 8-bit mask is set.
struct LaneBytes {
    uint64_t of[256] = {};
    constexpr LaneBytes() {
        for (int mask = 0; mask < 256; ++mask) {
            for (int bit = 0; bit < 8; ++bit) {
                if (mask >> bit & 1) of[mask] |= uint64_t{0xff} << (8 * bit);
            }
        }
    }
};
inline constexpr LaneBytes kLaneBytes;

inline uint64_t lane_bytes(uint32_t lanes, int part) {
    return kLaneBytes.of[lanes >> (8 * part) & 0xff];
}

// Cleans the lanes of a row.
inline void clean_lanes(Row& row, uint32_t lanes) {
    if (lanes == kAllLanes) {
        row = {};
        return;
    }
    for (int part = 0; part < 4; ++part) row.words[part] &= ~lane_bytes(lanes, part);
}

// The 32-bit mask of four byte flags, and back: a byte with any bit is flagged.
inline uint32_t bits_of(uint32_t bytes) {
    return (bytes & 1 ? 0xffu : 0) | (bytes & 2 ? 0xff00u : 0) | (bytes & 4 ? 0xff0000u : 0) |
           (bytes & 8 ? 0xff000000u : 0);
}
inline uint32_t bytes_of(uint32_t bits) {
    return static_cast<uint32_t>((bits & 0xffu) != 0) | static_cast<uint32_t>((bits & 0xff00u) != 0) << 1 |
           static_cast<uint32_t>((bits & 0xff0000u) != 0) << 2 | static_cast<uint32_t>((bits & 0xff000000u) != 0) << 3;
}

// All bytes if any is flagged.
inline uint32_t whole(uint32_t bytes) {
    return bytes ? 0xfu : 0u;
}
// From the lowest flagged byte upward: what a carry may reach.
inline uint32_t carried(uint32_t bytes) {
    bytes |= bytes << 1;
    return (bytes | bytes << 2) & 0xf;
}

// Of one kind, the four bits of a shadow byte.
inline uint32_t of_kind(Shadow shadow, Kind kind) {
    return static_cast<uint32_t>(shadow) >> kind & 0xf;
}

}  // namespace sm70emu::check
