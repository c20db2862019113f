// Loads, stores and atomics: their addresses, what they move, and whom they race with.
#include <algorithm>

#include "emulator/error.h"
#include "instruments/check/check_observer.h"

namespace sm70emu::check {
namespace {

// Of the shadow byte of a word, what an access of `width` < 4 bytes at `address` sees, as the low bytes of a register.
Shadow narrow(Shadow word, uint64_t address, uint32_t width) {
    const auto at = static_cast<uint32_t>(address & 3);
    const uint32_t mask = (1u << width) - 1;
    return static_cast<Shadow>((of_kind(word, kUndefinedKind) >> at & mask) | (of_kind(word, kTaintedKind) >> at & mask)
                                                                                  << 4);
}
// The shadow bits of a word that such an access covers.
Shadow covered(uint64_t address, uint32_t width) {
    return static_cast<Shadow>(((1u << width) - 1) * 0x11u << (address & 3));
}
// Shadow of the low bytes of a register, as stored there.
Shadow widened(Shadow value, uint64_t address, uint32_t width) {
    return static_cast<Shadow>((value & ((1u << width) - 1) * 0x11u) << (address & 3));
}

// A narrow value in its register: the sign's copies are as bad as what they are copies of.
Shadow extended(Shadow value, const Flow& flow) {
    if (!flow.sign_extends) return value;
    return static_cast<Shadow>(whole(of_kind(value, kUndefinedKind)) | whole(of_kind(value, kTaintedKind)) << 4);
}

// The lanes of a row that are not clean.
uint32_t bad_lanes(const Row& row, uint32_t exec) {
    if (row.clean()) return 0;
    uint32_t lanes = 0;
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        lanes |= static_cast<uint32_t>(row[lane] != 0) << lane;
    }
    return lanes;
}

}  // namespace

bool CheckObserver::inside_shared(const Core& core, uint64_t address, uint32_t width) const {
    return address + width <= core.block->shared_bytes && !(address & (width - 1));
}
bool CheckObserver::inside_local(const Core& core, uint64_t address, uint32_t width) const {
    return address + width <= core.block->local_bytes && !(address & (width - 1));
}

void CheckObserver::check_address(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    if (in.a.space != 0) return;
    const Row* rows = warp_->row(in.a);
    uint32_t bad = bad_lanes(rows[0], exec);
    if (flow.a == 2) bad |= bad_lanes(rows[1], exec);
    for (; bad; bad &= bad - 1) {
        const int lane = __builtin_ctz(bad);
        report(core, lane, rows[0][lane] | (flow.a == 2 ? rows[1][lane] : Shadow{0}), "are used as an address");
    }
}

void CheckObserver::check_races(Core& core, const Instruction& in, const Flow& flow, const LaneAccess& access) {
    const AccessKind kind = flow.rule == Rule::Load    ? AccessKind::Load
                            : flow.rule == Rule::Store ? AccessKind::Store
                                                       : AccessKind::Atomic;
    if (access.shared && enabled_[Checker::SharedRace]) {
        const uint32_t* values = kind == AccessKind::Store ? core.row(in.b) : nullptr;
        if (const auto race = races_.access(core, kind, access.addresses, access.shared, in.width, values)) {
            context_.findings.add(core, Checker::SharedRace, race->lane, race->what,
                                  {"shared", access.addresses.at[race->lane], in.width});
        }
    }
    if (access.global && kind != AccessKind::Load && context_.several_blocks && enabled_[Checker::GlobalRace]) {
        if (kind == AccessKind::Atomic) {
            global_races_.atomic();
        } else if (const auto race =
                       global_races_.store(core, access.addresses, access.global, in.width, core.row(in.b))) {
            context_.findings.add(core, Checker::GlobalRace, race->lane,
                                  "block " + std::to_string(race->other_block) + " of the grid wrote the same " +
                                      std::to_string(in.width) + " bytes, and nothing orders the blocks",
                                  {"global", access.addresses.at[race->lane], in.width});
        }
    }
    if (access.local) check_stack(core, in, access);
}

// Below the stack pointer there is no frame, or one that was left.
void CheckObserver::check_stack(Core& core, const Instruction& in, const LaneAccess& access) {
    if (!enabled_[Checker::Stack]) return;
    for (uint32_t rest = access.local; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        if (access.addresses.at[lane] >= warp_->stack_pointer[lane]) continue;
        context_.findings.add(core, Checker::Stack, lane,
                              "access below the stack pointer, " + hex(warp_->stack_pointer[lane]) +
                                  ": into a frame that was left, or that nobody entered",
                              {"stack", access.addresses.at[lane], in.width});
        return;
    }
}

