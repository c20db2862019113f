// Flow of control, barriers, and what lanes of a warp exchange: votes, shuffles, matches, predicates, special registers.
#include <atomic>
#include <iterator>

#include "access.h"
#include "binder.h"
#include "machine.h"
#include "opcodes.h"

namespace sm70emu {
namespace {

constexpr uint32_t kInstructionBytes = 16;

void write_masked(uint32_t* d, uint32_t exec, uint32_t value) {
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(exec, lane)) d[lane] = value;
}

/// The value of a row, which must be the same in all executing lanes.
uint32_t uniform_value(const uint32_t* row, uint32_t exec, const char* what) {
    const uint32_t value = row[__builtin_ctz(exec)];
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(exec, lane) && row[lane] != value) fail(std::string(what) + " differs between lanes");
    return value;
}

// --- branches

uint32_t instruction_index(const Core& core, int64_t byte_target) {
    const auto count = int64_t(core.launch->kernel->instructions.size());
    if (byte_target < 0 || byte_target % kInstructionBytes || byte_target / kInstructionBytes >= count)
        fail("branch to " + hex(uint64_t(byte_target)) + ", which is not in the kernel");
    return uint32_t(byte_target / kInstructionBytes);
}

/// Lanes go where their own target says: one group per distinct target.
void branch_per_lane(Core& core, uint32_t exec, const int64_t* byte_targets) {
    while (exec) {
        const int64_t target = byte_targets[__builtin_ctz(exec)];
        uint32_t same = 0;
        for (int lane = 0; lane < kLanes; ++lane)
            if (lane_in(exec, lane) && byte_targets[lane] == target) same |= 1u << lane;
        const bool last = same == core.active;
        branch(core, same, instruction_index(core, target));
        exec &= ~same;
        if (last) return;
    }
}

void run_bra(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t taken = exec & core.predicate(in.p0);
    if (taken) branch(core, taken, uint32_t(in.offset));
}

/// BRA.U: the executing lanes agree, and the compiler relies on it.
void run_bra_uniform(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t taken = exec & core.predicate(in.p0);
    if (taken && taken != core.active) fail("BRA.U with a condition that differs between lanes");
    if (taken) branch(core, taken, uint32_t(in.offset));
}

/// BRA.CONV is taken if the warp is converged (all its live lanes are here), BRA.DIV if it is not.
template <bool Converged>
void run_bra_convergence(Core& core, const Instruction& in, uint32_t exec) {
    if ((core.active == core.warp->live) == Converged) branch(core, exec, uint32_t(in.offset));
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

/// BRX, and CALL or RET through a register: base plus the register's value.
void run_indirect(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    int64_t targets[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) targets[lane] = in.offset + int32_t(a[lane]);
    branch_per_lane(core, exec, targets);
}

void bind_brx(Binder& b) {
    b.out.a = b.bits();
    const Operand& displacement = b.next(OperandKind::Immediate);
    b.out.offset = int64_t(b.parsed.offset) + kInstructionBytes + displacement.value;
    b.handler(&run_indirect);
}

void bind_ret(Binder& b) {
    if (!b.take("REL") || !b.take("NODEC")) b.refuse("RET other than .REL.NODEC");
    b.out.a = b.bits(2);
    b.out.offset = b.next(OperandKind::Label).value;
    b.handler(&run_indirect);
}

/// The only absolute calls in a linked kernel go to functions the driver provides: printf, assert, malloc.
void run_call_absolute(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    const int lane = __builtin_ctz(exec);
    core.fault_lane = lane;
    const uint64_t address = uint64_t(a[kLanes + lane]) << 32 | a[lane];
    for (const auto& external : core.launch->externals)
        if (external.address == address) fail("call of " + external.name + ", a function of the driver (a device assertion or printf)");
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

void run_exit(Core& core, const Instruction&, uint32_t exec) { exit_lanes(core, exec); }
void bind_exit(Binder& b) { b.handler(&run_exit); }

void run_trap(Core&, const Instruction&, uint32_t) { fail("trap"); }
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
    return uint8_t(operand.index);
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

void run_bsync(Core& core, const Instruction& in, uint32_t exec) { arrive_at_convergence(core, in.mode, exec); }
void bind_bsync(Binder& b) {
    b.out.mode = barrier_operand(b);
    b.handler(&run_bsync);
}

/// The executing lanes leave the barrier: whoever waits there no longer waits for them.
void run_break(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* members = core.warp->convergence[in.mode];
    const uint32_t leaving = exec & core.predicate(in.p0);
    uint32_t affected = 0;
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(leaving, lane)) affected |= members[lane];
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(affected, lane)) members[lane] &= ~leaving;
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
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(exec, lane)) members[lane] = a[lane];
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
    const uint32_t* a = core.row(in.a);
    uint32_t members = 0;
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(exec, lane)) members |= a[lane];
    arrive_at_warpsync(core, exec, members);
}
void bind_warpsync(Binder& b) {
    b.out.a = b.bits();
    b.handler(&run_warpsync);
}

