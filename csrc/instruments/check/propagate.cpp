// The rules that concern one lane at a time.
#include "instruments/check/logic_bits.h"
#include "instruments/check/warp_shadow.h"

namespace sm70emu::check {
namespace {

// What one lane reads: of one kind, the bad bytes of each source word and whether the predicates are bad; values too.
struct Sources {
    uint32_t a[2] = {}, b[2] = {}, c[2] = {};
    uint32_t bits_a = 0, bits_b = 0, bits_c = 0;  // bad bits of the first words, for rules that go bit by bit
    bool p0 = false, p1 = false;
    uint32_t value_a = 0, value_b = 0, value_c = 0;
    bool value_p0 = false;

    uint32_t any() const {
        return a[0] | a[1] | b[0] | b[1] | c[0] | c[1] | static_cast<uint32_t>(p0) | static_cast<uint32_t>(p1);
    }
};

// Of the same kind, what becomes of the result.
struct Results {
    uint32_t words[2] = {};
    uint32_t bits = 0;  // of the first word, by rules that go bit by bit
    bool predicate0 = false, predicate1 = false;
};

Results all_bad() {
    return {{0xf, 0xf}, ~0u, true, true};
}

bool goes_by_bits(Rule rule) {
    return rule == Rule::Logic || rule == Rule::Shift || rule == Rule::CopyA || rule == Rule::CopyC;
}

Results logic_rule(const Instruction& in, const Sources& s) {
    const LogicBits bits = logic(in.immediate, {s.value_a, s.value_b, s.value_c}, {s.bits_a, s.bits_b, s.bits_c});
    Results r;
    r.bits = bits.bad;
    // The predicate: the result is not zero, or p0.
    const bool decided = bits.ones || (!s.p0 && s.value_p0);
    r.predicate0 = !decided && (bits.bad || s.p0);
    return r;
}

// The bad bits of the 64-bit source move as its value does.
Results shift_rule(const Flow& flow, const Sources& s) {
    if (s.b[0]) return all_bad();
    const uint32_t limit = flow.shift & kShift64 ? 64 : 32;
    const uint32_t amount = flow.shift & kShiftWraps ? s.value_b & (limit - 1) : s.value_b < limit ? s.value_b : limit;
    const uint64_t wide = static_cast<uint64_t>(s.bits_c) << 32 | s.bits_a;
    uint64_t moved = 0;
    if (flow.shift & kShiftRight && flow.shift & kShiftSigned) {
        moved = static_cast<uint64_t>(static_cast<int64_t>(wide) >> (amount < 63 ? amount : 63));
    } else if (amount < 64) {
        moved = flow.shift & kShiftRight ? wide >> amount : wide << amount;
    }
    Results r;
    r.bits = static_cast<uint32_t>(flow.shift & kShiftHigh ? moved >> 32 : moved);
    return r;
}

bool is_power_of_two(uint32_t x) {
    return x && !(x & (x - 1));
}

Results product_rule(const Instruction& in, const Sources& s) {
    uint32_t product = carried(s.a[0] | s.b[0]);
    // A factor that is part of the instruction or of the launch: zero decides the product, a power of two shifts.
    const auto scaled = [&](uint32_t bytes, uint32_t factor) {
        if (factor == 0) return 0u;
        if (!is_power_of_two(factor)) return carried(bytes);
        return bytes_of(bits_of(bytes) << __builtin_ctz(factor));
    };
    if (in.b.space == 1 && !in.a.flip && !in.b.flip) {
        product = scaled(s.a[0], s.value_b);
    } else if (in.a.space == 1 && !in.a.flip && !in.b.flip) {
        product = scaled(s.b[0], s.value_a);
    }
    Results r;
    const bool adds = s.c[0] || s.p0 || in.c.space == 0 || s.value_c;
    r.words[0] = adds ? carried(product | s.c[0] | static_cast<uint32_t>(s.p0)) : product;
    if (s.p0) r.words[0] = 0xf;
    return r;
}

Results wide_product_rule(const Sources& s) {
    Results r;
    const uint32_t low = s.a[0] | s.b[0] | s.c[0];
    if (s.p0) return all_bad();
    r.words[0] = carried(low);
    r.words[1] = low ? 0xfu : carried(s.c[1]);
    r.predicate0 = low || s.c[1];
    return r;
}

Results scaled_sum_rule(const Instruction& in, const Sources& s) {
    Results r;
    r.words[0] = carried(bytes_of(bits_of(s.a[0]) << in.width) | s.b[0]);
    r.predicate0 = s.any();
    return r;
}

Results permute_rule(const Sources& s) {
    if (s.b[0]) return all_bad();
    const uint32_t bytes = s.a[0] | s.c[0] << 4;
    Results r;
    for (int i = 0; i < 4; ++i) r.words[0] |= (bytes >> (s.value_b >> (4 * i) & 7) & 1) << i;
    return r;
}

Results extend_rule(const Flow& flow, const Sources& s) {
    if (s.b[0]) return all_bad();
    if (s.value_b == 0) return {};
    Results r;
    const uint32_t kept = s.value_b < 32 ? (1u << s.value_b) - 1 : ~0u, bad = bits_of(s.a[0]) & kept;
    const bool sign_bad = flow.sign_extends && s.value_b < 32 && bad >> (s.value_b - 1) & 1;
    r.words[0] = bytes_of(bad | (sign_bad ? ~kept : 0));
    return r;
}

uint32_t reversed(uint32_t bytes) {
    return (bytes & 1) << 3 | (bytes & 2) << 1 | (bytes & 4) >> 1 | (bytes & 8) >> 3;
}

// Combined with a predicate by AND, OR or XOR, which may decide the outcome alone.
bool combined(bool compared, const Sources& s, int operation) {
    if (operation == 0 && !s.p0 && !s.value_p0) return false;
    if (operation == 1 && !s.p0 && s.value_p0) return false;
    return compared || s.p0 || s.p1;
}

Results compare_rule(const Instruction& in, const Sources& s) {
    Results r;
    r.predicate0 = r.predicate1 = combined((s.a[0] | s.a[1] | s.b[0] | s.b[1]) != 0, s, in.mode);
    return r;
}

// Bad bytes of the half that a packed source gives to the lower (0) or upper (1) half of the result.
uint32_t half_of(uint32_t bytes, const Source& source, int which) {
    if (source.half == 3) return bytes;
    const bool upper = source.half == 2 || (source.half == 0 && which == 1);
    return upper ? bytes >> 2 & 3 : bytes & 3;
}
bool half_bad(const Instruction& in, const Flow& flow, const Sources& s, int which) {
    return half_of(s.a[0], in.a, which) || (flow.b && half_of(s.b[0], in.b, which)) ||
           (flow.c && half_of(s.c[0], in.c, which));
}

Results halves_rule(const Instruction& in, const Flow& flow, const Sources& s) {
    Results r;
    r.words[0] = (half_bad(in, flow, s, 0) ? 0x3u : 0) | (half_bad(in, flow, s, 1) ? 0xcu : 0);
    return r;
}
Results half_compare_rule(const Instruction& in, const Flow& flow, const Sources& s) {
    bool lower = half_bad(in, flow, s, 0), upper = half_bad(in, flow, s, 1);
    if (in.mode & 4) lower = upper = lower || upper;
    Results r;
    r.predicate0 = combined(lower, s, in.mode & 3);
    r.predicate1 = combined(upper, s, in.mode & 3);
    return r;
}
Results half_set_rule(const Instruction& in, const Flow& flow, const Sources& s) {
    const Results p = half_compare_rule(in, flow, s);
    Results r;
    r.words[0] = (p.predicate0 ? 0x3u : 0) | (p.predicate1 ? 0xcu : 0);
    return r;
}

Results apply(const Instruction& in, const Flow& flow, const Sources& s) {
    Results r;
    switch (flow.rule) {
        case Rule::Sum:
            r.words[0] = carried(s.a[0] | s.b[0] | s.c[0]);
            if (s.p0 || s.p1) r.words[0] = 0xf;
            r.predicate0 = r.predicate1 = s.any();
            return r;
        case Rule::Product: return product_rule(in, s);
        case Rule::WideProduct: return wide_product_rule(s);
        case Rule::CopyA: r.bits = s.bits_a; return r;
        case Rule::CopyC: r.bits = in.c.flip ? bits_of(carried(s.c[0])) : s.bits_c; return r;
        case Rule::Logic: return logic_rule(in, s);
        case Rule::Choice: r.words[0] = s.p0 ? 0xf : s.value_p0 ? s.a[0] : s.b[0]; return r;
        case Rule::Shift: return shift_rule(flow, s);
        case Rule::ScaledSum: return scaled_sum_rule(in, s);
        case Rule::Permute: return permute_rule(s);
        case Rule::Extend: return extend_rule(flow, s);
        case Rule::Reverse: r.words[0] = reversed(s.a[0]); return r;
        case Rule::Compare: return compare_rule(in, s);
        case Rule::Halves: return halves_rule(in, flow, s);
        case Rule::HalfToFloat: r.words[0] = half_bad(in, flow, s, 0) ? 0xf : 0; return r;
        case Rule::HalfCompare: return half_compare_rule(in, flow, s);
        case Rule::HalfSet: return half_set_rule(in, flow, s);
        case Rule::Convert:
            r.words[0] = (s.a[0] & flow.source_bytes) || s.a[1] ? flow.result_bytes : 0;
            r.words[1] = whole(r.words[0]);
            return r;
        default: return s.any() ? all_bad() : Results{};
    }
}

void per_lane(WarpShadow& shadow, const Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    const Row *a = shadow.row(in.a), *b = shadow.row(in.b), *c = shadow.row(in.c);
    const uint32_t *values_a = core.row(in.a), *values_b = core.row(in.b), *values_c = core.row(in.c);
    const uint32_t values_p0 = core.predicate(in.p0);
    const bool by_bits = goes_by_bits(flow.rule);
    Row results[2];
    PartialRow bits = {};
    uint32_t predicates[2][2] = {};
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        for (const Kind kind : kKinds) {
            Sources s;
            for (int word = 0; word < flow.a; ++word) s.a[word] = of_kind(a[word][lane], kind);
            for (int word = 0; word < flow.b; ++word) s.b[word] = of_kind(b[word][lane], kind);
            for (int word = 0; word < flow.c; ++word) s.c[word] = of_kind(c[word][lane], kind);
            s.p0 = shadow.predicate(in.p0, kind) >> lane & 1;
            s.p1 = shadow.predicate(in.p1, kind) >> lane & 1;
            if (!s.any()) continue;
            if (by_bits) {
                s.bits_a = shadow.bits(in.a, lane, kind);
                s.bits_b = shadow.bits(in.b, lane, kind);
                s.bits_c = shadow.bits(in.c, lane, kind);
            }
            s.value_a = values_a[lane];
            s.value_b = values_b[lane];
            s.value_c = values_c[lane];
            s.value_p0 = values_p0 >> lane & 1;
            const Results r = apply(in, flow, s);
            bits.bits[kind != 0][lane] = r.bits;
            for (int word = 0; word < 2; ++word) {
                results[word][lane] = static_cast<Shadow>(results[word][lane] | r.words[word] << kind);
            }
            predicates[kind != 0][0] |= static_cast<uint32_t>(r.predicate0) << lane;
            predicates[kind != 0][1] |= static_cast<uint32_t>(r.predicate1) << lane;
        }
    }
    if (by_bits) {
        shadow.write_bits(in.destination, exec, bits);
    } else {
        for (int word = 0; word < flow.written; ++word) {
            shadow.write(in.destination + static_cast<uint32_t>(word), exec, results[word]);
        }
    }
    for (const Kind kind : kKinds) {
        shadow.set_predicate(in.predicate0, kind, predicates[kind != 0][0], exec);
        shadow.set_predicate(in.predicate1, kind, predicates[kind != 0][1], exec);
    }
}

}  // namespace