void CheckObserver::load(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    check_address(core, in, flow, exec);
    if (flow.space == MemorySpace::Constant) {
        warp_->clean_results(in, flow, exec);
        return;
    }
    const bool all_clean = flow.space == MemorySpace::Global && context_.shadow.empty();
    if (all_clean || (!enabled_.shadow() && flow.space == MemorySpace::Global)) {
        warp_->clean_results(in, flow, exec);
        return;
    }
    const LaneAccess access = lane_access(core, in, flow.space, exec);
    check_races(core, in, flow, access);
    if (!enabled_.shadow()) return;

    const uint32_t width = in.width, words = std::min<uint32_t>(flow.written, 4);
    // A row of the result for each word, 32 shadow bytes of 32 lanes; most often all are clean.
    Row result[4];
    uint32_t any = 0;
    const auto put = [&](int lane, uint32_t word, Shadow shadow) {
        result[word][lane] = shadow;
        any |= shadow;
    };
    for (uint32_t rest = access.shared; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        if (!inside_shared(core, address, width)) continue;  // refused when it executes
        const Shadow* source = shared_.data() + address / 4;
        if (width < 4) {
            put(lane, 0, extended(narrow(*source, address, width), flow));
        } else {
            for (uint32_t word = 0; word < words; ++word) put(lane, word, source[word]);
        }
    }
    for (uint32_t rest = access.local; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        if (!inside_local(core, address, width)) continue;
        const Row* source = warp_->local.data() + address / 4;
        if (width < 4) {
            put(lane, 0, extended(narrow((*source)[lane], address, width), flow));
        } else {
            for (uint32_t word = 0; word < words; ++word) put(lane, word, source[word][lane]);
        }
    }
    for (uint32_t rest = context_.shadow.empty() ? 0 : access.global; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        const ShadowPage* page = pages_.find(address);
        if (!page) continue;
        if (width < 4) {
            put(lane, 0, extended(narrow(page->at(address), address, width), flow));
        } else {
            for (uint32_t word = 0; word < words; ++word) put(lane, word, page->at(address + 4 * word));
        }
    }
    warp_->clean_results(in, flow, exec);
    if (!any) return;
    for (uint32_t word = 0; word < words; ++word) warp_->write(in.destination + word, exec, result[word]);
}

void CheckObserver::store_global(Core& core, const Instruction& in, const Row* data, const LaneAccess& access,
                                 uint32_t words) {
    const uint32_t width = in.width;
    const Shadow counted = width < 4 ? static_cast<Shadow>(((1u << width) - 1) * 0x11u) : Shadow{0xff};
    bool clean = true;
    for (uint32_t word = 0; word < words; ++word) clean &= data[word].clean();
    if (clean && context_.shadow.empty()) return;
    for (uint32_t rest = access.global; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        Shadow bad = 0;
        for (uint32_t word = 0; word < words; ++word) bad |= data[word][lane] & counted;
        ShadowPage* page = pages_.find(address);
        const bool copies = bad && context_.shadow.is_scratch(address, width);
        if (bad && !copies) report(core, lane, bad, "are stored", {"global", address, width});
        if (!page) continue;
        if (width < 4) {
            page->update(address, static_cast<Shadow>(~covered(address, width)),
                         copies ? widened(data[0][lane], address, width) : Shadow{0});
        } else {
            for (uint32_t word = 0; word < words; ++word) {
                page->update(address + 4 * word, 0, copies ? data[word][lane] : Shadow{0});
            }
        }
    }
}

void CheckObserver::store(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    check_address(core, in, flow, exec);
    const LaneAccess access = lane_access(core, in, flow.space, exec);
    check_races(core, in, flow, access);
    if (!enabled_.shadow()) return;
    const uint32_t width = in.width, words = flow.b;
    const Row* data = warp_->row(in.b);
    if (access.global) store_global(core, in, data, access, words);
    for (uint32_t rest = access.shared; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        if (!inside_shared(core, address, width)) continue;
        Shadow* target = shared_.data() + address / 4;
        if (width < 4) {
            *target =
                static_cast<Shadow>((*target & ~covered(address, width)) | widened(data[0][lane], address, width));
        } else {
            for (uint32_t word = 0; word < words; ++word) target[word] = data[word][lane];
        }
    }
    for (uint32_t rest = access.local; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        if (!inside_local(core, address, width)) continue;
        Row* target = warp_->local.data() + address / 4;
        if (width < 4) {
            (*target)[lane] = static_cast<Shadow>(((*target)[lane] & ~covered(address, width)) |
                                                  widened(data[0][lane], address, width));
        } else {
            for (uint32_t word = 0; word < words; ++word) target[word][lane] = data[word][lane];
        }
    }
}

void CheckObserver::atomic(Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    check_address(core, in, flow, exec);
    const LaneAccess access = lane_access(core, in, flow.space, exec);
    check_races(core, in, flow, access);
    if (!enabled_.shadow()) return;
    const uint32_t words = std::min<uint32_t>(flow.b, 2);
    const Row *data = warp_->row(in.b), *compared = warp_->row(in.c);
    Row result[2];
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const uint64_t address = access.addresses.at[lane];
        const bool in_shared = access.shared >> lane & 1;
        ShadowPage* page = in_shared ? nullptr : pages_.find(address);
        if (in_shared && !inside_shared(core, address, in.width)) continue;
        Shadow mixed = 0;
        for (uint32_t word = 0; word < words; ++word) {
            const Shadow old = in_shared ? shared_[address / 4 + word]
                               : page    ? page->at(address + 4 * word)
                                         : Shadow{0};
            result[word][lane] = old;
            mixed |=
                data[word][lane] | (flow.c ? compared[word][lane] : Shadow{0}) | (flow.exchanges ? Shadow{0} : old);
        }
        // Where the new value is computed from several, all of its bytes are as bad as any.
        mixed = static_cast<Shadow>((mixed & kUndefined ? kUndefined : 0) | (mixed & kTainted ? kTainted : 0));
        const bool copies = in_shared || (mixed && context_.shadow.is_scratch(address, in.width));
        if (mixed && !copies) report(core, lane, mixed, "enter an atomic", {"global", address, in.width});
        for (uint32_t word = 0; word < words; ++word) {
            const Shadow value = !copies ? Shadow{0} : flow.exchanges ? data[word][lane] : mixed;
            if (in_shared) {
                shared_[address / 4 + word] = value;
            } else if (page) {
                page->update(address + 4 * word, 0, value);
            }
        }
    }
    warp_->clean_results(in, flow, exec);
    for (uint32_t word = 0; word < std::min<uint32_t>(flow.written, 2); ++word) {
        warp_->write(in.destination + word, exec, result[word]);
    }
}

}  // namespace sm70emu::check
