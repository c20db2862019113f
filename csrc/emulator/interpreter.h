// The inner loop. An observer sees every instruction before and after it executes; with NoObserver nothing of that is
// left in the code. ObserverList (observer.h) is the one of a launch that is watched.
#pragma once

#include "emulator/machine.h"

namespace sm70emu {

struct NoObserver {
    static void begin_block(const Core&) {}
    static void end_block(const Core&) {}
    static void before(const Core&, const Instruction&, uint32_t) {}
    static void after(const Core&, const Instruction&, uint32_t) {}
    static bool enough() { return false; }
};

inline bool has_ready_group(const Warp& warp) {
    for (const auto& group : warp.groups) {
        if (group.state == GroupState::Ready) return true;
    }
    return false;
}

// Runs a warp until no group is ready, the warp has finished, or its slice of instructions is used up.
template <class Observer>
void run_warp(Core& core, Warp& warp, uint64_t slice, Observer& observer) {
    const Instruction* code = core.launch->kernel->instructions.data();
    core.warp = &warp;
    core.registers = warp.registers;
    core.bases[0] = warp.registers;
    core.predicates = warp.predicates;
    const uint64_t end = core.executed + slice;
    while (!warp.finished()) {
        release_waiting(warp);
        if (warp.groups.size() > 1) merge_ready(warp);
        size_t next = 0;
        while (next < warp.groups.size() && warp.groups[next].state != GroupState::Ready) ++next;
        if (next == warp.groups.size()) return;
        uint32_t pc = warp.groups[next].pc;
        core.active = warp.groups[next].mask;
        warp.groups.erase(warp.groups.begin() + static_cast<long>(next));
        core.signal = Signal::None;
        while (true) {
            const Instruction& instruction = code[pc];
            const uint32_t exec = core.active & core.predicate(instruction.guard);
            core.pc = pc;
            core.next_pc = pc + 1;
            observer.before(core, instruction, exec);
            if (exec) instruction.execute(core, instruction, exec);
            observer.after(core, instruction, exec);
            pc = core.next_pc;
            if (++core.executed >= end || core.signal != Signal::None) break;
        }
        if (core.signal == Signal::None) {
            // The slice is used up: the group goes first next time.
            warp.groups.insert(warp.groups.begin(), {core.active, pc, GroupState::Ready, 0, 0});
            return;
        }
        if (core.signal == Signal::Yield || core.signal == Signal::Reschedule) {
            warp.groups.push_back({core.active, pc, GroupState::Ready, 0, 0});
        }
        if (core.executed >= end) return;
    }
}

}  // namespace sm70emu
