// Flow of control: branches, calls, convergence barriers, block barriers.
#include <atomic>
#include <iterator>

#include "emulator/access.h"
#include "emulator/barrier.h"
#include "emulator/binder.h"
#include "emulator/machine.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace {

constexpr uint32_t kInstructionBytes = 16;

// The value of a row must be the same in all executing lanes.
void check_uniform(const uint32_t* row, uint32_t exec, const char* what) {
    const uint32_t value = row[__builtin_ctz(exec)];
    for_each_lane(exec, [&](int lane) {
        if (row[lane] != value) fail(std::string(what) + " differs between lanes");
    });
}

// --- branches

uint32_t instruction_index(const Core& core, int64_t byte_target) {
    const auto count = static_cast<int64_t>(core.launch->kernel->instructions.size());
    if (byte_target < 0 || byte_target % kInstructionBytes || byte_target / kInstructionBytes >= count) {
        fail("branch to " + hex(static_cast<uint64_t>(byte_target)) + ", which is not in the kernel");
    }
    return static_cast<uint32_t>(byte_target / kInstructionBytes);
}

// Lanes go where their own target says: one group per distinct target.
void branch_per_lane(Core& core, uint32_t exec, const int64_t* byte_targets) {
    while (exec) {
        const int64_t target = byte_targets[__builtin_ctz(exec)];
        uint32_t same = 0;
        for (int lane = 0; lane < kLanes; ++lane) {
            if (lane_in(exec, lane) && byte_targets[lane] == target) same |= 1u << lane;
        }
        const bool last = same == core.active;
        branch(core, same, instruction_index(core, target));
        exec &= ~same;
        if (last) return;
    }
}

void run_bra(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t taken = exec & core.predicate(in.p0);
    if (taken) branch(core, taken, static_cast<uint32_t>(in.offset));
}

// BRA.U is taken if all lanes take it, and by none otherwise: ptxas lets an ordinary branch on the same condition
// follow, for lanes that differ.
void run_bra_uniform(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t taken = exec & core.predicate(in.p0);
    if (taken == core.active) branch(core, taken, static_cast<uint32_t>(in.offset));
}

// BRA.CONV is taken if the warp is converged (all its live lanes are here), BRA.DIV if it is not.
template <bool Converged>
void run_bra_convergence(Core& core, const Instruction& in, uint32_t exec) {
    if ((core.active == core.warp->live) == Converged) branch(core, exec, static_cast<uint32_t>(in.offset));
}

void bind_bra(Binder& b) {
    const int kind = b.choose({"U", "CONV", "DIV"});
    if (b.next_is(OperandKind::Predicate)) b.out.p0 = b.predicate_source();
    const Operand& target = b.next(OperandKind::Label);
    b.out.offset = target.value / kInstructionBytes;
    const Handler handlers[] = {&run_bra, &run_bra_uniform, &run_bra_convergence<true>, &run_bra_convergence<false>};
    if (kind > 0 && b.out.p0.index != kPredicateTrue) b.refuse("BRA." + b.parsed.modifiers[0] + " with a predicate");
    b.handler(handlers[kind + 1]);
}

// BRX, and CALL or RET through a register: base plus the register's value.
void run_indirect(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    int64_t targets[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) targets[lane] = in.offset + static_cast<int32_t>(a[lane]);
    branch_per_lane(core, exec, targets);
}

void bind_brx(Binder& b) {
    b.out.a = b.bits(2);  // its upper word is the sign of the lower
    const Operand& displacement = b.next(OperandKind::Immediate);
    b.out.offset = static_cast<int64_t>(b.parsed.offset) + kInstructionBytes + displacement.value;
    b.handler(&run_indirect);
}

void bind_ret(Binder& b) {
    if (!b.take("REL") || !b.take("NODEC")) b.refuse("RET other than .REL.NODEC");
    b.out.a = b.bits(2);
    b.out.offset = b.next(OperandKind::Label).value;
    b.handler(&run_indirect);
}

// The only absolute calls in a linked kernel go to functions the driver provides: printf, assert, malloc.
void run_call_absolute(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    const int lane = __builtin_ctz(exec);
    core.fault_lane = lane;
    const uint64_t address = static_cast<uint64_t>(a[kLanes + lane]) << 32 | a[lane];
    for (const auto& external : core.launch->externals) {
        if (external.address == address) {
            fail("call of " + external.name + ", a function of the driver (a device assertion or printf)");
        }
    }
    fail("absolute call to " + hex(address));
}

