#include "emulator/listing.h"

#include <cctype>
#include <cstdlib>

#include "emulator/error.h"

namespace sm70emu {
namespace {

std::string_view trim(std::string_view s) {
    while (!s.empty() && std::isspace(static_cast<unsigned char>(s.front()))) s.remove_prefix(1);
    while (!s.empty() && std::isspace(static_cast<unsigned char>(s.back()))) s.remove_suffix(1);
    return s;
}

std::vector<std::string> split(std::string_view s, char separator) {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t i = 0; i <= s.size(); ++i) {
        if (i < s.size() && s[i] != separator) continue;
        parts.emplace_back(s.substr(begin, i - begin));
        begin = i + 1;
    }
    return parts;
}

bool parse_integer(std::string_view s, int64_t& value) {
    bool negative = false;
    if (!s.empty() && (s[0] == '-' || s[0] == '+')) {
        negative = s[0] == '-';
        s.remove_prefix(1);
    }
    if (s.size() < 3 || s[0] != '0' || s[1] != 'x') return false;
    uint64_t magnitude = 0;
    for (char ch : s.substr(2)) {
        if (!std::isxdigit(static_cast<unsigned char>(ch))) return false;
        const int digit = std::isdigit(static_cast<unsigned char>(ch)) ? ch - '0' : std::tolower(ch) - 'a' + 10;
        magnitude = magnitude * 16 + static_cast<uint64_t>(digit);
    }
    value = negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
    return true;
}

// A register-like word: prefix letter followed by Z/T (the constant one) or a number.
bool parse_numbered(std::string_view s, char prefix, char constant, int& index) {
    if (s.size() < 2 || s[0] != prefix) return false;
    if (s.size() == 2 && s[1] == constant) {
        index = -1;
        return true;
    }
    int value = 0;
    for (char ch : s.substr(1)) {
        if (!std::isdigit(static_cast<unsigned char>(ch))) return false;
        value = value * 10 + (ch - '0');
    }
    index = value;
    return true;
}

void take_suffixes(std::string_view s, Operand& operand, std::string& head) {
    auto parts = split(s, '.');
    head = parts[0];
    for (size_t i = 1; i < parts.size(); ++i) {
        if (parts[i] != "reuse") operand.suffixes.push_back(parts[i]);
    }
}

// The inside of [...]: terms joined by '+', at most one register.
void parse_address(std::string_view inside, Operand& operand) {
    if (inside.empty()) fail("empty address");
    for (const auto& term : split(inside, '+')) {
        int64_t value = 0;
        if (parse_integer(term, value)) {
            operand.value += value;
            continue;
        }
        std::string head;
        Operand reg;
        take_suffixes(term, reg, head);
        int index = 0;
        if (!parse_numbered(head, 'R', 'Z', index) || operand.index >= 0) fail("address '" + std::string(inside) + "'");
        operand.index = index;
        for (const auto& suffix : reg.suffixes) {
            if (suffix == "X4") {
                operand.scale_shift = 2;
            } else if (suffix == "X8") {
                operand.scale_shift = 3;
            } else if (suffix == "X16") {
                operand.scale_shift = 4;
            } else {
                operand.suffixes.push_back(suffix);
            }
        }
    }
}

bool looks_like_float(std::string_view s) {
    if (!s.empty() && (s[0] == '-' || s[0] == '+')) s.remove_prefix(1);
    if (s == "INF" || s == "QNAN" || s == "SNAN") return true;
    if (s.empty() || !std::isdigit(static_cast<unsigned char>(s[0]))) return false;
    for (char ch : s) {
        if (!std::isdigit(static_cast<unsigned char>(ch)) && ch != '.' && ch != 'e' && ch != '+' && ch != '-') {
            return false;
        }
    }
    return true;
}

Operand parse_operand(std::string_view text, const std::unordered_map<std::string, int64_t>& labels) {
    Operand operand;
    operand.text = std::string(text);
    std::string_view s = text;
    if (s.size() > 3 && s[0] == '`' && s[1] == '(' && s.back() == ')') {
        const std::string label(s.substr(2, s.size() - 3));
        const auto found = labels.find(label);
        if (found == labels.end()) fail("unknown label " + label);
        operand.kind = OperandKind::Label;
        operand.value = found->second;
        return operand;
    }
    if (looks_like_float(s)) {
        operand.is_float_text = true;
        return operand;
    }
    if (parse_integer(s, operand.value)) return operand;
    for (; !s.empty() && (s[0] == '-' || s[0] == '~' || s[0] == '!'); s.remove_prefix(1)) {
        if (s[0] == '-') {
            operand.negate = true;
        } else {
            operand.invert = true;
        }
    }
    if (!s.empty() && s[0] == '|') {
        const size_t end = s.rfind('|');
        if (end == 0) fail("operand '" + operand.text + "'");
        operand.absolute = true;
        for (const auto& suffix : split(s.substr(end + 1), '.')) {
            if (!suffix.empty() && suffix != "reuse") operand.suffixes.push_back(suffix);
        }
        s = s.substr(1, end - 1);
    }
    if (s.size() > 2 && s[0] == 'c' && s[1] == '[') {
        const size_t bank_end = s.find(']'), open = s.find('[', bank_end), close = s.find(']', open);
        int64_t bank = 0;
        if (close == std::string_view::npos || !parse_integer(s.substr(2, bank_end - 2), bank)) {
            fail("constant '" + operand.text + "'");
        }
        operand.kind = OperandKind::Constant;
        operand.bank = static_cast<int>(bank);
        parse_address(s.substr(open + 1, close - open - 1), operand);
        for (const auto& suffix : split(s.substr(close + 1), '.')) {
            if (!suffix.empty() && suffix != "reuse") operand.suffixes.push_back(suffix);
        }
        return operand;
    }
    if (!s.empty() && s[0] == '[') {
        operand.kind = OperandKind::Address;
        if (s.back() != ']') fail("address '" + operand.text + "'");
        parse_address(s.substr(1, s.size() - 2), operand);
        return operand;
    }
    if (s.substr(0, 2) == "SR") {
        operand.kind = OperandKind::Special;
        operand.text = std::string(s);
        return operand;
    }
    std::string head;
    take_suffixes(s, operand, head);
    if (parse_numbered(head, 'R', 'Z', operand.index)) {
        operand.kind = OperandKind::Register;
    } else if (parse_numbered(head, 'P', 'T', operand.index)) {
        operand.kind = OperandKind::Predicate;
    } else if (head[0] == 'B' && parse_numbered(head, 'B', '\0', operand.index)) {
        operand.kind = OperandKind::ConvergenceBarrier;
    } else {
        operand.kind = OperandKind::Special;  // a name that only its opcode can judge
        operand.text = std::string(s);
    }
    return operand;
}

void parse_text(ParsedInstruction& instruction, const std::unordered_map<std::string, int64_t>& labels) {
    std::string body = instruction.text;
    for (size_t open; (open = body.find("(*")) != std::string::npos;) {  // nvdisasm's remarks on branch targets
        const size_t close = body.find("*)", open);
        if (close == std::string::npos) fail("unterminated remark");
        body.erase(open, close + 2 - open);
    }
    for (size_t gap; (gap = body.find("] [")) != std::string::npos;) body.erase(gap + 1, 1);  // c[0x0] [0x160].H0_H0
    std::string_view s = trim(body);
    if (!s.empty() && s[0] == '@') {
        size_t end = s.find(' ');
        std::string_view guard = s.substr(1, end - 1);
        if (!guard.empty() && guard[0] == '!') {
            instruction.guard_negated = true;
            guard.remove_prefix(1);
        }
        if (!parse_numbered(guard, 'P', 'T', instruction.guard)) fail("guard '" + std::string(guard) + "'");
        s = trim(s.substr(end));
    }
    const size_t end = s.find(' ');
    auto parts = split(s.substr(0, end), '.');
    instruction.opcode = parts[0];
    instruction.modifiers.assign(parts.begin() + 1, parts.end());
    if (end == std::string_view::npos) return;
    s = s.substr(end);
    // Operands are separated by commas, and in branches by spaces; neither occurs inside one.
    size_t begin = 0;
    for (size_t i = 0; i <= s.size(); ++i) {
        if (i < s.size() && s[i] != ',' && s[i] != ' ') continue;
        if (i > begin) instruction.operands.push_back(parse_operand(s.substr(begin, i - begin), labels));
        begin = i + 1;
    }
}

// The 64-bit word of a "/* 0x.... */" comment at the end of a line.
bool take_encoding(std::string_view& line, uint64_t& word) {
    const size_t open = line.rfind("/* 0x");
    if (open == std::string_view::npos) return false;
    word = std::strtoull(std::string(line.substr(open + 5, 16)).c_str(), nullptr, 16);
    line = trim(line.substr(0, open));
    return true;
}

}  // namespace

