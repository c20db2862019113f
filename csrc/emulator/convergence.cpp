// Independent thread scheduling. A warp is a list of groups; a group is a set of lanes at one program counter. Branches
// split groups, convergence points, WARPSYNC and meeting at one program counter join them.
#include "emulator/barrier.h"
#include "emulator/error.h"
#include "emulator/machine.h"

namespace sm70emu {
namespace {

uint32_t participants(const Warp& warp, uint8_t barrier, uint32_t lanes) {
    uint32_t members = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lanes >> lane & 1) members |= warp.convergence[barrier][lane];
    }
    return members & warp.live;
}

// The running group stops: exec waits in the given state, lanes not in exec go on after the instruction.
void park(Core& core, uint32_t exec, GroupState state, uint8_t barrier, uint32_t wait_mask) {
    Warp& warp = *core.warp;
    const uint32_t rest = core.active & ~exec;
    if (rest) warp.groups.push_back({rest, core.next_pc, GroupState::Ready, 0, 0});
    warp.groups.push_back({exec, core.next_pc, state, barrier, wait_mask});
    core.signal = Signal::Blocked;
}

uint32_t lanes_with(const uint32_t* masks, uint32_t mask) {
    uint32_t lanes = 0;
    for (int lane = 0; lane < kLanes; ++lane) lanes |= static_cast<uint32_t>(masks[lane] == mask) << lane;
    return lanes;
}

// Lanes that merged although they wait for different lanes are separated again: each waits only for its own mask.
void park_by_mask(Core& core, uint32_t exec, GroupState state, uint8_t barrier, const uint32_t* masks) {
    Warp& warp = *core.warp;
    const uint32_t rest = core.active & ~exec;
    if (rest) warp.groups.push_back({rest, core.next_pc, GroupState::Ready, 0, 0});
    while (exec) {
        const uint32_t mask = masks[__builtin_ctz(exec)], alike = exec & lanes_with(masks, mask);
        warp.groups.push_back({alike, core.next_pc, state, barrier, mask});
        exec &= ~alike;
    }
    core.signal = Signal::Blocked;
}

// Lanes that wait with the same mask meet, wherever each of them does: lanes of another mask, in another WARPSYNC,
// have nothing to do with them.
bool release_warpsync(Warp& warp) {
    bool released = false;
    for (auto& group : warp.groups) {
        if (group.state != GroupState::AtWarpSync) continue;
        const uint32_t members = group.wait_mask & warp.live;
        uint32_t arrived = 0;
        for (const auto& other : warp.groups) {
            if (other.state == GroupState::AtWarpSync && (other.wait_mask & warp.live) == members) {
                arrived |= other.mask;
            }
        }
        if (members & ~arrived) continue;
        for (auto& other : warp.groups) {
            if (other.state != GroupState::AtWarpSync || (other.wait_mask & warp.live) != members) continue;
            other.state = GroupState::Ready;
            released = true;
        }
    }
    return released;
}

// Lanes that wait at the group's convergence point, all of those that it waits for.
uint32_t arrived_with(const Warp& warp, const Group& group, uint32_t members) {
    uint32_t arrived = 0;
    for (const auto& other : warp.groups) {
        if (other.state == GroupState::AtConvergence && other.barrier == group.barrier && other.pc == group.pc &&
            (other.mask & ~members) == 0) {
            arrived |= other.mask;
        }
    }
    return arrived;
}

// `excused`: lanes that are not waited for.
bool release_convergence(Warp& warp, uint32_t excused) {
    for (size_t i = 0; i < warp.groups.size(); ++i) {
        const Group group = warp.groups[i];
        if (group.state != GroupState::AtConvergence) continue;
        const uint32_t members = participants(warp, group.barrier, group.mask) | group.mask;
        const uint32_t arrived = arrived_with(warp, group, members);
        if (members & ~arrived & ~excused) continue;
        std::vector<Group> kept;
        for (const auto& other : warp.groups) {
            if ((other.mask & arrived) == 0) kept.push_back(other);
        }
        kept.push_back({arrived, group.pc, GroupState::Ready, 0, 0});
        warp.groups.swap(kept);
        return true;
    }
    return false;
}

void complete_barrier(Block& block, uint8_t index) {
    BlockBarrier& barrier = block.barriers[index];
    const bool complete =
        barrier.expected ? barrier.contribution >= barrier.expected : barrier.waiting_lanes == block.live_lanes;
    if (!barrier.active || !complete) return;
    const bool vote =
        barrier.operation == BarrierOperation::And ? barrier.votes == barrier.waiting_lanes : barrier.votes != 0;
    for (auto& warp : block.warps) {
        for (auto& group : warp.groups) {
            if (group.state != GroupState::AtBarrier || group.barrier != index) continue;
            group.state = GroupState::Ready;
            if (barrier.operation != BarrierOperation::None) {
                warp.barrier_count = barrier.votes;
                warp.barrier_vote = vote;
            }
        }
    }
    const uint32_t generation = barrier.generation + 1;
    barrier = {};
    barrier.generation = generation;
}

}  // namespace

