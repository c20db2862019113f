// Loads and stores: global (LDG, STG), shared (LDS, STS), stack (LDL, STL), generic (LD, ST), constant (LDC).
#include <cstring>
#include <iterator>
#include <string>

#include "emulator/access.h"
#include "emulator/access_width.h"
#include "emulator/binder.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace {

template <int Kind>
constexpr uint32_t kWidth = kAccessBytes[Kind];

// Consecutive words in lane order, the most common pattern.
bool is_contiguous(const LaneAddresses& addresses, uint32_t width) {
    uint64_t different = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        different |= addresses.at[lane] - addresses.at[0] - static_cast<uint64_t>(lane) * width;
    }
    return different == 0;
}

// --- global

template <int Kind>
struct GlobalLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = static_cast<AccessWidth>(Kind);
        constexpr uint32_t width = kWidth<Kind>;
        const LaneAddresses addresses = global_addresses(core, in);
        uint32_t* d = core.destination(in.destination);
        if (exec == kAllLanes && all_in_one_buffer(core, addresses, width, AccessKind::Load)) {
            if (kind == k32 && is_contiguous(addresses, width)) {
                std::memcpy(d, reinterpret_cast<const void*>(addresses.at[0]), 4 * kLanes);
                return;
            }
            for (int lane = 0; lane < kLanes; ++lane) {
                load_lane(d, lane, reinterpret_cast<const uint8_t*>(addresses.at[lane]), kind);
            }
            return;
        }
        for_each_lane(exec, [&](int lane) {
            load_lane(d, lane, global_pointer(core, lane, addresses.at[lane], width, AccessKind::Load), kind);
        });
    }
};

template <int Kind>
struct GlobalStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = static_cast<AccessWidth>(Kind);
        constexpr uint32_t width = kWidth<Kind>;
        const LaneAddresses addresses = global_addresses(core, in);
        const uint32_t* s = core.row(in.b);
        if (exec == kAllLanes && all_in_one_buffer(core, addresses, width, AccessKind::Store)) {
            for (int lane = 0; lane < kLanes; ++lane) {
                store_lane(s, lane, reinterpret_cast<uint8_t*>(addresses.at[lane]), kind);
            }
            return;
        }
        for_each_lane(exec, [&](int lane) {
            store_lane(s, lane, global_pointer(core, lane, addresses.at[lane], width, AccessKind::Store), kind);
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
        constexpr auto kind = static_cast<AccessWidth>(Kind);
        const LaneAddresses addresses = window_addresses(core, in);
        uint32_t* d = core.destination(in.destination);
        if (exec == kAllLanes && all_in_shared(core, addresses, kWidth<Kind>)) {
            const uint8_t* shared = core.block->shared;
            for (int lane = 0; lane < kLanes; ++lane) load_lane(d, lane, shared + addresses.at[lane], kind);
            return;
        }
        for_each_lane(exec, [&](int lane) {
            load_lane(d, lane, shared_pointer(core, lane, addresses.at[lane], kWidth<Kind>), kind);
        });
    }
};

template <int Kind>
struct SharedStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        constexpr auto kind = static_cast<AccessWidth>(Kind);
        const LaneAddresses addresses = window_addresses(core, in);
        const uint32_t* s = core.row(in.b);
        if (exec == kAllLanes && all_in_shared(core, addresses, kWidth<Kind>)) {
            uint8_t* shared = core.block->shared;
            for (int lane = 0; lane < kLanes; ++lane) store_lane(s, lane, shared + addresses.at[lane], kind);
            return;
        }
        for_each_lane(exec, [&](int lane) {
            store_lane(s, lane, shared_pointer(core, lane, addresses.at[lane], kWidth<Kind>), kind);
        });
    }
};

// --- stack

template <int Kind>
void load_local(Core& core, uint32_t* d, int lane, uint64_t address) {
    constexpr auto kind = static_cast<AccessWidth>(Kind);
    const uint32_t* word = local_word(core, lane, address, kWidth<Kind>);
    if constexpr (kWidth<Kind> < 4) {
        const uint32_t shifted = *word >> (8 * (address & 3));
        uint8_t bytes[4];
        std::memcpy(bytes, &shifted, sizeof(bytes));
        load_lane(d, lane, bytes, kind);
    } else {
        for (uint32_t i = 0; i < kWidth<Kind> / 4; ++i) d[i * kLanes + static_cast<uint32_t>(lane)] = word[i * kLanes];
    }
}

