#include "instruments/memory_use.h"

#include <string_view>
#include <unordered_map>

namespace sm70emu {

const char* space_name(MemorySpace space) {
    static constexpr const char* names[] = {"", "global", "shared", "local", "generic", "constant"};
    return names[static_cast<int>(space)];
}

MemoryUse memory_use(const std::string& opcode) {
    static const std::unordered_map<std::string_view, MemoryUse> uses = {
        {"LDG", {MemorySpace::Global, AccessKind::Load}},     {"STG", {MemorySpace::Global, AccessKind::Store}},
        {"ATOMG", {MemorySpace::Global, AccessKind::Atomic}}, {"RED", {MemorySpace::Global, AccessKind::Atomic}},
        {"LDS", {MemorySpace::Shared, AccessKind::Load}},     {"STS", {MemorySpace::Shared, AccessKind::Store}},
        {"ATOMS", {MemorySpace::Shared, AccessKind::Atomic}}, {"LDL", {MemorySpace::Local, AccessKind::Load}},
        {"STL", {MemorySpace::Local, AccessKind::Store}},     {"LD", {MemorySpace::Generic, AccessKind::Load}},
        {"ST", {MemorySpace::Generic, AccessKind::Store}},    {"ATOM", {MemorySpace::Generic, AccessKind::Atomic}},
    };
    const auto found = uses.find(opcode);
    return found == uses.end() ? MemoryUse{} : found->second;
}

LaneAccess lane_access(const Core& core, const Instruction& in, MemorySpace space, uint32_t exec) {
    LaneAccess access;
    access.addresses = form_addresses(core, in, space);
    if (space == MemorySpace::Global) access.global = exec;
    if (space == MemorySpace::Shared) access.shared = exec;
    if (space == MemorySpace::Local) access.local = exec;
    if (space != MemorySpace::Generic) return access;
    for_each_lane(exec, [&](int lane) {
        uint64_t& address = access.addresses.at[lane];
        const uint32_t bit = 1u << lane;
        if (address - kSharedWindow < kWindowBytes) {
            address -= kSharedWindow;
            access.shared |= bit;
        } else if (address - kLocalWindow < kWindowBytes) {
            address -= kLocalWindow;
            access.local |= bit;
        } else {
            access.global |= bit;
        }
    });
    return access;
}

}  // namespace sm70emu
