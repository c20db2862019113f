#include "instruments/check/check_observer.h"

#include <algorithm>
#include <utility>

#include "emulator/error.h"

namespace sm70emu::check {
namespace {

constexpr uint16_t kStackPointer = 1;

// The name of a decision in a report.
const char* decision_of(const Flow& flow) {
    if (flow.rule == Rule::Store) return "whether a store is done";
    if (flow.rule == Rule::Atomic) return "whether an atomic is done";
    if (flow.event == Event::Barrier) return "a barrier";
    if (flow.event == Event::Exit) return "whether the thread exits";
    return "a branch";
}

}  // namespace

CheckObserver::CheckObserver(const LaunchContext& context)
    : context_(context),
      enabled_(context.enabled),
      flows_(context.flows->data()),
      pages_(context.shadow),
      global_races_(context.races) {}

void CheckObserver::begin_block(Core& core) {
    const Block& block = *core.block;
    warps_.resize(block.warps.size());
    const Shadow initial = enabled_.shadow() ? kUndefined : 0;
    const Row undefined = [&] {
        Row row;
        row.fill(initial);
        return row;
    }();
    for (auto& warp : warps_) {
        warp.registers.assign(core.launch->kernel->register_rows, undefined);
        std::fill_n(warp.partial_rows, std::size(warp.partial_rows), uint64_t{0});
        warp.local.assign(block.local_bytes / 4, undefined);
        std::fill_n(warp.undefined, std::size(warp.undefined), 0u);
        std::fill_n(warp.tainted, std::size(warp.tainted), 0u);
        std::fill_n(warp.stack_pointer, kLanes, block.local_bytes);
        warp.awaited = warp.awaiting = warp.awaited_age = 0;
    }
    shared_.assign((block.shared_bytes + 3) / 4, initial);
    if (enabled_[Checker::SharedRace]) races_.begin_block(block);
    global_races_.begin_block(block.linear);
}

void CheckObserver::report(Core& core, int lane, Shadow shadow, const std::string& what, const MemoryRange& place) {
    if (shadow & kUndefined && enabled_[Checker::Uninitialised]) {
        context_.findings.add(core, Checker::Uninitialised, lane, "bytes that nothing has written " + what, place);
    }
    if (shadow & kTainted && enabled_[Checker::Taint]) {
        context_.findings.add(core, Checker::Taint, lane, "bytes that must not matter " + what, place);
    }
}

// `bad`: lanes whose guard depends on bad data, executing or not.
void CheckObserver::check_guard(Core& core, const Instruction& in, const Flow& flow, uint32_t bad) {
    if (!flow.decides) return;
    const int lane = __builtin_ctz(bad);
    const Shadow kinds = static_cast<Shadow>((warp_->undefined[in.guard.index] & bad ? kUndefined : 0) |
                                             (warp_->tainted[in.guard.index] & bad ? kTainted : 0));
    report(core, lane, kinds, std::string("decide ") + decision_of(flow));
}

// Sources of an instruction that leads to something that can be seen; addresses and stored data are checked elsewhere.
void CheckObserver::check_decision(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        Shadow bad = 0;
        for (int i = 0; i < flow.row_count; ++i) bad |= warp_->registers[flow.rows[i]][lane];
        for (const PredicateSource p : {in.p0, in.p1, in.p2}) {
            if (warp_->undefined[p.index] >> lane & 1) bad |= kUndefined;
            if (warp_->tainted[p.index] >> lane & 1) bad |= kTainted;
        }
        if (bad) report(core, lane, bad, std::string("decide ") + decision_of(flow));
    }
}

void CheckObserver::before_event(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    Warp& warp = *core.warp;
    if (flow.event == Event::Barrier) {
        if (enabled_[Checker::Barrier]) check_barrier(core, exec);
        if (!enabled_[Checker::SharedRace]) return;
        const BarrierArrival arrival = barrier_arrival(core, in, __builtin_ctz(exec));
        if (arrival.number <= 15) races_.arrive(warp, exec, arrival);
        return;
    }
    if (flow.event == Event::WarpMeeting && enabled_[Checker::SharedRace]) races_.meet(warp, exec);
    if (flow.event != Event::WarpSync) return;
    const uint32_t* rows = core.row(in.a);
    uint32_t members = 0, arrived = exec;
    for (uint32_t rest = exec; rest; rest &= rest - 1) members |= rows[__builtin_ctz(rest)];
    for (const auto& group : warp.groups) {
        if (group.state == GroupState::AtWarpSync) arrived |= group.mask;
    }
    const bool complete = (members & warp.live & ~arrived) == 0;
    if (complete && enabled_[Checker::SharedRace]) races_.meet(warp, members & arrived);
    warp_->awaited = complete ? 0 : members & warp.live;
    warp_->awaiting = arrived;
    warp_->awaited_age = 0;
}

