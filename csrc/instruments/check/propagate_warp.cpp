// The rules by which a warp's lanes, its predicates and the tensor core exchange what is known about data.
#include "emulator/tensor_core.h"
#include "instruments/check/logic_bits.h"
#include "instruments/check/warp_shadow.h"

namespace sm70emu::check {
namespace {

// Of both kinds, the same bytes in all executing lanes of the destination.
void write_alike(WarpShadow& shadow, uint32_t row, uint32_t exec, const uint32_t (&bytes)[2]) {
    Row value;
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        value[__builtin_ctz(rest)] = static_cast<Shadow>(bytes[0] | bytes[1] << 4);
    }
    shadow.write(row, exec, value);
}

}  // namespace

void propagate_vote(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t votes = core.predicate(in.p0);
    uint32_t bytes[2] = {};
    for (const Kind kind : kKinds) {
        const uint32_t bad = shadow.predicate(in.p0, kind) & exec, good = exec & ~bad;
        bytes[kind != 0] = bytes_of(bad);  // a bit of the result for each lane
        // One good vote may decide it.
        const bool some = votes & good, some_against = ~votes & good;
        const bool decided = in.mode == 0 ? some_against : in.mode == 1 ? some : some && some_against;
        shadow.set_predicate(in.predicate0, kind, bad && !decided ? kAllLanes : 0, exec);
    }
    write_alike(shadow, in.destination, exec, bytes);
}

void propagate_match(WarpShadow& shadow, const Instruction& in, const Flow& flow, uint32_t exec) {
    const Row* a = shadow.row(in.a);
    uint32_t bytes[2] = {};
    for (const Kind kind : kKinds) {
        bool bad = false;
        for (uint32_t rest = exec; rest; rest &= rest - 1) {
            for (int word = 0; word < flow.a; ++word) bad |= of_kind(a[word][__builtin_ctz(rest)], kind) != 0;
        }
        bytes[kind != 0] = bad ? 0xf : 0;
        shadow.set_predicate(in.predicate0, kind, bad ? kAllLanes : 0, exec);
    }
    write_alike(shadow, in.destination, exec, bytes);
}

void propagate_predicate_logic(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec) {
    const PredicateSource sources[] = {in.p0, in.p1, in.p2};
    for (const Kind kind : kKinds) {
        uint32_t values[3], bad[3];
        for (int i = 0; i < 3; ++i) {
            values[i] = core.predicate(sources[i]);
            bad[i] = shadow.predicate(sources[i], kind);
        }
        const uint32_t first = logic(in.immediate & 0xff, values, bad).bad;
        const uint32_t second = logic(in.immediate >> 8, values, bad).bad;
        shadow.set_predicate(in.predicate0, kind, first, exec);
        shadow.set_predicate(in.predicate1, kind, second, exec);
    }
}

void propagate_to_predicates(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec) {
    const Row* mask = shadow.row(in.b);
    const uint32_t* selected = core.row(in.b);
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        for (const Kind kind : kKinds) {
            const uint32_t bad = of_kind(mask[0][lane], kind) ? ~0u : shadow.bits(in.a, lane, kind) >> (8 * in.mode);
            for (uint8_t p = 0; p < 7; ++p) {
                if (selected[lane] >> p & 1) shadow.set_predicate(p, kind, bad >> p & 1 ? kAllLanes : 0, 1u << lane);
            }
        }
    }
}

void propagate_from_predicates(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec) {
    const uint32_t* mask = core.row(in.b);
    PartialRow result = {};
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        for (const Kind kind : kKinds) {
            uint32_t bits = 0;
            for (int p = 0; p < 7; ++p) bits |= ((kind ? shadow.tainted : shadow.undefined)[p] >> lane & 1) << p;
            result.bits[kind != 0][lane] = (shadow.bits(in.a, lane, kind) & ~mask[lane]) | (bits & mask[lane]);
        }
    }
    shadow.write_bits(in.destination, exec, result);
}

