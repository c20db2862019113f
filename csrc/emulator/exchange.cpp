// What lanes of a warp exchange or read about themselves: votes, shuffles, matches, predicates, special registers.
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "emulator/access.h"
#include "emulator/binder.h"
#include "emulator/machine.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace {

// --- exchange between lanes

void run_vote(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t votes = core.predicate(in.p0) & exec;
    const bool verdict = in.mode == 0 ? votes == exec : in.mode == 1 ? votes != 0 : votes == exec || votes == 0;
    write_masked(core.destination(in.destination), exec, votes);
    core.write_predicate(in.predicate0, verdict ? kAllLanes : 0, exec);
}
void bind_vote(Binder& b) {
    b.out.mode = static_cast<uint8_t>(b.require({"ALL", "ANY", "EQ"}));
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
            if (equal) {
                result[lane] |= 1u << other;
            } else {
                all_equal = false;
            }
        }
    }
    for (int lane = 0; lane < kLanes; ++lane) {
        if (lane_in(exec, lane)) d[lane] = in.mode == 0 ? result[lane] : all_equal ? exec : 0;
    }
    core.write_predicate(in.predicate0, all_equal ? kAllLanes : 0, exec);
}
void bind_match(Binder& b) {
    b.out.mode = static_cast<uint8_t>(b.require({"ANY", "ALL"}));
    b.out.width = b.take("U64") ? 8 : 4;
    if (b.next_is(OperandKind::Predicate)) b.out.predicate0 = b.predicate_destination();
    b.out.destination = b.destination();
    b.out.a = b.bits(b.out.width / 4);
    b.handler(&run_match);
}

// The rule of the PTX manual for shfl: c holds the clamp in bits 0-4 and the segment mask in bits 8-12.
template <int Mode>  // 0 IDX, 1 UP, 2 DOWN, 3 BFLY
void run_shfl(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *b = core.row(in.b), *c = core.row(in.c);
    uint32_t* d = core.destination(in.destination);
    uint32_t result[kLanes], in_range = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        const int segment = static_cast<int>(c[lane] >> 8 & 31), clamp = static_cast<int>(c[lane] & 31),
                  amount = static_cast<int>(b[lane] & 31);
        const int first = lane & segment, last = first | (clamp & ~segment);
        const int from = Mode == 0   ? first | (amount & ~segment)
                         : Mode == 1 ? lane - amount
                         : Mode == 2 ? lane + amount
                                     : lane ^ amount;
        const bool valid = Mode == 1 ? from >= last : from <= last;
        result[lane] = a[valid ? from & 31 : lane];
        in_range |= static_cast<uint32_t>(valid) << lane;
    }
    if (exec == kAllLanes) {
        for (int lane = 0; lane < kLanes; ++lane) d[lane] = result[lane];
    } else {
        for (int lane = 0; lane < kLanes; ++lane) {
            if (lane_in(exec, lane)) d[lane] = result[lane];
        }
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
    for (int i = 0; i < 8; ++i) {
        if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    }
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

// mode: the byte of the register that is read.
void run_r2p(Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t *a = core.row(in.a), *mask = core.row(in.b);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        const uint32_t bits = a[lane] >> (8 * in.mode);
        for (int p = 0; p < 7; ++p) {
            if (mask[lane] >> p & 1) {
                core.write_predicate(static_cast<uint8_t>(p), bits >> p & 1 ? kAllLanes : 0, 1u << lane);
            }
        }
    }
}
void bind_r2p(Binder& b) {
    expect_predicate_file(b);
    const Operand& operand = b.next(OperandKind::Register);
    auto suffixes = operand.suffixes;
    for (uint8_t byte = 0; byte < 4; ++byte) {
        if (Binder::take_suffix(suffixes, "B" + std::to_string(byte))) b.out.mode = byte;
    }
    if (!suffixes.empty() || operand.negate || operand.absolute || operand.invert) {
        b.refuse("operand '" + operand.text + "'");
    }
    if (operand.index >= 0) {
        b.out.a.row = b.register_row(operand, 1);
        b.out.a.space = 0;
    }
    b.out.b = b.bits();
    b.handler(&run_r2p);
}