void run_yield(Core& core, const Instruction&, uint32_t) { core.signal = Signal::Yield; }
void bind_yield(Binder& b) { b.handler(&run_yield); }
void bind_nanosleep(Binder& b) {
    b.take("WARP");
    b.bits();
    b.handler(&run_yield);
}

void run_nothing(Core&, const Instruction&, uint32_t) {}
void bind_nop(Binder& b) { b.handler(&run_nothing); }
void bind_depbar(Binder& b) {
    b.take("LE");
    b.next(OperandKind::Special);
    b.small_immediate(63);
    b.handler(&run_nothing);
}
/// Caches are not modelled: loads always see memory.
void bind_cctl(Binder& b) {
    if (!b.take("IVALL")) b.refuse("CCTL other than .IVALL");
    b.handler(&run_nothing);
}

void run_membar(Core&, const Instruction&, uint32_t) { std::atomic_thread_fence(std::memory_order_seq_cst); }
void bind_membar(Binder& b) {
    b.require({"SC", "ALL"});
    b.require({"CTA", "GPU", "SYS", "VC"});
    b.handler(&run_membar);
}

// --- block barriers

/// mode: operation | arrive only << 2 | has thread count << 3
void run_bar(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t index = uniform_value(core.row(in.a), exec, "barrier number");
    if (index > 15) fail("barrier number " + std::to_string(index));
    const bool counted = in.mode & 8, arrive_only = in.mode & 4;
    const uint32_t expected = counted ? uniform_value(core.row(in.b), exec, "barrier thread count") : 0;
    if (counted && (expected == 0 || expected % kLanes)) fail("barrier thread count " + std::to_string(expected));
    if (arrive_only && !counted) fail("BAR.ARV without a thread count");
    arrive_at_barrier(core, uint8_t(index), expected, BarrierOperation(in.mode & 3), core.predicate(in.p0), exec, !arrive_only);
}

Source barrier_number(Binder& b, uint32_t limit) {
    return b.next_is(OperandKind::Immediate) ? b.immediate_row(b.small_immediate(limit)) : b.bits();
}

void bind_bar(Binder& b) {
    const int kind = b.require({"SYNC", "RED", "ARV"});
    const int operation = kind == 1 ? 1 + b.require({"POPC", "AND", "OR"}) : 0;
    b.take("DEFER_BLOCKING");  // a hint to the warp scheduler
    b.out.a = barrier_number(b, 15);
    bool counted = false;
    if (b.more() && !b.next_is(OperandKind::Predicate)) {
        counted = true;
        b.out.b = barrier_number(b, 4096);
    }
    if (kind == 1) b.out.p0 = b.predicate_source();
    b.out.mode = uint8_t(operation | (kind == 2 ? 4 : 0) | (counted ? 8 : 0));
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

// --- exchange between lanes

void run_vote(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t votes = core.predicate(in.p0) & exec;
    const bool verdict = in.mode == 0 ? votes == exec : in.mode == 1 ? votes != 0 : votes == exec || votes == 0;
    write_masked(core.destination(in.destination), exec, votes);
    core.write_predicate(in.predicate0, verdict ? kAllLanes : 0, exec);
}
void bind_vote(Binder& b) {
    b.out.mode = uint8_t(b.require({"ALL", "ANY", "EQ"}));
    b.out.destination = b.next_is(OperandKind::Register) ? b.destination() : b.sink_row;
    b.out.predicate0 = b.predicate_destination();
    b.out.p0 = b.predicate_source();
    b.handler(&run_vote);
}

void run_match(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* a = core.row(in.a);
    uint32_t* d = core.destination(in.destination);
    uint32_t result[kLanes] = {};
    bool all_equal = true;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        for (int other = 0; other < kLanes; ++other) {
            if (!lane_in(exec, other)) continue;
            const bool equal = a[lane] == a[other] && (in.width == 4 || a[kLanes + lane] == a[kLanes + other]);
            if (equal) result[lane] |= 1u << other;
            else all_equal = false;
        }
    }
    for (int lane = 0; lane < kLanes; ++lane)
        if (lane_in(exec, lane)) d[lane] = in.mode == 0 ? result[lane] : all_equal ? exec : 0;
    core.write_predicate(in.predicate0, all_equal ? kAllLanes : 0, exec);
}
void bind_match(Binder& b) {
    b.out.mode = uint8_t(b.require({"ANY", "ALL"}));
    b.out.width = b.take("U64") ? 8 : 4;
    if (b.next_is(OperandKind::Predicate)) b.out.predicate0 = b.predicate_destination();
    b.out.destination = b.destination();
    b.out.a = b.bits(b.out.width / 4);
    b.handler(&run_match);
}