// A lane that reads from one that does not execute the instruction gets an undefined value.
void propagate_shuffle(WarpShadow& shadow, const Core& core, const Instruction& in, ShuffleMode mode, uint32_t exec) {
    const Row &a = *shadow.row(in.a), &b = *shadow.row(in.b), &c = *shadow.row(in.c);
    const uint32_t *amounts = core.row(in.b), *limits = core.row(in.c);
    Row result;
    uint32_t bad[2] = {};
    for (uint32_t rest = exec; rest; rest &= rest - 1) {
        const int lane = __builtin_ctz(rest);
        const int segment = static_cast<int>(limits[lane] >> 8 & 31), clamp = static_cast<int>(limits[lane] & 31),
                  amount = static_cast<int>(amounts[lane] & 31);
        const int first = lane & segment, last = first | (clamp & ~segment);
        int from = lane;
        bool valid = false;
        switch (mode) {
            case ShuffleMode::Index: from = first | (amount & ~segment); break;
            case ShuffleMode::Up: from = lane - amount; break;
            case ShuffleMode::Down: from = lane + amount; break;
            case ShuffleMode::Butterfly: from = lane ^ amount; break;
        }
        valid = mode == ShuffleMode::Up ? from >= last : from <= last;
        from = valid ? from & 31 : lane;
        uint32_t value = a[from];
        if (!lane_in(exec, from)) value |= kUndefined;
        for (const Kind kind : kKinds) {
            if (!of_kind(b[lane], kind) && !of_kind(c[lane], kind)) continue;
            value |= 0xfu << kind;
            bad[kind != 0] |= 1u << lane;
        }
        result[lane] = static_cast<Shadow>(value);
    }
    shadow.write(in.destination, exec, result);
    for (const Kind kind : kKinds) shadow.set_predicate(in.predicate0, kind, bad[kind != 0], exec);
}

namespace {

// Whether a half of a fragment is bad; `index` counts its four halves.
bool half_bad(const Row* rows, int index, int lane, Kind kind) {
    return of_kind(rows[index >> 1][lane], kind) >> (2 * (index & 1)) & 3;
}

// Rows of A (or columns of B) of a quad-pair that hold a bad element.
uint32_t bad_lines(const Row* rows, bool transposed, int quad_pair, Kind kind) {
    uint32_t lines = 0;
    for (int i = 0; i < 8; ++i) {
        for (int k = 0; k < 4; ++k) {
            const bool bad = transposed ? half_bad(rows, i & 3, quad_pair_lane(quad_pair, k + (i & 4)), kind)
                                        : half_bad(rows, k, quad_pair_lane(quad_pair, i), kind);
            lines |= static_cast<uint32_t>(bad) << i;
        }
    }
    return lines;
}

}  // namespace

void propagate_tensor_core(WarpShadow& shadow, const Instruction& in) {
    const Row *a = shadow.row(in.a), *b = shadow.row(in.b), *c = shadow.row(in.c);
    const bool d_half = in.mode & 4, c_half = in.mode & 8;
    const int step = in.width;
    Row result[2];
    for (const Kind kind : kKinds) {
        for (int q = 0; q < 4; ++q) {
            const uint32_t rows = bad_lines(a, in.mode & 1, q, kind), columns = bad_lines(b, in.mode & 2, q, kind);
            for (int i = 0; i < 8; ++i) {
                const int lane = quad_pair_lane(q, i);
                for (int e = 0; e < (d_half ? 4 : 2); ++e) {
                    const int row = d_half ? i : step_row(step, i);
                    const int column = d_half ? 4 * step + e : step_column(step, i, e);
                    bool bad = (rows >> row & 1) || (columns >> column & 1);
                    if (d_half) {
                        bad |= half_bad(c, e, lane, kind);
                    } else {
                        bad |= c_half ? half_bad(c, column & 3, quad_pair_lane(q, row), kind)
                                      : of_kind(c[e][lane], kind) != 0;
                    }
                    if (!bad) continue;
                    Shadow& d = d_half ? result[e >> 1][lane] : result[e][lane];
                    d = static_cast<Shadow>(d | (d_half ? 3u << (2 * (e & 1)) : 0xfu) << kind);
                }
            }
        }
    }
    for (uint32_t word = 0; word < 2; ++word) shadow.write(in.destination + word, kAllLanes, result[word]);
}

}  // namespace sm70emu::check