void bind_call(Binder& b) {
    const bool absolute = b.take("ABS");
    if (!absolute && !b.take("REL")) b.refuse("CALL without .REL or .ABS");
    if (!b.take("NOINC")) b.refuse("CALL without .NOINC");
    if (absolute) {
        b.out.a = b.bits(2);
        b.handler(&run_call_absolute);
    } else if (b.next_is(OperandKind::Register)) {
        b.out.a = b.bits(2);
        b.out.offset = b.next(OperandKind::Label).value;
        b.handler(&run_indirect);
    } else {
        b.out.offset = b.next(OperandKind::Label).value / kInstructionBytes;
        b.handler(&run_bra);
    }
}

void run_exit(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t leaving = exec & core.predicate(in.p0);
    if (leaving) exit_lanes(core, leaving);
}
void bind_exit(Binder& b) {
    if (b.more()) b.out.p0 = b.predicate_source();
    b.handler(&run_exit);
}

void run_trap(Core&, const Instruction&, uint32_t) {
    fail("trap");
}
void bind_bpt(Binder& b) {
    if (!b.take("TRAP")) b.refuse("BPT other than .TRAP");
    b.small_immediate(255);
    b.handler(&run_trap);
}

void run_lepc(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* d = core.destination(in.destination);
    write_masked(d, exec, core.next_pc * kInstructionBytes);
    write_masked(d + kLanes, exec, 0);
}
void bind_lepc(Binder& b) {
    b.out.destination = b.destination(2);
    b.handler(&run_lepc);
}

// --- convergence barriers

uint8_t barrier_operand(Binder& b) {
    const Operand& operand = b.next(OperandKind::ConvergenceBarrier);
    b.plain(operand);
    if (operand.index < 0 || operand.index > 15) b.refuse("barrier '" + operand.text + "'");
    return static_cast<uint8_t>(operand.index);
}

void run_bssy(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* members = core.warp->convergence[in.mode];
    write_masked(members, exec, exec);
}
void bind_bssy(Binder& b) {
    b.out.mode = barrier_operand(b);
    b.next(OperandKind::Label);
    b.handler(&run_bssy);
}

void run_bsync(Core& core, const Instruction& in, uint32_t exec) {
    arrive_at_convergence(core, in.mode, exec);
}
void bind_bsync(Binder& b) {
    b.out.mode = barrier_operand(b);
    b.handler(&run_bsync);
}

// The executing lanes leave the barrier: whoever waits there no longer waits for them.
void run_break(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* members = core.warp->convergence[in.mode];
    const uint32_t leaving = exec & core.predicate(in.p0);
    uint32_t affected = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lane_in(leaving, lane)) affected |= members[lane];
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lane_in(affected, lane)) members[lane] &= ~leaving;
    }
    write_masked(members, leaving, 0);
}
void bind_break(Binder& b) {
    if (b.next_is(OperandKind::Predicate)) b.out.p0 = b.predicate_source();
    b.out.mode = barrier_operand(b);
    b.handler(&run_break);
}

void run_bmov_read(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* members = core.warp->convergence[in.mode];
    uint32_t* d = core.destination(in.destination);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        d[lane] = members[lane];
        if (in.immediate) members[lane] = 0;
    }
}
void run_bmov_write(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* members = core.warp->convergence[in.mode];
    const uint32_t* a = core.row(in.a);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lane_in(exec, lane)) members[lane] = a[lane];
    }
}
void bind_bmov(Binder& b) {
    if (!b.take("32")) b.refuse("BMOV other than .32");
    b.out.immediate = b.take("CLEAR");
    if (b.next_is(OperandKind::Register)) {
        b.out.destination = b.destination();
        b.out.mode = barrier_operand(b);
        b.handler(&run_bmov_read);
    } else {
        if (b.out.immediate) b.refuse("BMOV.CLEAR into a barrier");
        b.out.mode = barrier_operand(b);
        b.out.a = b.bits();
        b.handler(&run_bmov_write);
    }
}

void run_warpsync(Core& core, const Instruction& in, uint32_t exec) {
    arrive_at_warpsync(core, exec, core.row(in.a));
}
void bind_warpsync(Binder& b) {
    b.out.a = b.bits();
    b.handler(&run_warpsync);
}