ControlCode decode_control(uint64_t high) {
    const uint64_t c = high >> 41;
    ControlCode control;
    control.stall = c & 0xf;
    control.yield_hint = ((c >> 4) & 1) == 0;
    control.write_barrier = (c >> 5) & 7;
    control.read_barrier = (c >> 8) & 7;
    control.wait_mask = (c >> 11) & 0x3f;
    control.reuse = (c >> 17) & 0xf;
    return control;
}

std::map<std::string, ListedSection> read_listing(std::string_view listing) {
    std::map<std::string, ListedSection> sections;
    ListedSection* section = nullptr;
    std::vector<std::string> pending_labels;
    size_t begin = 0;
    while (begin < listing.size()) {
        size_t end = listing.find('\n', begin);
        if (end == std::string_view::npos) end = listing.size();
        std::string_view line = trim(listing.substr(begin, end - begin));
        begin = end + 1;
        if (line.substr(0, 4) == "//--") {
            section = nullptr;
            continue;
        }
        if (line.substr(0, 9) == ".section\t" || line.substr(0, 9) == ".section ") {
            std::string_view name = trim(line.substr(9));
            name = name.substr(0, name.find(','));
            section = nullptr;
            if (name.substr(0, 6) == ".text.") {
                section = &sections[std::string(name.substr(6))];
                section->name = std::string(name.substr(6));
            }
            pending_labels.clear();
            continue;
        }
        if (!section || line.empty()) continue;
        if (line[0] != '/') {
            // A label names the offset of the next instruction; directives start with '.' but do not end in ':'.
            if (line.back() == ':') pending_labels.emplace_back(line.substr(0, line.size() - 1));
            continue;
        }
        uint64_t word = 0;
        if (!take_encoding(line, word)) continue;
        auto& instructions = section->instructions;
        if (line.empty()) {
            if (instructions.empty()) fail("listing: encoding before the first instruction");
            instructions.back().high = word;
            continue;
        }
        const size_t close = line.find("*/");
        if (line.substr(0, 2) != "/*" || close == std::string_view::npos) fail("listing: '" + std::string(line) + "'");
        ListedInstruction instruction;
        instruction.offset =
            static_cast<uint32_t>(std::strtoul(std::string(line.substr(2, close - 2)).c_str(), nullptr, 16));
        instruction.low = word;
        if (instruction.offset != instructions.size() * 16) {
            fail("listing of " + section->name + " is not contiguous at " + hex(instruction.offset));
        }
        std::string_view text = trim(line.substr(close + 2));
        if (!text.empty() && text.back() == ';') text = trim(text.substr(0, text.size() - 1));
        instruction.text = std::string(text);
        for (const auto& label : pending_labels) section->labels[label] = instruction.offset;
        pending_labels.clear();
        instructions.push_back(std::move(instruction));
    }
    return sections;
}

ParsedInstruction parse_instruction(const ListedInstruction& listed, const ListedSection& section) {
    ParsedInstruction instruction;
    instruction.offset = listed.offset;
    instruction.low = listed.low;
    instruction.high = listed.high;
    instruction.text = listed.text;
    instruction.control = decode_control(listed.high);
    parse_text(instruction, section.labels);
    return instruction;
}

}  // namespace sm70emu
