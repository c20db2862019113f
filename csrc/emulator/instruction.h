// A decoded instruction, ready to execute: operands are rows of 32 lanes, either in the warp's registers or in a
// table of broadcast constants, so that one handler serves register, constant and immediate forms alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/listing.h"
#include "emulator/source_lines.h"

namespace sm70emu {

struct Core;
struct Instruction;

constexpr int kLanes = 32;
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kPredicateTrue = 7;
constexpr int kPredicateSink = 8;
constexpr int kMaxRegisters = 256;

// Executes one instruction for the lanes of `exec` (never empty).
using Handler = void (*)(Core& core, const Instruction& instruction, uint32_t exec);

// A source row and the sign treatment of its values: (x & keep) ^ flip for floats; (x ^ flip) - flip negates integers.
struct Source {
    uint16_t row = 0;
    uint8_t space = 1;  // 0 registers, 1 broadcast constants
    uint8_t half = 0;   // packed halves: 0 = H1_H0, 1 = H0_H0, 2 = H1_H1, 3 = one single-precision value
    uint32_t keep = ~0u;
    uint32_t flip = 0;
};

struct PredicateSource {
    uint8_t index = kPredicateTrue;
    bool negated = false;
};

struct Instruction {
    Handler execute = nullptr;
    Source a, b, c;
    uint16_t destination = 0;  // register row; writes to RZ go to a sink row
    uint16_t destination2 = 0;
    uint8_t predicate0 = kPredicateSink, predicate1 = kPredicateSink;  // written predicates
    PredicateSource p0, p1, p2;
    PredicateSource guard;
    uint8_t mode = 0;   // meaning is the handler's
    uint8_t width = 4;  // bytes of a memory access
    uint32_t immediate = 0;
    int64_t offset = 0;  // address displacement, or the index of a branch target
};

// A row of the broadcast table: an immediate, or a word of a constant bank.
struct ConstantRow {
    int bank = -1;       // -1: immediate
    uint32_t value = 0;  // immediate bits or byte offset in the bank
};

// Consecutive general registers, as wide as the instruction uses them; RZ is not among them.
struct RegisterRange {
    uint8_t first = 0;
    uint8_t count = 1;
};

// The general registers that an instruction names, operand by operand.
struct RegisterOperands {
    std::vector<RegisterRange> written, read;
};

struct DecodedKernel {
    std::string name;
    std::vector<Instruction> instructions;
    std::vector<ConstantRow> constants;
    std::vector<std::string> texts;  // SASS of each instruction
    std::vector<ControlCode> controls;
    std::vector<SourceLocation> sources;      // where each instruction comes from; empty without line information
    std::vector<RegisterOperands> registers;  // of each instruction
    uint32_t register_rows = 0;               // rows to allocate, sinks included
};

struct Binder;

// One entry of the opcode table: checks operands and modifiers of a parsed instruction and fills the decoded one.
struct Opcode {
    std::string_view name;
    void (*bind)(Binder& binder);
};

struct OpcodeFamily {
    const Opcode* entries;
    size_t count;
};

}  // namespace sm70emu