void branch(Core& core, uint32_t taken, uint32_t target) {
    const uint32_t rest = core.active & ~taken;
    if (rest == 0) {
        core.next_pc = target;
    } else {
        core.warp->groups.push_back({taken, target, GroupState::Ready, 0, 0});
        core.active = rest;
    }
    // A loop in one group must not starve the other groups.
    if (target > core.pc) return;
    for (const auto& group : core.warp->groups) {
        if (group.state == GroupState::Ready) core.signal = Signal::Reschedule;
    }
}

void arrive_at_convergence(Core& core, uint8_t barrier, uint32_t exec) {
    Warp& warp = *core.warp;
    const uint32_t* masks = warp.convergence[barrier];
    const uint32_t first = masks[__builtin_ctz(exec)];
    if ((exec & ~lanes_with(masks, first)) == 0) {
        if (exec == core.active && (first & warp.live & ~exec) == 0) return;
        park(core, exec, GroupState::AtConvergence, barrier, 0);
        return;
    }
    park_by_mask(core, exec, GroupState::AtConvergence, barrier, masks);
}

void arrive_at_warpsync(Core& core, uint32_t exec, const uint32_t* members) {
    const uint32_t first = members[__builtin_ctz(exec)];
    if ((exec & ~lanes_with(members, first)) == 0) {
        if (exec == core.active && (first & core.warp->live & ~exec) == 0) return;
        park(core, exec, GroupState::AtWarpSync, 0, first);
        return;
    }
    park_by_mask(core, exec, GroupState::AtWarpSync, 0, members);
}

void arrive_at_barrier(Core& core, const BarrierArrival& arrival, uint32_t votes, uint32_t exec) {
    const auto index = static_cast<uint8_t>(arrival.number);
    Block& block = *core.block;
    BlockBarrier& barrier = block.barriers[index];
    if (barrier.active &&
        (barrier.expected != arrival.threads || (arrival.waits && barrier.operation != arrival.operation))) {
        fail("barrier " + std::to_string(index) + " is used with different thread counts or operations at one time");
    }
    barrier.active = true;
    barrier.expected = arrival.threads;
    if (arrival.waits) barrier.operation = arrival.operation;
    // A warp that arrives whole counts as a full warp, so that a ragged last warp satisfies a multiple of 32.
    barrier.contribution += exec == core.warp->live ? kLanes : static_cast<uint32_t>(__builtin_popcount(exec));
    barrier.votes += static_cast<uint32_t>(__builtin_popcount(votes & exec));
    if (arrival.waits) {
        barrier.waiting_lanes += static_cast<uint32_t>(__builtin_popcount(exec));
        park(core, exec, GroupState::AtBarrier, index, 0);
    }
    complete_barrier(block, index);
}

void exit_lanes(Core& core, uint32_t exec) {
    Warp& warp = *core.warp;
    warp.live &= ~exec;
    core.block->live_lanes -= static_cast<uint32_t>(__builtin_popcount(exec));
    core.active &= ~exec;
    if (core.active == 0) core.signal = Signal::Exited;
    for (uint8_t i = 0; i < 16; ++i) {
        if (core.block->barriers[i].active && core.block->live_lanes) complete_barrier(*core.block, i);
    }
}

void merge_ready(Warp& warp) {
    for (size_t i = 0; i < warp.groups.size(); ++i) {
        if (warp.groups[i].state != GroupState::Ready) continue;
        for (size_t j = i + 1; j < warp.groups.size();) {
            if (warp.groups[j].state == GroupState::Ready && warp.groups[j].pc == warp.groups[i].pc) {
                warp.groups[i].mask |= warp.groups[j].mask;
                warp.groups.erase(warp.groups.begin() + static_cast<long>(j));
            } else {
                ++j;
            }
        }
    }
}

void release_waiting(Warp& warp) {
    bool waiting = false;
    for (const auto& group : warp.groups) {
        waiting |= group.state == GroupState::AtConvergence || group.state == GroupState::AtWarpSync;
    }
    if (!waiting) return;
    release_warpsync(warp);
    while (release_convergence(warp, 0)) {
    }
    // ptxas leaves a region without BREAK where a WARPSYNC comes next. Where nothing else can go on, lanes at BSYNC
    // that wait for none but lanes there, which most likely wait for them, go on without those.
    uint32_t at_warpsync = 0;
    for (const auto& group : warp.groups) {
        if (group.state == GroupState::Ready) return;
        if (group.state == GroupState::AtWarpSync) at_warpsync |= group.mask;
    }
    if (at_warpsync) release_convergence(warp, at_warpsync);
}

std::string describe_deadlock(const Block& block, const DecodedKernel& kernel) {
    std::string text = "deadlock: no thread of the block can go on";
    int reported = 0;
    for (const auto& warp : block.warps) {
        for (const auto& group : warp.groups) {
            if (++reported > 8) return text + "; ...";
            text += "; warp " + std::to_string(warp.index) + " lanes " + hex(group.mask) + " wait at +" +
                    hex(16ull * (group.pc - 1)) + " " + kernel.texts[group.pc - 1];
        }
    }
    return text;
}

}  // namespace sm70emu
