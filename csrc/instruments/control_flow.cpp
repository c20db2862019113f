#include "instruments/control_flow.h"

#include <algorithm>
#include <string_view>

namespace sm70emu {
namespace {

constexpr int64_t kInstructionBytes = 16;

bool has(const ParsedInstruction& instruction, std::string_view modifier) {
    const auto& modifiers = instruction.modifiers;
    return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
}

// Whether lanes may go on after a branch, return or exit: it has a guard, or a predicate among its operands.
bool is_conditional(const ParsedInstruction& instruction) {
    if (instruction.guard >= 0) return true;
    for (const auto& operand : instruction.operands) {
        if (operand.kind == OperandKind::Predicate && operand.index >= 0) return true;
    }
    return has(instruction, "CONV") || has(instruction, "DIV");
}

const Operand* label_of(const ParsedInstruction& instruction) {
    for (const auto& operand : instruction.operands) {
        if (operand.kind == OperandKind::Label) return &operand;
    }
    return nullptr;
}

// The labels in nvdisasm's remark (*"BRANCH_TARGETS .L_x_1,.L_x_2"*); all labels of the section without one.
std::vector<uint32_t> indirect_targets(const std::string& text, const ListedSection& section) {
    std::vector<uint32_t> targets;
    constexpr std::string_view remark = "BRANCH_TARGETS ";
    const size_t found = text.find(remark);
    if (found == std::string::npos) {
        for (const auto& [label, offset] : section.labels) {
            targets.push_back(static_cast<uint32_t>(offset / kInstructionBytes));
        }
        return targets;
    }
    size_t begin = found + remark.size();
    const size_t end = text.find('"', begin);
    while (begin < end && begin < text.size()) {
        const size_t comma = std::min(text.find(',', begin), end);
        const auto label = section.labels.find(text.substr(begin, comma - begin));
        if (label != section.labels.end()) targets.push_back(static_cast<uint32_t>(label->second / kInstructionBytes));
        begin = comma == std::string::npos ? text.size() : comma + 1;
    }
    return targets;
}

}  // namespace

std::vector<uint32_t> ControlFlow::body(uint32_t entry) const {
    std::vector<bool> seen(successors.size());
    std::vector<uint32_t> waiting{entry}, found;
    while (!waiting.empty()) {
        const uint32_t at = waiting.back();
        waiting.pop_back();
        if (at >= seen.size() || seen[at]) continue;
        seen[at] = true;
        found.push_back(at);
        for (const uint32_t next : successors[at]) waiting.push_back(next);
    }
    std::sort(found.begin(), found.end());
    return found;
}

std::vector<ParsedInstruction> parse_section(const ListedSection& section) {
    std::vector<ParsedInstruction> code;
    code.reserve(section.instructions.size());
    for (const auto& listed : section.instructions) code.push_back(parse_instruction(listed, section));
    return code;
}

ControlFlow control_flow(const std::vector<ParsedInstruction>& code, const ListedSection& section) {
    ControlFlow flow;
    flow.successors.resize(code.size());
    flow.callees.assign(code.size(), -1);
    flow.calls_unknown.resize(code.size());
    flow.returns.resize(code.size());
    for (uint32_t i = 0; i < code.size(); ++i) {
        const ParsedInstruction& instruction = code[i];
        const std::string& opcode = instruction.opcode;
        const Operand* label = label_of(instruction);
        auto& next = flow.successors[i];
        bool falls_through = true;
        if (opcode == "BRA" && label) {
            next.push_back(static_cast<uint32_t>(label->value / kInstructionBytes));
            falls_through = is_conditional(instruction);
        } else if (opcode == "BRX") {
            next = indirect_targets(instruction.text, section);
            falls_through = is_conditional(instruction);
        } else if (opcode == "CALL") {
            // With a register operand the label is only what the register's value is added to.
            if (label && instruction.operands[0].kind == OperandKind::Label) {
                flow.callees[i] = label->value / kInstructionBytes;
            } else {
                flow.calls_unknown[i] = true;
            }
        } else if (opcode == "RET") {
            flow.returns[i] = true;
            falls_through = is_conditional(instruction);
        } else if (opcode == "EXIT" || opcode == "BPT") {
            falls_through = is_conditional(instruction);
        }
        if (falls_through && i + 1 < code.size()) next.push_back(i + 1);
        next.erase(std::remove_if(next.begin(), next.end(), [&](uint32_t at) { return at >= code.size(); }),
                   next.end());
    }
    return flow;
}

}  // namespace sm70emu
