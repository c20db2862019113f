#include "instruments/memory_use.h"

#include <string_view>
#include <unordered_map>

namespace sm70emu {

const char* space_name(Space space) {
    static constexpr const char* names[] = {"", "global", "shared", "local", "generic"};
    return names[int(space)];
}

MemoryUse memory_use(const std::string& opcode) {
    static const std::unordered_map<std::string_view, MemoryUse> uses = {
        {"LDG", {Space::Global, Access::Load}},     {"STG", {Space::Global, Access::Store}},
        {"ATOMG", {Space::Global, Access::Atomic}}, {"RED", {Space::Global, Access::Atomic}},
        {"LDS", {Space::Shared, Access::Load}},     {"STS", {Space::Shared, Access::Store}},
        {"ATOMS", {Space::Shared, Access::Atomic}}, {"LDL", {Space::Local, Access::Load}},
        {"STL", {Space::Local, Access::Store}},     {"LD", {Space::Generic, Access::Load}},
        {"ST", {Space::Generic, Access::Store}},    {"ATOM", {Space::Generic, Access::Atomic}},
    };
    const auto found = uses.find(opcode);
    return found == uses.end() ? MemoryUse{} : found->second;
}

LanesBySpace split_by_space(Space space, uint32_t exec, LaneAddresses& addresses) {
    LanesBySpace lanes;
    if (space == Space::Global) lanes.global = exec;
    if (space == Space::Shared) lanes.shared = exec;
    if (space == Space::Local) lanes.local = exec;
    if (space != Space::Generic) return lanes;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        uint64_t& address = addresses.at[lane];
        const uint32_t bit = 1u << lane;
        if (address - kSharedWindow < kWindowBytes) {
            address -= kSharedWindow;
            lanes.shared |= bit;
        } else if (address - kLocalWindow < kWindowBytes) {
            address -= kLocalWindow;
            lanes.local |= bit;
        } else {
            lanes.global |= bit;
        }
    }
    return lanes;
}

}  // namespace sm70emu
