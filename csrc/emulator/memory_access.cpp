// Loads and stores: global (LDG, STG), shared (LDS, STS), stack (LDL, STL), generic (LD, ST), constant (LDC).
#include <cstring>
#include <iterator>

#include "emulator/access.h"
#include "emulator/binder.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace {

enum AccessWidth : uint8_t { kU8, kS8, kU16, kS16, k32, k64, k128 };
constexpr uint8_t kBytes[] = {1, 1, 2, 2, 4, 8, 16};

void put_lane(uint32_t* d, int lane, const uint8_t* p, AccessWidth kind) {
    switch (kind) {
        case kU8: d[lane] = *p; return;
        case kS8: d[lane] = uint32_t(int32_t(int8_t(*p))); return;
        case kU16:
        case kS16: {
            uint16_t half;
            std::memcpy(&half, p, sizeof(half));
            d[lane] = kind == kU16 ? half : uint32_t(int32_t(int16_t(half)));
            return;
        }
        case k32: std::memcpy(d + lane, p, 4); return;
        case k64:
            std::memcpy(d + lane, p, 4);
            std::memcpy(d + kLanes + lane, p + 4, 4);
            return;
        case k128:
            for (int word = 0; word < 4; ++word) std::memcpy(d + word * kLanes + lane, p + 4 * word, 4);
            return;
    }
}

void get_lane(const uint32_t* s, int lane, uint8_t* p, AccessWidth kind) {
    switch (kind) {
        case kU8:
        case kS8: *p = uint8_t(s[lane]); return;
        case kU16:
        case kS16: {
            const auto half = uint16_t(s[lane]);
            std::memcpy(p, &half, sizeof(half));
            return;
        }
        case k32: std::memcpy(p, s + lane, 4); return;
        case k64:
            std::memcpy(p, s + lane, 4);
            std::memcpy(p + 4, s + kLanes + lane, 4);
            return;
        case k128:
            for (int word = 0; word < 4; ++word) std::memcpy(p + 4 * word, s + word * kLanes + lane, 4);
            return;
    }
}

template <int Kind>
constexpr uint32_t kWidth = kBytes[Kind];

template <class Body>
void each_executing(uint32_t exec, Body body) {
    for (uint32_t rest = exec; rest; rest &= rest - 1) body(__builtin_ctz(rest));
}

/// Consecutive words in lane order, the most common pattern.
bool is_contiguous(const LaneAddresses& addresses, uint32_t width) {
    uint64_t different = 0;
    for (int lane = 0; lane < kLanes; ++lane)
        different |= addresses.at[lane] - addresses.at[0] - uint64_t(lane) * width;
    return different == 0;
}

// --- global

template <int Kind>
struct GlobalLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = AccessWidth(Kind);
        constexpr uint32_t width = kWidth<Kind>;
        LaneAddresses addresses;
        global_addresses(core, in, addresses);
        uint32_t* d = core.destination(in.destination);
        if (exec == kAllLanes && all_in_one_buffer(core, addresses, width, false)) {
            if (kind == k32 && is_contiguous(addresses, width)) {
                std::memcpy(d, reinterpret_cast<const void*>(addresses.at[0]), 4 * kLanes);
                return;
            }
            for (int lane = 0; lane < kLanes; ++lane)
                put_lane(d, lane, reinterpret_cast<const uint8_t*>(addresses.at[lane]), kind);
            return;
        }
        each_executing(exec, [&](int lane) {
            put_lane(d, lane, global_pointer(core, lane, addresses.at[lane], width, false), kind);
        });
    }
};

template <int Kind>
struct GlobalStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = AccessWidth(Kind);
        constexpr uint32_t width = kWidth<Kind>;
        LaneAddresses addresses;
        global_addresses(core, in, addresses);
        const uint32_t* s = core.row(in.b);
        if (exec == kAllLanes && all_in_one_buffer(core, addresses, width, true)) {
            for (int lane = 0; lane < kLanes; ++lane)
                get_lane(s, lane, reinterpret_cast<uint8_t*>(addresses.at[lane]), kind);
            return;
        }
        each_executing(exec, [&](int lane) {
            get_lane(s, lane, global_pointer(core, lane, addresses.at[lane], width, true), kind);
        });
    }
};

// --- shared

bool all_in_shared(const Core& core, const LaneAddresses& addresses, uint32_t width) {
    if (core.block->shared_bytes < width) return false;
    const uint64_t last = core.block->shared_bytes - width;
    uint64_t outside = 0, low_bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        outside |= last - addresses.at[lane];
        low_bits |= addresses.at[lane];
    }
    return !(outside >> 63) && !(low_bits & (width - 1));
}

template <int Kind>
struct SharedLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = AccessWidth(Kind);
        LaneAddresses addresses;
        window_addresses(core, in, addresses);
        uint32_t* d = core.destination(in.destination);
        if (exec == kAllLanes && all_in_shared(core, addresses, kWidth<Kind>)) {
            const uint8_t* shared = core.block->shared;
            for (int lane = 0; lane < kLanes; ++lane) put_lane(d, lane, shared + addresses.at[lane], kind);
            return;
        }
        each_executing(exec, [&](int lane) {
            put_lane(d, lane, shared_pointer(core, lane, addresses.at[lane], kWidth<Kind>), kind);
        });
    }
};