/// The rule of the PTX manual for shfl: c holds the clamp in bits 0-4 and the segment mask in bits 8-12.
template <int Mode>  // 0 IDX, 1 UP, 2 DOWN, 3 BFLY
void run_shfl(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
    uint32_t* d = core.destination(in.destination);
    uint32_t result[kLanes], in_range = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int segment = int(c[lane] >> 8 & 31), clamp = int(c[lane] & 31), amount = int(b[lane] & 31);
        const int first = lane & segment, last = first | (clamp & ~segment);
        const int from = Mode == 0 ? first | (amount & ~segment) : Mode == 1 ? lane - amount : Mode == 2 ? lane + amount : lane ^ amount;
        const bool valid = Mode == 1 ? from >= last : from <= last;
        result[lane] = a[valid ? from & 31 : lane];
        in_range |= uint32_t(valid) << lane;
    }
    if (exec == kAllLanes) {
        for (int lane = 0; lane < kLanes; ++lane) d[lane] = result[lane];
    } else {
        for (int lane = 0; lane < kLanes; ++lane)
            if (lane_in(exec, lane)) d[lane] = result[lane];
    }
    core.write_predicate(in.predicate0, in_range, exec);
}
void bind_shfl(Binder& b) {
    const int mode = b.require({"IDX", "UP", "DOWN", "BFLY"});
    b.out.predicate0 = b.predicate_destination();
    b.out.destination = b.destination();
    b.out.a = b.bits();
    b.out.b = b.next_is(OperandKind::Immediate) ? b.immediate_row(b.small_immediate(31)) : b.bits();
    b.out.c = b.next_is(OperandKind::Immediate) ? b.immediate_row(b.small_immediate(0x1fff)) : b.bits();
    const Handler handlers[] = {&run_shfl<0>, &run_shfl<1>, &run_shfl<2>, &run_shfl<3>};
    b.handler(handlers[mode]);
}

// --- predicates

uint32_t predicate_table(uint32_t table, uint32_t a, uint32_t b, uint32_t c) {
    uint32_t result = 0;
    for (int i = 0; i < 8; ++i)
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}
void run_plop3(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t a = core.predicate(in.p0), b = core.predicate(in.p1), c = core.predicate(in.p2);
    core.write_predicate(in.predicate0, predicate_table(in.immediate & 0xff, a, b, c), exec);
    core.write_predicate(in.predicate1, predicate_table(in.immediate >> 8, a, b, c), exec);
}
void bind_plop3(Binder& b) {
    if (!b.take("LUT")) b.refuse("PLOP3 without .LUT");
    b.out.predicate0 = b.predicate_destination();
    b.out.predicate1 = b.predicate_destination();
    b.out.p0 = b.predicate_source();
    b.out.p1 = b.predicate_source();
    b.out.p2 = b.predicate_source();
    const uint32_t first = b.small_immediate(255), second = b.small_immediate(255);
    b.out.immediate = first | second << 8;
    b.handler(&run_plop3);
}

void expect_predicate_file(Binder& b) {
    const Operand& operand = b.next(OperandKind::Special);
    if (operand.text != "PR") b.refuse("operand '" + operand.text + "'");
}

void run_p2r(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *mask = core.row(in.b);
    uint32_t* d = core.destination(in.destination);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        uint32_t bits = 0;
        for (int p = 0; p < 7; ++p) bits |= (core.predicates[p] >> lane & 1) << p;
        d[lane] = (a[lane] & ~mask[lane]) | (bits & mask[lane]);
    }
}
void bind_p2r(Binder& b) {
    b.out.destination = b.destination();
    expect_predicate_file(b);
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.handler(&run_p2r);
}

void run_r2p(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *mask = core.row(in.b);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        for (int p = 0; p < 7; ++p)
            if (mask[lane] >> p & 1) core.write_predicate(uint8_t(p), a[lane] >> p & 1 ? kAllLanes : 0, 1u << lane);
    }
}
void bind_r2p(Binder& b) {
    expect_predicate_file(b);
    b.out.a = b.bits();
    b.out.b = b.bits();
    b.handler(&run_r2p);
}

// --- special registers

enum class SpecialRegister : uint8_t {
    TidX, TidY, TidZ, CtaidX, CtaidY, CtaidZ, LaneId, EqMask, LtMask, LeMask, GtMask, GeMask, Clock, ClockHigh, Zero
};

