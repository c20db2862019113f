// Three-input logic on partly bad bits: exact, as each bit is on its own.
#pragma once

#include <cstdint>

namespace sm70emu::check {

inline uint32_t lop3_bits(uint32_t table, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (int row = 0; row < 8; ++row) {
        if (table >> row & 1) result |= (row & 4 ? a : ~a) & (row & 2 ? b : ~b) & (row & 1 ? c : ~c);
    }
    return result;
}

// Bits of the result that change with the bad bits of the sources, the good ones being what they are.
struct LogicBits {
    uint32_t bad = 0, ones = ~0u;  // `ones`: set whatever the bad bits are
};
inline LogicBits logic(uint32_t table, const uint32_t (&values)[3], const uint32_t (&bad)[3]) {
    uint32_t any = 0, all = ~0u;
    for (int choice = 0; choice < 8; ++choice) {
        uint32_t source[3];
        for (int i = 0; i < 3; ++i) source[i] = (values[i] & ~bad[i]) | (choice >> i & 1 ? bad[i] : 0);
        const uint32_t result = lop3_bits(table, source[0], source[1], source[2]);
        any |= result;
        all &= result;
    }
    return {any & ~all, all};
}

}  // namespace sm70emu::check