template <int Kind>
struct SharedStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = AccessWidth(Kind);
        LaneAddresses addresses;
        window_addresses(core, in, addresses);
        const uint32_t* s = core.row(in.b);
        if (exec == kAllLanes && all_in_shared(core, addresses, kWidth<Kind>)) {
            uint8_t* shared = core.block->shared;
            for (int lane = 0; lane < kLanes; ++lane) get_lane(s, lane, shared + addresses.at[lane], kind);
            return;
        }
        each_executing(exec, [&](int lane) {
            get_lane(s, lane, shared_pointer(core, lane, addresses.at[lane], kWidth<Kind>), kind);
        });
    }
};

// --- stack

template <int Kind>
void load_local(Core& core, uint32_t* d, int lane, uint64_t address) {
    constexpr auto kind = AccessWidth(Kind);
    const uint32_t* word = local_word(core, lane, address, kWidth<Kind>);
    if constexpr (kWidth<Kind> < 4) {
        const uint32_t shifted = *word >> (8 * (address & 3));
        uint8_t bytes[4];
        std::memcpy(bytes, &shifted, sizeof(bytes));
        put_lane(d, lane, bytes, kind);
    } else {
        for (uint32_t i = 0; i < kWidth<Kind> / 4; ++i) d[i * kLanes + uint32_t(lane)] = word[i * kLanes];
    }
}

template <int Kind>
void store_local(Core& core, const uint32_t* s, int lane, uint64_t address) {
    uint32_t* word = local_word(core, lane, address, kWidth<Kind>);
    if constexpr (kWidth<Kind> < 4) {
        const uint32_t shift = 8 * (address & 3), field = (1u << (8 * kWidth<Kind>)) - 1;
        *word = (*word & ~(field << shift)) | (s[lane] & field) << shift;
    } else {
        for (uint32_t i = 0; i < kWidth<Kind> / 4; ++i) word[i * kLanes] = s[i * kLanes + uint32_t(lane)];
    }
}

template <int Kind>
struct LocalLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses;
        window_addresses(core, in, addresses);
        uint32_t* d = core.destination(in.destination);
        each_executing(exec, [&](int lane) { load_local<Kind>(core, d, lane, addresses.at[lane]); });
    }
};

template <int Kind>
struct LocalStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses;
        window_addresses(core, in, addresses);
        const uint32_t* s = core.row(in.b);
        each_executing(exec, [&](int lane) { store_local<Kind>(core, s, lane, addresses.at[lane]); });
    }
};

// --- generic: each lane's address says which memory it means

template <int Kind>
struct GenericLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses;
        global_addresses(core, in, addresses);
        uint32_t* d = core.destination(in.destination);
        each_executing(exec, [&](int lane) {
            const uint64_t address = addresses.at[lane];
            if (address - kSharedWindow < kWindowBytes)
                put_lane(d, lane, shared_pointer(core, lane, address - kSharedWindow, kWidth<Kind>), AccessWidth(Kind));
            else if (address - kLocalWindow < kWindowBytes)
                load_local<Kind>(core, d, lane, address - kLocalWindow);
            else
                put_lane(d, lane, global_pointer(core, lane, address, kWidth<Kind>, false), AccessWidth(Kind));
        });
    }
};

template <int Kind>
struct GenericStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses;
        global_addresses(core, in, addresses);
        const uint32_t* s = core.row(in.b);
        each_executing(exec, [&](int lane) {
            const uint64_t address = addresses.at[lane];
            if (address - kSharedWindow < kWindowBytes)
                get_lane(s, lane, shared_pointer(core, lane, address - kSharedWindow, kWidth<Kind>), AccessWidth(Kind));
            else if (address - kLocalWindow < kWindowBytes)
                store_local<Kind>(core, s, lane, address - kLocalWindow);
            else
                get_lane(s, lane, global_pointer(core, lane, address, kWidth<Kind>, true), AccessWidth(Kind));
        });
    }
};

// --- constant

template <int Kind>
struct ConstantLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses;
        const uint32_t* base = core.row(in.a);
        for (int lane = 0; lane < kLanes; ++lane) addresses.at[lane] = uint32_t(base[lane] + uint32_t(in.offset));
        const auto& bank = core.launch->banks[in.mode];
        uint32_t* d = core.destination(in.destination);
        each_executing(exec, [&](int lane) {
            const uint64_t address = addresses.at[lane];
            check_alignment(core, lane, address, kWidth<Kind>, "constant");
            if (address + kWidth<Kind> > bank.size())
                refuse_access(core, lane,
                              "read of constant bank " + std::to_string(in.mode) + " at " + hex(address) +
                                  ": out of bounds, it has " + std::to_string(bank.size()) + " bytes");
            put_lane(d, lane, bank.data() + address, AccessWidth(Kind));
        });
    }
};

// --- binding