void run_yield(Core& core, const Instruction&, uint32_t) {
    core.signal = Signal::Yield;
}
void bind_yield(Binder& b) {
    b.handler(&run_yield);
}
void bind_nanosleep(Binder& b) {
    b.take("WARP");
    b.bits();
    b.handler(&run_yield);
}

void run_nothing(Core&, const Instruction&, uint32_t) {}
void bind_nop(Binder& b) {
    b.handler(&run_nothing);
}
void bind_depbar(Binder& b) {
    b.take("LE");
    b.next(OperandKind::Special);
    b.small_immediate(63);
    b.handler(&run_nothing);
}
// Caches are not modelled: loads always see memory.
void bind_cctl(Binder& b) {
    if (!b.take("IVALL")) b.refuse("CCTL other than .IVALL");
    b.handler(&run_nothing);
}

void run_membar(Core&, const Instruction&, uint32_t) {
    std::atomic_thread_fence(std::memory_order_seq_cst);
}
void bind_membar(Binder& b) {
    b.require({"SC", "ALL"});
    b.require({"CTA", "GPU", "SYS", "VC"});
    b.handler(&run_membar);
}

// --- block barriers

void run_bar(Core& core, const Instruction& in, uint32_t exec) {
    check_uniform(core.row(in.a), exec, "barrier number");
    const BarrierArrival arrival = barrier_arrival(core, in, __builtin_ctz(exec));
    if (arrival.number > 15) fail("barrier number " + std::to_string(arrival.number));
    if (arrival.counted) {
        check_uniform(core.row(in.b), exec, "barrier thread count");
        if (arrival.threads == 0 || arrival.threads % kLanes) {
            fail("barrier thread count " + std::to_string(arrival.threads));
        }
    } else if (!arrival.waits) {
        fail("BAR.ARV without a thread count");
    }
    arrive_at_barrier(core, arrival, core.predicate(in.p0), exec);
}

Source barrier_number(Binder& b, uint32_t limit) {
    return b.next_is(OperandKind::Immediate) ? b.immediate_row(b.small_immediate(limit)) : b.bits();
}

void bind_bar(Binder& b) {
    const int kind = b.require({"SYNC", "RED", "ARV"});
    const int operation = kind == 1 ? 1 + b.require({"POPC", "AND", "OR"}) : 0;
    b.take("DEFER_BLOCKING");  // a hint to the warp scheduler
    b.out.a = barrier_number(b, 15);
    BarrierForm form;
    form.operation = static_cast<BarrierOperation>(operation);
    form.arrives_only = kind == 2;
    form.counted = b.more() && !b.next_is(OperandKind::Predicate);
    if (form.counted) b.out.b = barrier_number(b, 4096);
    form.packed = form.counted && b.out.a.space == 0 && b.out.b.space == 0;
    if (form.packed && b.out.a.row != b.out.b.row) b.refuse("barrier number and thread count in different registers");
    if (kind == 1) b.out.p0 = b.predicate_source();
    b.out.mode = form.mode();
    b.handler(&run_bar);
}

void run_b2r(Core& core, const Instruction& in, uint32_t exec) {
    write_masked(core.destination(in.destination), exec, core.warp->barrier_count);
    core.write_predicate(in.predicate0, core.warp->barrier_vote ? kAllLanes : 0, exec);
}
void bind_b2r(Binder& b) {
    if (!b.take("RESULT")) b.refuse("B2R other than .RESULT");
    b.out.destination = b.destination();
    if (b.more()) b.out.predicate0 = b.predicate_destination();
    b.handler(&run_b2r);
}

constexpr Opcode kOpcodes[] = {
    {"BRA", bind_bra},     {"BRX", bind_brx},     {"CALL", bind_call},           {"RET", bind_ret},
    {"EXIT", bind_exit},   {"BPT", bind_bpt},     {"LEPC", bind_lepc},           {"BSSY", bind_bssy},
    {"BSYNC", bind_bsync}, {"BREAK", bind_break}, {"BMOV", bind_bmov},           {"WARPSYNC", bind_warpsync},
    {"YIELD", bind_yield}, {"NOP", bind_nop},     {"NANOSLEEP", bind_nanosleep}, {"DEPBAR", bind_depbar},
    {"CCTL", bind_cctl},   {"ERRBAR", bind_nop},  {"MEMBAR", bind_membar},       {"BAR", bind_bar},
    {"B2R", bind_b2r},
};

}  // namespace

OpcodeFamily control_family() {
    return {kOpcodes, std::size(kOpcodes)};
}

}  // namespace sm70emu