// --- special registers

enum class SpecialRegister : uint8_t {
    TidX,
    TidY,
    TidZ,
    CtaidX,
    CtaidY,
    CtaidZ,
    LaneId,
    EqMask,
    LtMask,
    LeMask,
    GtMask,
    GeMask,
    Clock,
    ClockHigh,
    Zero
};

constexpr std::pair<std::string_view, SpecialRegister> kSpecialRegisters[] = {
    {"SR_TID.X", SpecialRegister::TidX},     {"SR_TID.Y", SpecialRegister::TidY},
    {"SR_TID.Z", SpecialRegister::TidZ},     {"SR_CTAID.X", SpecialRegister::CtaidX},
    {"SR_CTAID.Y", SpecialRegister::CtaidY}, {"SR_CTAID.Z", SpecialRegister::CtaidZ},
    {"SR_LANEID", SpecialRegister::LaneId},  {"SR_EQMASK", SpecialRegister::EqMask},
    {"SR_LTMASK", SpecialRegister::LtMask},  {"SR_LEMASK", SpecialRegister::LeMask},
    {"SR_GTMASK", SpecialRegister::GtMask},  {"SR_GEMASK", SpecialRegister::GeMask},
    {"SR_CLOCKLO", SpecialRegister::Clock},  {"SR_CLOCKHI", SpecialRegister::ClockHigh},
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
        case SpecialRegister::LaneId: return static_cast<uint32_t>(lane);
        case SpecialRegister::EqMask: return self;
        case SpecialRegister::LtMask: return self - 1;
        case SpecialRegister::LeMask: return self | (self - 1);
        case SpecialRegister::GtMask: return ~(self | (self - 1));
        case SpecialRegister::GeMask: return ~(self - 1);
        // Time is the number of warp instructions this worker has executed.
        case SpecialRegister::Clock: return static_cast<uint32_t>(core.executed);
        case SpecialRegister::ClockHigh: return static_cast<uint32_t>(core.executed >> 32);
        case SpecialRegister::Zero: break;
    }
    return 0;
}

void run_special(Core& core, const Instruction& in, uint32_t exec) {
    uint32_t* d = core.destination(in.destination);
    const auto which = static_cast<SpecialRegister>(in.mode);
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        d[lane] = special_value(core, which, lane);
        if (in.width == 8) {
            d[kLanes + lane] =
                which == SpecialRegister::Clock ? special_value(core, SpecialRegister::ClockHigh, lane) : 0;
        }
    }
}

void bind_special(Binder& b, bool wide) {
    b.out.width = wide ? 8 : 4;
    b.out.destination = b.destination(wide ? 2 : 1);
    const Operand& name = b.next(OperandKind::Special);
    for (const auto& [text, which] : kSpecialRegisters) {
        if (name.text != text) continue;
        if (wide && which != SpecialRegister::Clock && which != SpecialRegister::Zero) {
            b.refuse("64-bit read of " + name.text);
        }
        b.out.mode = static_cast<uint8_t>(which);
        b.handler(&run_special);
        return;
    }
    b.refuse("special register " + name.text + " is not implemented");
}
void bind_s2r(Binder& b) {
    bind_special(b, false);
}
void bind_cs2r(Binder& b) {
    bind_special(b, !b.take("32"));
}

constexpr Opcode kOpcodes[] = {
    {"VOTE", bind_vote}, {"MATCH", bind_match}, {"SHFL", bind_shfl}, {"PLOP3", bind_plop3},
    {"P2R", bind_p2r},   {"R2P", bind_r2p},     {"S2R", bind_s2r},   {"CS2R", bind_cs2r},
};

}  // namespace

OpcodeFamily exchange_family() {
    return {kOpcodes, std::size(kOpcodes)};
}

}  // namespace sm70emu
