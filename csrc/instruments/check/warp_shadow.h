// Shadow of one warp: registers, predicates, stack.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/access.h"
#include "emulator/machine.h"
#include "instruments/check/flow.h"
#include "instruments/check/shadow.h"

namespace sm70emu::check {

inline const Row kCleanRows[4] = {};
constexpr int kMaxRows = kMaxRegisters + 4;  // with those that stand for RZ

// Exact bits of a register row of which some bytes are bad in part: compilers keep predicates in single bits of a
// register whose other bits nothing has written.
struct PartialRow {
    uint32_t bits[2][kLanes];  // by kind
};

struct WarpShadow {
    std::vector<Row> registers;
    std::vector<PartialRow> partial;  // by register row; empty until there is one
    uint64_t partial_rows[(kMaxRows + 63) / 64] = {};
    std::vector<Row> local;  // a row for each stack word
    uint32_t undefined[kPredicateSink + 1] = {};
    uint32_t tainted[kPredicateSink + 1] = {};
    uint32_t stack_pointer[kLanes] = {};
    // The last WARPSYNC that waited: lanes it waited for, lanes that had come, and what they executed since.
    uint32_t awaited = 0, awaiting = 0, awaited_age = 0;

    const Row* row(const Source& source) const {
        return source.space == 0 ? registers.data() + source.row : kCleanRows;
    }
    uint32_t predicate(PredicateSource p, Kind kind) const { return (kind ? tainted : undefined)[p.index]; }
    uint32_t bad(PredicateSource p) const { return undefined[p.index] | tainted[p.index]; }
    void set_predicate(uint8_t index, Kind kind, uint32_t bad, uint32_t exec) {
        uint32_t& lanes = (kind ? tainted : undefined)[index];
        lanes = (lanes & ~exec) | (bad & exec);
    }

    // Whether nothing that the executing lanes read is bad.
    bool sources_clean(const Instruction& in, const Flow& flow, uint32_t exec) const {
        uint64_t any[4] = {};
        for (int i = 0; i < flow.row_count; ++i) {
            const Row& source = registers[flow.rows[i]];
            for (int part = 0; part < 4; ++part) any[part] |= source.words[part];
        }
        if ((bad(in.p0) | bad(in.p1) | bad(in.p2)) & exec) return false;
        if (!(any[0] | any[1] | any[2] | any[3])) return true;
        uint64_t executing = 0;
        for (int part = 0; part < 4; ++part) executing |= any[part] & lane_bytes(exec, part);
        return !executing;
    }

    bool is_partial(uint32_t row) const { return partial_rows[row / 64] >> (row % 64) & 1; }
    uint32_t bits(const Source& source, int lane, Kind kind) const {
        if (source.space != 0) return 0;
        return is_partial(source.row) ? partial[source.row].bits[kind != 0][lane]
                                      : bits_of(of_kind(registers[source.row][lane], kind));
    }
    // Every write to a row, other than one that cleans it, comes through here or write_bits().
    void write(uint32_t row, uint32_t exec, const Row& value) {
        Row& target = registers[row];
        clean_lanes(target, exec);
        for (int part = 0; part < 4; ++part) target.words[part] |= value.words[part];
        if (is_partial(row)) forget_bits(row, exec);
    }
    void write_bits(uint32_t row, uint32_t exec, const PartialRow& value);
    void forget_bits(uint32_t row, uint32_t exec);

    void clean_results(const Instruction& in, const Flow& flow, uint32_t exec) {
        for (int word = 0; word < flow.written; ++word) {
            const uint32_t row = in.destination + static_cast<uint32_t>(word);
            clean_lanes(registers[row], exec);
            if (is_partial(row)) forget_bits(row, exec);
        }
        for (const uint8_t index : {in.predicate0, in.predicate1}) {
            undefined[index] &= ~exec;
            tainted[index] &= ~exec;
        }
    }
};

// What the sources' shadow makes of the results', for rules that concern registers and predicates alone. Called before
// the instruction executes, and only if something that it reads is bad.
void propagate(WarpShadow& shadow, const Core& core, const Instruction& in, const Flow& flow, uint32_t exec);

// --- rules of propagate_warp.cpp, for which a clean source is not enough or which concern more than one lane

void propagate_vote(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec);
void propagate_match(WarpShadow& shadow, const Instruction& in, const Flow& flow, uint32_t exec);
void propagate_predicate_logic(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec);
void propagate_to_predicates(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec);
void propagate_from_predicates(WarpShadow& shadow, const Core& core, const Instruction& in, uint32_t exec);
void propagate_shuffle(WarpShadow& shadow, const Core& core, const Instruction& in, ShuffleMode mode, uint32_t exec);

// HMMA: an element of the result is bad if its row of A, its column of B or its addend is.
void propagate_tensor_core(WarpShadow& shadow, const Instruction& in);

}  // namespace sm70emu::check
