// The text of `nvdisasm -c -hex`, and its lines parsed into instructions with operands. Syntax only: what an opcode
// means, and which modifiers it may have, is in the opcode table. Lines are parsed when their kernel is
// decoded.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sm70emu {

enum class OperandKind : uint8_t {
    Register,
    Predicate,
    ConvergenceBarrier,
    Immediate,
    Constant,
    Address,
    Special,
    Label
};

struct Operand {
    OperandKind kind = OperandKind::Immediate;
    std::string text;
    int index = -1;         // register, predicate or barrier number; -1 for RZ/PT or no register
    bool negate = false;    // leading '-'
    bool absolute = false;  // |x|
    bool invert = false;    // leading '~' or '!'
    bool is_float_text = false;
    int64_t value = 0;  // integer immediate, byte offset of a constant or address, target of a label
    int bank = 0;
    int scale_shift = 0;                // [R.X4 + ...]
    std::vector<std::string> suffixes;  // .reuse is dropped: it is in the control code
};

// Scheduling information in bits 41.. of the high word, kept for timing.
struct ControlCode {
    uint8_t stall = 0;
    bool yield_hint = false;
    uint8_t write_barrier = 7;
    uint8_t read_barrier = 7;
    uint8_t wait_mask = 0;
    uint8_t reuse = 0;
};

struct ParsedInstruction {
    uint32_t offset = 0;  // bytes from the start of the section
    uint64_t low = 0, high = 0;
    std::string text;  // as printed, without guard padding and encoding
    std::string opcode;
    std::vector<std::string> modifiers;
    std::vector<Operand> operands;
    int guard = -1;  // predicate number, -1 for PT
    bool guard_negated = false;
    ControlCode control;

    uint32_t immediate32() const { return static_cast<uint32_t>(low >> 32); }
};

// An instruction as listed: its text, not yet parsed.
struct ListedInstruction {
    uint32_t offset = 0;
    uint64_t low = 0, high = 0;
    std::string text;
};

struct ListedSection {
    std::string name;  // kernel name
    std::vector<ListedInstruction> instructions;
    std::unordered_map<std::string, int64_t> labels;  // byte offsets
};

// The .text sections of a listing.
std::map<std::string, ListedSection> read_listing(std::string_view listing);

// Parses one line; throws if it is not understood.
ParsedInstruction parse_instruction(const ListedInstruction& listed, const ListedSection& section);

ControlCode decode_control(uint64_t high);

}  // namespace sm70emu
