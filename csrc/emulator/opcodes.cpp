#include "emulator/opcodes.h"

#include <string_view>
#include <unordered_map>

#include "emulator/binder.h"

namespace sm70emu {
namespace {

using Table = std::unordered_map<std::string_view, const Opcode*>;

Table build_table(bool avx2) {
    std::vector<OpcodeFamily> families = avx2 ? arithmetic_families_avx2() : arithmetic_families_generic();
    families.push_back(avx2 ? tensor_family_avx2() : tensor_family_scalar());
    families.push_back(control_family());
    families.push_back(exchange_family());
    families.push_back(memory_family());
    families.push_back(atomic_family());
    Table table;
    for (const auto& family : families) {
        for (size_t i = 0; i < family.count; ++i) table.emplace(family.entries[i].name, &family.entries[i]);
    }
    return table;
}

const Table& table_for(InstructionSet instruction_set) {
    static const Table best = build_table(machine_has_avx2()), portable = build_table(false);
    return instruction_set == InstructionSet::Best ? best : portable;
}

RegisterOperands decode_instruction(const Table& table, const ParsedInstruction& parsed, uint32_t registers,
                                    uint16_t sink_row, ConstantTable& constants, Instruction& out) {
    const auto opcode = table.find(parsed.opcode);
    if (opcode == table.end()) fail("unknown opcode " + parsed.opcode);
    if (parsed.guard > 6) fail("unknown guard predicate");
    out.guard = {parsed.guard < 0 ? static_cast<uint8_t>(kPredicateTrue) : static_cast<uint8_t>(parsed.guard),
                 parsed.guard_negated};
    Binder binder(parsed, out, constants, registers, sink_row);
    opcode->second->bind(binder);
    binder.finish();
    return std::move(binder.registers);
}

void run_past_end(Core&, const Instruction&, uint32_t) {
    fail("execution ran past the end of the kernel");
}

}  // namespace

bool machine_has_avx2() {
    static const bool has =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    return has;
}

DecodedKernel decode_kernel(const ListedSection& section, uint32_t registers, InstructionSet instruction_set) {
    const Table& table = table_for(instruction_set);
    DecodedKernel kernel;
    kernel.name = section.name;
    const auto sink_row = static_cast<uint16_t>(registers);
    kernel.register_rows = registers + 4;  // RZ as a destination of up to four registers
    ConstantTable constants;
    kernel.instructions.reserve(section.instructions.size() + 1);
    for (const auto& listed : section.instructions) {
        Instruction instruction;
        try {
            const ParsedInstruction parsed = parse_instruction(listed, section);
            kernel.registers.push_back(decode_instruction(table, parsed, registers, sink_row, constants, instruction));
            kernel.controls.push_back(parsed.control);
        } catch (const EmulatorError& error) {
            fail(section.name + "+" + hex(listed.offset) + ": " + listed.text + ": " + error.what());
        }
        kernel.instructions.push_back(instruction);
        kernel.texts.push_back(listed.text);
    }
    Instruction sentinel;
    sentinel.execute = run_past_end;
    kernel.instructions.push_back(sentinel);
    kernel.texts.emplace_back("(end)");
    kernel.controls.emplace_back();
    kernel.registers.emplace_back();
    kernel.constants = constants.take();
    return kernel;
}

void check_instruction(const ParsedInstruction& parsed, uint32_t registers) {
    ConstantTable constants;
    Instruction instruction;
    decode_instruction(table_for(InstructionSet::Best), parsed, registers, static_cast<uint16_t>(registers), constants,
                       instruction);
}

}  // namespace sm70emu