AccessWidth take_width(Binder& b) {
    return AccessWidth(b.choose({"U8", "S8", "U16", "S16", "32", "64", "128"}, k32));
}

template <template <int> class Operation>
Handler for_width(AccessWidth kind) {
    static constexpr Handler handlers[] = {&Operation<0>::run, &Operation<1>::run, &Operation<2>::run,
                                           &Operation<3>::run, &Operation<4>::run, &Operation<5>::run,
                                           &Operation<6>::run};
    return handlers[kind];
}

/// Scopes, ordering and cache hints. Memory here is sequentially consistent, so none changes a result.
void take_global_hints(Binder& b) {
    if (!b.take("E")) b.refuse(b.parsed.opcode + " without .E");
    b.choose({"STRONG", "WEAK", "CONSTANT", "MMIO"});
    b.choose({"CTA", "SM", "GPU", "SYS"});
    b.choose({"EF", "EL", "LU", "EU", "NA"});
}

/// [R + offset] with a base of the given number of registers.
void take_address(Binder& b, int base_registers, bool may_scale) {
    const Operand& operand = b.next(OperandKind::Address);
    b.no_suffix(operand);
    if (operand.scale_shift && !may_scale) b.refuse("scaled address '" + operand.text + "'");
    if (operand.index >= 0) {
        b.out.a.row = b.register_row(operand, base_registers);
        b.out.a.space = 0;
    }
    b.out.mode = uint8_t(operand.scale_shift);
    b.out.offset = operand.value;
}

void finish_load(Binder& b, AccessWidth kind, Handler handler, int base_registers, bool may_scale) {
    b.out.width = kBytes[kind];
    b.out.destination = b.destination(kBytes[kind] > 4 ? kBytes[kind] / 4 : 1);
    take_address(b, base_registers, may_scale);
    b.handler(handler);
}

void finish_store(Binder& b, AccessWidth kind, Handler handler, int base_registers, bool may_scale) {
    b.out.width = kBytes[kind];
    take_address(b, base_registers, may_scale);
    b.out.b = b.bits(kBytes[kind] > 4 ? kBytes[kind] / 4 : 1);
    b.handler(handler);
}

void bind_ldg(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<GlobalLoad>(kind), 2, false);
}
void bind_stg(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<GlobalStore>(kind), 2, false);
}
void bind_ld(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<GenericLoad>(kind), 2, false);
}
void bind_st(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<GenericStore>(kind), 2, false);
}
void bind_lds(Binder& b) {
    b.take("U");  // an addressing hint of the port
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<SharedLoad>(kind), 1, true);
}
void bind_sts(Binder& b) {
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<SharedStore>(kind), 1, true);
}
void bind_ldl(Binder& b) {
    b.choose({"LU", "EF", "EL"});
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<LocalLoad>(kind), 1, false);
}
void bind_stl(Binder& b) {
    b.choose({"LU", "EF", "EL"});
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<LocalStore>(kind), 1, false);
}

void bind_ldc(Binder& b) {
    const AccessWidth kind = take_width(b);
    b.out.width = kBytes[kind];
    b.out.destination = b.destination(kBytes[kind] > 4 ? kBytes[kind] / 4 : 1);
    const Operand& operand = b.next(OperandKind::Constant);
    b.plain(operand);
    if (operand.bank > 4 || operand.bank == 1) b.refuse("constant bank " + std::to_string(operand.bank));
    if (operand.index >= 0) {
        b.out.a.row = b.register_row(operand, 1);
        b.out.a.space = 0;
    }
    b.out.mode = uint8_t(operand.bank);
    b.out.offset = operand.value;
    b.handler(for_width<ConstantLoad>(kind));
}

/// QSPC.E.S: is the generic address in the shared window?
void run_qspc(Core& core, const Instruction& in, uint32_t exec) {
    LaneAddresses addresses;
    global_addresses(core, in, addresses);
    uint32_t shared = 0;
    for (int lane = 0; lane < kLanes; ++lane)
        shared |= uint32_t(addresses.at[lane] - kSharedWindow < kWindowBytes) << lane;
    uint32_t* d = core.destination(in.destination);
    each_executing(exec, [&](int lane) { d[lane] = shared >> lane & 1; });
    core.write_predicate(in.predicate0, shared, exec);
}
void bind_qspc(Binder& b) {
    if (!b.take("E") || !b.take("S")) b.refuse("QSPC other than .E.S");
    b.out.predicate0 = b.predicate_destination();
    b.out.destination = b.destination();
    take_address(b, 2, false);
    b.handler(&run_qspc);
}

constexpr Opcode kOpcodes[] = {
    {"LDG", bind_ldg}, {"STG", bind_stg}, {"LD", bind_ld},   {"ST", bind_st},   {"LDS", bind_lds},
    {"STS", bind_sts}, {"LDL", bind_ldl}, {"STL", bind_stl}, {"LDC", bind_ldc}, {"QSPC", bind_qspc},
};

}  // namespace

OpcodeFamily memory_family() {
    return {kOpcodes, std::size(kOpcodes)};
}

}  // namespace sm70emu