template <int Kind>
void store_local(Core& core, const uint32_t* s, int lane, uint64_t address) {
    uint32_t* word = local_word(core, lane, address, kWidth<Kind>);
    if constexpr (kWidth<Kind> < 4) {
        const uint32_t shift = 8 * (address & 3), field = (1u << (8 * kWidth<Kind>)) - 1;
        *word = (*word & ~(field << shift)) | (s[lane] & field) << shift;
    } else {
        for (uint32_t i = 0; i < kWidth<Kind> / 4; ++i) word[i * kLanes] = s[i * kLanes + static_cast<uint32_t>(lane)];
    }
}

template <int Kind>
struct LocalLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const LaneAddresses addresses = window_addresses(core, in);
        uint32_t* d = core.destination(in.destination);
        for_each_lane(exec, [&](int lane) { load_local<Kind>(core, d, lane, addresses.at[lane]); });
    }
};

template <int Kind>
struct LocalStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const LaneAddresses addresses = window_addresses(core, in);
        const uint32_t* s = core.row(in.b);
        for_each_lane(exec, [&](int lane) { store_local<Kind>(core, s, lane, addresses.at[lane]); });
    }
};

// --- generic: each lane's address says which memory it means

template <int Kind>
struct GenericLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const LaneAddresses addresses = global_addresses(core, in);
        uint32_t* d = core.destination(in.destination);
        for_each_lane(exec, [&](int lane) {
            const uint64_t address = addresses.at[lane];
            if (address - kSharedWindow < kWindowBytes) {
                load_lane(d, lane, shared_pointer(core, lane, address - kSharedWindow, kWidth<Kind>),
                          static_cast<AccessWidth>(Kind));
            } else if (address - kLocalWindow < kWindowBytes) {
                load_local<Kind>(core, d, lane, address - kLocalWindow);
            } else {
                load_lane(d, lane, global_pointer(core, lane, address, kWidth<Kind>, AccessKind::Load),
                          static_cast<AccessWidth>(Kind));
            }
        });
    }
};

template <int Kind>
struct GenericStore {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        const LaneAddresses addresses = global_addresses(core, in);
        const uint32_t* s = core.row(in.b);
        for_each_lane(exec, [&](int lane) {
            const uint64_t address = addresses.at[lane];
            if (address - kSharedWindow < kWindowBytes) {
                store_lane(s, lane, shared_pointer(core, lane, address - kSharedWindow, kWidth<Kind>),
                           static_cast<AccessWidth>(Kind));
            } else if (address - kLocalWindow < kWindowBytes) {
                store_local<Kind>(core, s, lane, address - kLocalWindow);
            } else {
                store_lane(s, lane, global_pointer(core, lane, address, kWidth<Kind>, AccessKind::Store),
                           static_cast<AccessWidth>(Kind));
            }
        });
    }
};

// --- constant

template <int Kind>
struct ConstantLoad {
    static void run(Core& core, const Instruction& in, uint32_t exec) {
        LaneAddresses addresses;
        const uint32_t* base = core.row(in.a);
        for (int lane = 0; lane < kLanes; ++lane) {
            addresses.at[lane] = static_cast<uint32_t>(base[lane] + static_cast<uint32_t>(in.offset));
        }
        const auto& bank = core.launch->banks[in.mode];
        uint32_t* d = core.destination(in.destination);
        for_each_lane(exec, [&](int lane) {
            const uint64_t address = addresses.at[lane];
            check_alignment(core, lane, address, kWidth<Kind>, "constant");
            if (address + kWidth<Kind> > bank.size()) {
                refuse_access(core, lane,
                              "read of constant bank " + std::to_string(in.mode) + " at " + hex(address) +
                                  ": out of bounds, it has " + std::to_string(bank.size()) + " bytes");
            }
            load_lane(d, lane, bank.data() + address, static_cast<AccessWidth>(Kind));
        });
    }
};

// --- binding

