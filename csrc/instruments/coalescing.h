// What the load-store unit makes of a warp's addresses: sectors of global memory, wavefronts of shared memory.
#pragma once

#include <cstdint>

#include "instruments/memory_use.h"

namespace sm70emu {

constexpr unsigned kSectorShift = 5;  // 32 bytes: what the L2 cache and DRAM hand out
constexpr unsigned kLineShift = 7;    // 128 bytes: a line, one tag

// How many aligned blocks of 2^shift bytes the lanes touch. Accesses are aligned to their width, so none spans two.
uint32_t blocks_touched(const LaneAddresses& addresses, uint32_t lanes, unsigned shift);

// The fewest sectors that could hold the bytes the lanes touch; bytes that several lanes share count once.
uint32_t ideal_sectors(const LaneAddresses& addresses, uint32_t lanes, uint32_t width);

// Stack words of a warp lie lane by lane, so that lanes at one stack address touch consecutive words.
void interleave_stack(LaneAddresses& addresses);

struct Wavefronts {
    uint32_t taken = 0;
    uint32_t without_conflicts = 0;  // what these lanes and this width need at least
};

// Passes of a shared-memory access through the port of 32 banks of 4 bytes: what the statistics count and the cycle
// model's port takes.
Wavefronts shared_wavefronts(const LaneAddresses& addresses, uint32_t lanes, uint32_t width, AccessKind kind);

}  // namespace sm70emu
