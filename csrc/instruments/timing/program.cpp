#include "instruments/timing/program.h"

#include <algorithm>
#include <string_view>

namespace sm70emu::timing {
namespace {

bool has(const ParsedInstruction& in, std::string_view modifier) {
    return std::find(in.modifiers.begin(), in.modifiers.end(), modifier) != in.modifiers.end();
}

bool is_one_of(std::string_view opcode, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), opcode) != names.end();
}

Path path_of(const ParsedInstruction& in, Pipe pipe) {
    const std::string_view op = in.opcode;
    if (op == "HMMA") return Path::Tensor;
    if (is_one_of(op, {"LDS", "STS", "ATOMS"})) return Path::Shared;
    if (is_one_of(op, {"LDG", "LD", "LDL"})) return Path::GlobalLoad;
    if (is_one_of(op, {"STG", "ST", "STL"})) return Path::GlobalStore;
    if (is_one_of(op, {"ATOMG", "ATOM", "RED"})) return Path::GlobalAtomic;
    if (op == "LDC") return Path::Constant;
    if (op == "BAR") return Path::Barrier;
    if (op == "MEMBAR") return Path::MemoryBarrier;
    if (op == "DEPBAR") return Path::Wait;
    if (op == "EXIT") return Path::Exit;
    if (is_one_of(op, {"BRA", "BRX", "CALL", "RET"})) return Path::Branch;
    if (pipe == Pipe::Xu) return Path::Xu;
    if (pipe == Pipe::Fp64) return Path::Double;
    if (pipe == Pipe::Lsu || is_one_of(op, {"B2R", "MATCH"})) return Path::Exchange;
    return Path::Fixed;
}

// Registers are in two banks, by their lowest bit, that deliver two operands per cycle each (Jia et al. 2018). Operands
// that the previous instruction kept with .reuse at the same position need no read. HMMA reads its pairs over two
// cycles.
int bank_conflicts(const ParsedInstruction& in, const ParsedInstruction* previous) {
    if (in.opcode == "HMMA" || in.operands.size() < 4) return 0;
    int reads[2] = {0, 0};
    int position = 0;
    for (size_t i = 1; i < in.operands.size(); ++i) {
        const Operand& operand = in.operands[i];
        if (operand.kind == OperandKind::Predicate) continue;
        const int at = position++;
        if (operand.kind != OperandKind::Register || operand.index < 0) continue;
        if (previous && previous->control.reuse >> at & 1) {
            int before = 0;
            bool kept = false;
            for (size_t j = 1; j < previous->operands.size(); ++j) {
                if (previous->operands[j].kind == OperandKind::Predicate) continue;
                if (before++ == at) {
                    kept = previous->operands[j].kind == OperandKind::Register &&
                           previous->operands[j].index == operand.index;
                }
            }
            if (kept) continue;
        }
        ++reads[operand.index & 1];
    }
    return std::max(reads[0], reads[1]) > 2 ? 1 : 0;
}

// "SB0" and the count of DEPBAR.LE.
void read_depbar(const ParsedInstruction& in, ModelOperation& out) {
    for (const auto& operand : in.operands) {
        if (operand.kind == OperandKind::Special && operand.text.size() == 3 && operand.text.substr(0, 2) == "SB") {
            out.waited_barrier = static_cast<uint8_t>(operand.text[2] - '0');
        }
        if (operand.kind == OperandKind::Immediate) out.wait_until_count = static_cast<uint8_t>(operand.value);
    }
}

}  // namespace

Program make_program(const LoadedKernel& kernel, const Machine& machine) {
    Program program;
    ParsedInstruction previous;
    bool has_previous = false;
    for (const auto& listed : kernel.section->instructions) {
        ParsedInstruction in = parse_instruction(listed, *kernel.section);
        ModelOperation out;
        out.control = in.control;
        const PipeUse use = pipe_use(in);
        out.pipe = use.pipe;
        out.issue_cycles = static_cast<uint8_t>(std::max(1u, use.cycles));
        out.path = path_of(in, use.pipe);
        out.access_kind = memory_use(in.opcode).kind;
        if (out.path == Path::Tensor) {
            out.issue_cycles = static_cast<uint8_t>(use.cycles / 2 * static_cast<uint32_t>(machine.tensor_issue));
        }
        out.bank_conflicts = static_cast<uint8_t>(bank_conflicts(in, has_previous ? &previous : nullptr) *
                                                  static_cast<int>(machine.bank_conflict_cycles));
        out.past_l1 = has(in, "GPU") || has(in, "SYS") ? has(in, "STRONG") : false;
        out.local = in.opcode == "LDL" || in.opcode == "STL";
        out.arrives_only = in.opcode == "BAR" && has(in, "ARV");
        if (out.path == Path::Wait) read_depbar(in, out);
        program.push_back(out);
        // A yield gives the operand cache to another warp.
        has_previous = !in.control.yield_hint;
        previous = std::move(in);
    }
    program.emplace_back();  // the emulator's sentinel
    return program;
}

}  // namespace sm70emu::timing