AccessWidth take_width(Binder& b) {
    return static_cast<AccessWidth>(b.choose({"U8", "S8", "U16", "S16", "32", "64", "128"}, k32));
}

template <template <int> class Access>
Handler for_width(AccessWidth kind) {
    static constexpr Handler handlers[] = {&Access<0>::run, &Access<1>::run, &Access<2>::run, &Access<3>::run,
                                           &Access<4>::run, &Access<5>::run, &Access<6>::run};
    return handlers[kind];
}

// Scopes, ordering and cache hints. Memory here is sequentially consistent, so none changes a result.
void take_global_hints(Binder& b) {
    if (!b.take("E")) b.refuse(b.parsed.opcode + " without .E");
    b.choose({"STRONG", "WEAK", "CONSTANT", "MMIO"});
    b.choose({"CTA", "SM", "GPU", "SYS"});
    b.choose({"EF", "EL", "LU", "EU", "NA"});
}

void finish_load(Binder& b, AccessWidth kind, Handler handler, AddressBase base) {
    b.out.width = kAccessBytes[kind];
    b.out.destination = b.destination(kAccessBytes[kind] > 4 ? kAccessBytes[kind] / 4 : 1);
    b.address(base);
    b.handler(handler);
}

void finish_store(Binder& b, AccessWidth kind, Handler handler, AddressBase base) {
    b.out.width = kAccessBytes[kind];
    b.address(base);
    b.out.b = b.bits(kAccessBytes[kind] > 4 ? kAccessBytes[kind] / 4 : 1);
    b.handler(handler);
}

void bind_ldg(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<GlobalLoad>(kind), AddressBase::Pair);
}
void bind_stg(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<GlobalStore>(kind), AddressBase::Pair);
}
void bind_ld(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<GenericLoad>(kind), AddressBase::Pair);
}
void bind_st(Binder& b) {
    take_global_hints(b);
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<GenericStore>(kind), AddressBase::Pair);
}
void bind_lds(Binder& b) {
    b.take("U");  // an addressing hint of the port
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<SharedLoad>(kind), AddressBase::ScalableRegister);
}
void bind_sts(Binder& b) {
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<SharedStore>(kind), AddressBase::ScalableRegister);
}
void bind_ldl(Binder& b) {
    b.choose({"LU", "EF", "EL"});
    const AccessWidth kind = take_width(b);
    finish_load(b, kind, for_width<LocalLoad>(kind), AddressBase::Register);
}
void bind_stl(Binder& b) {
    b.choose({"LU", "EF", "EL"});
    const AccessWidth kind = take_width(b);
    finish_store(b, kind, for_width<LocalStore>(kind), AddressBase::Register);
}

void bind_ldc(Binder& b) {
    const AccessWidth kind = take_width(b);
    b.out.width = kAccessBytes[kind];
    b.out.destination = b.destination(kAccessBytes[kind] > 4 ? kAccessBytes[kind] / 4 : 1);
    const Operand& operand = b.next(OperandKind::Constant);
    b.plain(operand);
    if (operand.bank > 4 || operand.bank == 1) b.refuse("constant bank " + std::to_string(operand.bank));
    if (operand.index >= 0) {
        b.out.a.row = b.register_row(operand, 1);
        b.out.a.space = 0;
    }
    b.out.mode = static_cast<uint8_t>(operand.bank);
    b.out.offset = operand.value;
    b.handler(for_width<ConstantLoad>(kind));
}

// QSPC.E.S: is the generic address in the shared window?
void run_qspc(Core& core, const Instruction& in, uint32_t exec) {
    const LaneAddresses addresses = global_addresses(core, in);
    uint32_t shared = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        shared |= static_cast<uint32_t>(addresses.at[lane] - kSharedWindow < kWindowBytes) << lane;
    }
    uint32_t* d = core.destination(in.destination);
    for_each_lane(exec, [&](int lane) { d[lane] = shared >> lane & 1; });
    core.write_predicate(in.predicate0, shared, exec);
}
void bind_qspc(Binder& b) {
    if (!b.take("E") || !b.take("S")) b.refuse("QSPC other than .E.S");
    b.out.predicate0 = b.predicate_destination();
    b.out.destination = b.destination();
    b.address(AddressBase::Pair);
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
