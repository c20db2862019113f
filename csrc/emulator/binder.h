// Turns one parsed instruction into a decoded one for an opcode's bind function. Everything is taken, never skipped:
// a modifier, operand or operand suffix that the bind function does not ask for is an error.
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "emulator/error.h"
#include "emulator/instruction.h"
#include "emulator/numeric.h"

namespace sm70emu {

// Collects broadcast constants of one kernel, each once.
class ConstantTable {
 public:
    ConstantTable();
    // First row of `words` consecutive rows holding consecutive words of a bank.
    uint16_t bank_words(int bank, uint32_t byte_offset, int words);
    uint16_t immediate(uint32_t low);
    uint16_t immediate_pair(uint32_t low, uint32_t high);
    std::vector<ConstantRow> take() { return std::move(rows_); }

 private:
    uint16_t add(const std::vector<ConstantRow>& rows);
    std::vector<ConstantRow> rows_;
    std::map<std::vector<std::pair<int, uint32_t>>, uint16_t> known_;
};

// How a float or integer source may be decorated.
enum class SourceKind { Integer, Inverted, Float, Bits };

// The register operand of an address: a pair for 64 bits, one for 32 bits, or one that may be scaled ([R.X4 + ...]).
enum class AddressBase { Pair, Register, ScalableRegister };

struct Binder {
    const ParsedInstruction& parsed;
    Instruction& out;
    ConstantTable& constants;
    uint32_t register_count;
    uint16_t sink_row;
    RegisterOperands registers;  // those named so far

    Binder(const ParsedInstruction& p, Instruction& o, ConstantTable& c, uint32_t count, uint16_t sink)
        : parsed(p), out(o), constants(c), register_count(count), sink_row(sink), modifiers_(p.modifiers) {}

    // --- modifiers
    bool take(std::string_view modifier);
    // Index of the one modifier of the list that is present; `otherwise` if none is.
    int choose(std::initializer_list<std::string_view> choices, int otherwise = -1);
    // Same, but one must be present.
    int require(std::initializer_list<std::string_view> choices);
    Rounding rounding();
    std::string next_modifier();  // takes the first one left; empty if none

    // --- operands, in order
    bool more() const { return next_ < parsed.operands.size(); }
    size_t operands_left() const { return parsed.operands.size() - next_; }
    const Operand& peek(size_t ahead = 0) const;
    bool next_is(OperandKind kind) const { return more() && peek().kind == kind; }
    const Operand& next(OperandKind kind);
    const Operand& next_any();

    uint16_t destination(int count = 1);
    uint8_t predicate_destination();
    PredicateSource predicate_source();
    Source source(SourceKind kind = SourceKind::Bits, int words = 1);
    Source integer() { return source(SourceKind::Integer); }
    Source inverted() { return source(SourceKind::Inverted); }
    Source floating() { return source(SourceKind::Float); }
    Source bits(int words = 1) { return source(SourceKind::Bits, words); }
    Source double_precision();
    Source half_pair();
    Source zero();
    Source immediate_row(uint32_t value);
    // The row of a register operand that is read, with the given number of consecutive registers and alignment.
    uint16_t register_row(const Operand& operand, int count);
    uint32_t small_immediate(uint32_t limit);
    // [R + offset].
    void address(AddressBase base);

    void handler(Handler execute) { out.execute = execute; }
    // Checks that nothing is left over.
    void finish();
    [[noreturn]] void refuse(const std::string& why) const { fail(why); }
    // Takes a suffix off an operand's list; false if it is not there.
    static bool take_suffix(std::vector<std::string>& suffixes, std::string_view suffix);
    static void no_suffix(const Operand& operand);
    static void plain(const Operand& operand);

 private:
    uint16_t checked_row(const Operand& operand, int count) const;

    std::vector<std::string> modifiers_;
    size_t next_ = 0;
};

}  // namespace sm70emu