// All live lanes of a warp come to a barrier together. Where the compiler is not sure of it, it puts a WARPSYNC before
// the barrier; lanes that were awaited there and left the kernel instead have missed the barrier.
void CheckObserver::check_barrier(Core& core, uint32_t exec) {
    constexpr uint32_t kBetween = 12;  // instructions from such a WARPSYNC to its barrier
    const bool awaited = exec & warp_->awaiting && warp_->awaited_age <= kBetween;
    const uint32_t missing = (core.warp->live | (awaited ? warp_->awaited : 0)) & ~exec;
    warp_->awaited = 0;
    if (!missing) return;
    context_.findings.add(core, Checker::Barrier, __builtin_ctz(exec),
                          "lanes " + hex(exec) + " of the warp arrive without lanes " + hex(missing));
}

void CheckObserver::tensor_core(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    if (exec != kAllLanes) return;  // refused when it executes
    if (warp_->sources_clean(in, flow, exec)) {
        warp_->clean_results(in, flow, exec);
        return;
    }
    const char* name = "the addend";
    uint32_t undefined = 0;
    for (const auto& [source, called] :
         {std::pair(in.a, "the first factor"), std::pair(in.b, "the second factor"), std::pair(in.c, "the addend")}) {
        const Row* rows = warp_->row(source);
        for (int lane = 0; lane < kLanes && !undefined; ++lane) {
            undefined |= static_cast<uint32_t>(((rows[0][lane] | rows[1][lane]) & kUndefined) != 0) << lane;
        }
        name = called;
        if (undefined) break;
    }
    propagate_tensor_core(*warp_, in);
    if (undefined) report(core, __builtin_ctz(undefined), kUndefined, std::string("enter a matrix product as ") + name);
}

void CheckObserver::before(Core& core, const Instruction& in, uint32_t exec) {
    const Flow& flow = flows_[core.pc];
    warp_ = &warps_[core.warp->index];
    if (warp_->awaited && core.active & warp_->awaiting) ++warp_->awaited_age;
    const uint32_t bad_guard = warp_->bad(in.guard) & core.active;
    if (bad_guard) check_guard(core, in, flow, bad_guard);
    if (exec) {
        if (flow.event != Event::None) before_event(core, in, flow, exec);
        switch (flow.rule) {
            case Rule::Load: load(core, in, flow, exec); break;
            case Rule::Store: store(core, in, flow, exec); break;
            case Rule::Atomic: atomic(core, in, flow, exec); break;
            case Rule::Decide:
                if (flow.decides && !warp_->sources_clean(in, flow, exec)) check_decision(core, in, flow, exec);
                break;
            case Rule::Fresh: warp_->clean_results(in, flow, exec); break;
            case Rule::TensorCore: tensor_core(core, in, flow, exec); break;
            case Rule::FromPredicates: propagate_from_predicates(*warp_, core, in, exec); break;
            case Rule::Shuffle:
                if (exec == kAllLanes && warp_->sources_clean(in, flow, exec)) {
                    warp_->clean_results(in, flow, exec);
                } else {
                    propagate_shuffle(*warp_, core, in, flow.shuffle, exec);
                }
                break;
            default:
                if (warp_->sources_clean(in, flow, exec)) {
                    warp_->clean_results(in, flow, exec);
                } else {
                    propagate(*warp_, core, in, flow, exec);
                }
        }
    }
    if (bad_guard && !flow.decides) {
        // Whether the result was written is as bad as the guard.
        for (const Kind kind : kKinds) {
            const uint32_t lanes = warp_->predicate(in.guard, kind) & bad_guard;
            for (uint32_t word = 0; word < flow.written; ++word) {
                Row value = warp_->registers[in.destination + word];
                for (uint32_t rest = lanes; rest; rest &= rest - 1) {
                    value[__builtin_ctz(rest)] |= static_cast<Shadow>(0xf << kind);
                }
                warp_->write(in.destination + word, kAllLanes, value);
            }
            warp_->set_predicate(in.predicate0, kind, kAllLanes, lanes);
            warp_->set_predicate(in.predicate1, kind, kAllLanes, lanes);
        }
    }
}

void CheckObserver::after(Core& core, const Instruction&, uint32_t exec) {
    const Flow& flow = flows_[core.pc];
    if (flow.moves_stack_pointer && exec) stack_pointer_moved(core, exec);
    if (enabled_[Checker::SharedRace] && (flow.event == Event::Barrier || flow.event == Event::Exit)) {
        races_.update_barriers(*core.block);
    }
}

// A frame that is entered or left holds nothing.
void CheckObserver::stack_pointer_moved(Core& core, uint32_t exec) {
    const uint32_t bytes = core.block->local_bytes;
    if (!bytes) return;  // R1 is a register like any other
    const uint32_t* values = core.registers + static_cast<size_t>(kStackPointer) * kLanes;
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint32_t now = values[lane], before = warp_->stack_pointer[lane];
        if (now > bytes) {
            if (enabled_[Checker::Stack]) {
                context_.findings.add(core, Checker::Stack, lane,
                                      "the stack pointer becomes " + hex(now) + ", a thread's stack has " +
                                          std::to_string(bytes) + " bytes");
            }
            continue;
        }
        warp_->stack_pointer[lane] = now;
        if (!enabled_.shadow()) continue;
        for (uint32_t word = (std::min(now, before) + 3) / 4; word < std::max(now, before) / 4; ++word) {
            warp_->local[word][lane] = kUndefined;
        }
    }
}

}  // namespace sm70emu::check
