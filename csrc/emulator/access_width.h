// Widths of loads and stores, and how a value of each lies in the registers of one lane.
#pragma once

#include <cstdint>
#include <cstring>

#include "emulator/instruction.h"

namespace sm70emu {

enum AccessWidth : uint8_t { kU8, kS8, kU16, kS16, k32, k64, k128 };
constexpr uint8_t kAccessBytes[] = {1, 1, 2, 2, 4, 8, 16};

inline void load_lane(uint32_t* d, int lane, const uint8_t* p, AccessWidth kind) {
    switch (kind) {
        case kU8: d[lane] = *p; return;
        case kS8: d[lane] = static_cast<uint32_t>(static_cast<int32_t>(static_cast<int8_t>(*p))); return;
        case kU16:
        case kS16: {
            uint16_t half;
            std::memcpy(&half, p, sizeof(half));
            d[lane] = kind == kU16 ? half : static_cast<uint32_t>(static_cast<int32_t>(static_cast<int16_t>(half)));
            return;
        }
        case k32: std::memcpy(d + lane, p, 4); return;
        case k64:
            std::memcpy(d + lane, p, 4);
            std::memcpy(d + kLanes + lane, p + 4, 4);
            return;
        case k128:
            for (int word = 0; word < 4; ++word) std::memcpy(d + word * kLanes + lane, p + 4 * word, 4);
            return;
    }
}

inline void store_lane(const uint32_t* s, int lane, uint8_t* p, AccessWidth kind) {
    switch (kind) {
        case kU8:
        case kS8: *p = static_cast<uint8_t>(s[lane]); return;
        case kU16:
        case kS16: {
            const auto half = static_cast<uint16_t>(s[lane]);
            std::memcpy(p, &half, sizeof(half));
            return;
        }
        case k32: std::memcpy(p, s + lane, 4); return;
        case k64:
            std::memcpy(p, s + lane, 4);
            std::memcpy(p + 4, s + kLanes + lane, 4);
            return;
        case k128:
            for (int word = 0; word < 4; ++word) std::memcpy(p + 4 * word, s + word * kLanes + lane, 4);
            return;
    }
}

}  // namespace sm70emu