void WarpShadow::write_bits(uint32_t row, uint32_t exec, const PartialRow& value) {
    Row bytes;
    bool in_part = false;
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        for (const Kind kind : kKinds) {
            const uint32_t bits = value.bits[kind != 0][lane], whole_bytes = bytes_of(bits);
            bytes[lane] = static_cast<Shadow>(bytes[lane] | whole_bytes << kind);
            in_part |= bits != bits_of(whole_bytes);
        }
    }
    write(row, exec, bytes);
    if (!in_part) return;
    if (partial.empty()) partial.resize(registers.size());
    PartialRow& exact = partial[row];
    for (int lane = 0; lane < kLanes; ++lane) {
        for (const Kind kind : kKinds) {
            if (lane_in(exec, lane)) {
                exact.bits[kind != 0][lane] = value.bits[kind != 0][lane];
            } else if (!is_partial(row)) {
                exact.bits[kind != 0][lane] = bits_of(of_kind(registers[row][lane], kind));
            }
        }
    }
    partial_rows[row / 64] |= uint64_t{1} << (row % 64);
}

void WarpShadow::forget_bits(uint32_t row, uint32_t exec) {
    if (exec == kAllLanes) {
        partial_rows[row / 64] &= ~(uint64_t{1} << (row % 64));
        return;
    }
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        for (const Kind kind : kKinds) {
            partial[row].bits[kind != 0][lane] = bits_of(of_kind(registers[row][lane], kind));
        }
    }
}

void propagate(WarpShadow& shadow, const Core& core, const Instruction& in, const Flow& flow, uint32_t exec) {
    switch (flow.rule) {
        case Rule::Vote: propagate_vote(shadow, core, in, exec); return;
        case Rule::Match: propagate_match(shadow, in, flow, exec); return;
        case Rule::PredicateLogic: propagate_predicate_logic(shadow, core, in, exec); return;
        case Rule::ToPredicates: propagate_to_predicates(shadow, core, in, exec); return;
        default: per_lane(shadow, core, in, flow, exec);
    }
}

}  // namespace sm70emu::check