constexpr std::pair<std::string_view, SpecialRegister> kSpecialRegisters[] = {
    {"SR_TID.X", SpecialRegister::TidX},      {"SR_TID.Y", SpecialRegister::TidY},      {"SR_TID.Z", SpecialRegister::TidZ},
    {"SR_CTAID.X", SpecialRegister::CtaidX},  {"SR_CTAID.Y", SpecialRegister::CtaidY},  {"SR_CTAID.Z", SpecialRegister::CtaidZ},
    {"SR_LANEID", SpecialRegister::LaneId},   {"SR_EQMASK", SpecialRegister::EqMask},
    {"SR_LTMASK", SpecialRegister::LtMask},   {"SR_LEMASK", SpecialRegister::LeMask},   {"SR_GTMASK", SpecialRegister::GtMask},
    {"SR_GEMASK", SpecialRegister::GeMask},   {"SR_CLOCKLO", SpecialRegister::Clock},   {"SR_CLOCKHI", SpecialRegister::ClockHigh},
    {"SRZ", SpecialRegister::Zero},
};

uint32_t special_value(const Core& core, SpecialRegister which, int lane) {
    const uint32_t self = 1u << lane;
    switch (which) {
        case SpecialRegister::TidX: return core.warp->thread_id[0][lane];
        case SpecialRegister::TidY: return core.warp->thread_id[1][lane];
        case SpecialRegister::TidZ: return core.warp->thread_id[2][lane];
        case SpecialRegister::CtaidX: return core.block->id[0];
        case SpecialRegister::CtaidY: return core.block->id[1];
        case SpecialRegister::CtaidZ: return core.block->id[2];
        case SpecialRegister::LaneId: return uint32_t(lane);
        case SpecialRegister::EqMask: return self;
        case SpecialRegister::LtMask: return self - 1;
        case SpecialRegister::LeMask: return self | (self - 1);
        case SpecialRegister::GtMask: return ~(self | (self - 1));
        case SpecialRegister::GeMask: return ~(self - 1);
        // Time is the number of warp instructions this worker has executed.
        case SpecialRegister::Clock: return uint32_t(core.executed);
        case SpecialRegister::ClockHigh: return uint32_t(core.executed >> 32);
        case SpecialRegister::Zero: break;
    }
    return 0;
}

void run_special(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* d = core.destination(in.destination);
    const auto which = SpecialRegister(in.mode);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        d[lane] = special_value(core, which, lane);
        if (in.width == 8) d[kLanes + lane] = which == SpecialRegister::Clock ? special_value(core, SpecialRegister::ClockHigh, lane) : 0;
    }
}

void bind_special(Binder& b, bool wide) {
    b.out.width = wide ? 8 : 4;
    b.out.destination = b.destination(wide ? 2 : 1);
    const Operand& name = b.next(OperandKind::Special);
    for (const auto& [text, which] : kSpecialRegisters) {
        if (name.text != text) continue;
        if (wide && which != SpecialRegister::Clock && which != SpecialRegister::Zero) b.refuse("64-bit read of " + name.text);
        b.out.mode = uint8_t(which);
        b.handler(&run_special);
        return;
    }
    b.refuse("special register " + name.text + " is not implemented");
}
void bind_s2r(Binder& b) { bind_special(b, false); }
void bind_cs2r(Binder& b) { bind_special(b, !b.take("32")); }

constexpr Opcode kOpcodes[] = {
    {"BRA", bind_bra},       {"BRX", bind_brx},           {"CALL", bind_call},     {"RET", bind_ret},     {"EXIT", bind_exit},
    {"BPT", bind_bpt},       {"LEPC", bind_lepc},         {"BSSY", bind_bssy},     {"BSYNC", bind_bsync}, {"BREAK", bind_break},
    {"BMOV", bind_bmov},     {"WARPSYNC", bind_warpsync}, {"YIELD", bind_yield},   {"NANOSLEEP", bind_nanosleep},
    {"NOP", bind_nop},       {"DEPBAR", bind_depbar},     {"CCTL", bind_cctl},     {"ERRBAR", bind_nop},  {"MEMBAR", bind_membar},
    {"BAR", bind_bar},       {"B2R", bind_b2r},           {"VOTE", bind_vote},     {"MATCH", bind_match}, {"SHFL", bind_shfl},
    {"PLOP3", bind_plop3},   {"P2R", bind_p2r},           {"R2P", bind_r2p},       {"S2R", bind_s2r},     {"CS2R", bind_cs2r},
};

}  // namespace

OpcodeFamily control_family() { return {kOpcodes, std::size(kOpcodes)}; }

}  // namespace sm70emu
