#include "emulator/binder.h"

#include <algorithm>

namespace sm70emu {

ConstantTable::ConstantTable() {
    // Rows 0..3 are zero, so that RZ serves as a source of any width.
    for (int i = 0; i < 4; ++i) rows_.push_back({-1, 0});
}

uint16_t ConstantTable::add(const std::vector<ConstantRow>& rows) {
    std::vector<std::pair<int, uint32_t>> key;
    for (const auto& row : rows) key.emplace_back(row.bank, row.value);
    const auto found = known_.find(key);
    if (found != known_.end()) return found->second;
    if (rows_.size() + rows.size() > 65000) fail("too many distinct constants");
    const auto first = static_cast<uint16_t>(rows_.size());
    rows_.insert(rows_.end(), rows.begin(), rows.end());
    known_[key] = first;
    return first;
}

uint16_t ConstantTable::bank_words(int bank, uint32_t byte_offset, int words) {
    if (byte_offset % 4) fail("constant at a misaligned offset");
    std::vector<ConstantRow> rows;
    for (int i = 0; i < words; ++i) rows.push_back({bank, byte_offset + 4 * static_cast<uint32_t>(i)});
    return add(rows);
}

uint16_t ConstantTable::immediate(uint32_t low) {
    return add({{-1, low}});
}

uint16_t ConstantTable::immediate_pair(uint32_t low, uint32_t high) {
    return add({{-1, low}, {-1, high}});
}

bool Binder::take(std::string_view modifier) {
    const auto found = std::find(modifiers_.begin(), modifiers_.end(), modifier);
    if (found == modifiers_.end()) return false;
    modifiers_.erase(found);
    return true;
}

int Binder::choose(std::initializer_list<std::string_view> choices, int otherwise) {
    int index = 0;
    for (const auto choice : choices) {
        if (take(choice)) return index;
        ++index;
    }
    return otherwise;
}

int Binder::require(std::initializer_list<std::string_view> choices) {
    const int chosen = choose(choices);
    if (chosen < 0) refuse("a required modifier is missing");
    return chosen;
}

Rounding Binder::rounding() {
    const int chosen = choose({"RN", "RM", "RP", "RZ"}, 0);
    return static_cast<Rounding>(chosen);
}

std::string Binder::next_modifier() {
    if (modifiers_.empty()) return {};
    std::string first = modifiers_.front();
    modifiers_.erase(modifiers_.begin());
    return first;
}

const Operand& Binder::peek(size_t ahead) const {
    if (next_ + ahead >= parsed.operands.size()) refuse("an operand is missing");
    return parsed.operands[next_ + ahead];
}

const Operand& Binder::next_any() {
    const Operand& operand = peek();
    ++next_;
    return operand;
}

const Operand& Binder::next(OperandKind kind) {
    const Operand& operand = next_any();
    if (operand.kind != kind) refuse("operand '" + operand.text + "' is of an unexpected kind");
    return operand;
}

bool Binder::take_suffix(std::vector<std::string>& suffixes, std::string_view suffix) {
    const auto found = std::find(suffixes.begin(), suffixes.end(), suffix);
    if (found == suffixes.end()) return false;
    suffixes.erase(found);
    return true;
}

void Binder::no_suffix(const Operand& operand) {
    if (!operand.suffixes.empty()) fail("operand '" + operand.text + "' carries ." + operand.suffixes.front());
}

void Binder::plain(const Operand& operand) {
    no_suffix(operand);
    if (operand.negate || operand.absolute || operand.invert || operand.scale_shift) {
        fail("operand '" + operand.text + "' carries a sign or scale that has no meaning here");
    }
}

uint16_t Binder::checked_row(const Operand& operand, int count) const {
    if (static_cast<uint32_t>(operand.index + count) > register_count) {
        fail("register of '" + operand.text + "' is beyond the kernel's " + std::to_string(register_count));
    }
    const int alignment = count == 3 ? 4 : count;
    if (operand.index % alignment) fail("register of '" + operand.text + "' is not aligned to its width");
    return static_cast<uint16_t>(operand.index);
}

uint16_t Binder::register_row(const Operand& operand, int count) {
    const uint16_t row = checked_row(operand, count);
    registers.read.push_back({static_cast<uint8_t>(row), static_cast<uint8_t>(count)});
    return row;
}

uint16_t Binder::destination(int count) {
    const Operand& operand = next(OperandKind::Register);
    plain(operand);
    if (operand.index < 0) return sink_row;
    const uint16_t row = checked_row(operand, count);
    registers.written.push_back({static_cast<uint8_t>(row), static_cast<uint8_t>(count)});
    return row;
}

uint8_t Binder::predicate_destination() {
    const Operand& operand = next(OperandKind::Predicate);
    plain(operand);
    if (operand.index > 6) refuse("predicate '" + operand.text + "'");
    return operand.index < 0 ? static_cast<uint8_t>(kPredicateSink) : static_cast<uint8_t>(operand.index);
}

PredicateSource Binder::predicate_source() {
    const Operand& operand = next(OperandKind::Predicate);
    no_suffix(operand);
    if (operand.negate || operand.absolute || operand.index > 6) refuse("predicate '" + operand.text + "'");
    return {operand.index < 0 ? static_cast<uint8_t>(kPredicateTrue) : static_cast<uint8_t>(operand.index),
            operand.invert};
}

Source Binder::zero() {
    return Source{};
}

Source Binder::immediate_row(uint32_t value) {
    Source source;
    source.row = constants.immediate(value);
    return source;
}

Source Binder::source(SourceKind kind, int words) {
    const Operand& operand = next_any();
    no_suffix(operand);
    Source source;
    switch (operand.kind) {
        case OperandKind::Register:
            if (operand.index >= 0) {
                source.row = register_row(operand, words);
                source.space = 0;
            }
            break;
        case OperandKind::Immediate: {
            // Bits come from the encoding; the text of an integer must say the same.
            const uint32_t bits = parsed.immediate32();
            if (!operand.is_float_text && static_cast<uint32_t>(operand.value) != bits) {
                refuse("immediate '" + operand.text + "' does not match the encoding");
            }
            source.row = words == 2 ? constants.immediate_pair(bits, bits >> 31 ? ~0u : 0u) : constants.immediate(bits);
            return source;
        }
        case OperandKind::Constant:
            if (operand.index >= 0) refuse("indexed constant '" + operand.text + "'");
            source.row = constants.bank_words(operand.bank, static_cast<uint32_t>(operand.value), words);
            break;
        default: refuse("operand '" + operand.text + "' is of an unexpected kind");
    }
    if (kind == SourceKind::Float) {
        if (operand.invert) refuse("operand '" + operand.text + "'");
        if (operand.absolute) source.keep = 0x7fffffffu;
        if (operand.negate) source.flip = 0x80000000u;
    } else if (kind == SourceKind::Integer) {
        if (operand.absolute || operand.invert) refuse("operand '" + operand.text + "'");
        if (operand.negate) source.flip = ~0u;
    } else if (kind == SourceKind::Inverted) {
        if (operand.absolute || operand.negate) refuse("operand '" + operand.text + "'");
        if (operand.invert) source.flip = ~0u;
    } else if (operand.absolute || operand.negate || operand.invert) {
        refuse("operand '" + operand.text + "'");
    }
    return source;
}

Source Binder::double_precision() {
    const Operand& operand = peek();
    if (operand.kind == OperandKind::Immediate) {
        next_any();
        Source source;  // the encoding holds the upper word
        source.row = constants.immediate_pair(0, parsed.immediate32());
        return source;
    }
    return source(SourceKind::Float, 2);
}

Source Binder::half_pair() {
    const Operand& operand = next_any();
    auto suffixes = operand.suffixes;
    Source source;
    if (operand.invert) refuse("operand '" + operand.text + "'");
    switch (operand.kind) {
        case OperandKind::Register:
            if (operand.index >= 0) {
                source.row = register_row(operand, 1);
                source.space = 0;
            }
            break;
        case OperandKind::Immediate: {
            // Two halves are printed, one 32-bit field is encoded (upper half first in the text).
            const Operand& second = next_any();
            if (second.kind != OperandKind::Immediate) refuse("operand '" + second.text + "'");
            source.row = constants.immediate(parsed.immediate32());
            return source;
        }
        case OperandKind::Constant:
            if (operand.index >= 0) refuse("indexed constant '" + operand.text + "'");
            source.row = constants.bank_words(operand.bank, static_cast<uint32_t>(operand.value), 1);
            break;
        default: refuse("operand '" + operand.text + "' is of an unexpected kind");
    }
    if (take_suffix(suffixes, "H0_H0") || take_suffix(suffixes, "H0")) {
        source.half = 1;
    } else if (take_suffix(suffixes, "H1_H1") || take_suffix(suffixes, "H1")) {
        source.half = 2;
    } else if (take_suffix(suffixes, "F32")) {
        source.half = 3;
    }
    if (!suffixes.empty()) refuse("operand '" + operand.text + "'");
    const uint32_t signs = source.half == 3 ? 0x80000000u : 0x80008000u;
    if (operand.absolute) source.keep = ~signs;
    if (operand.negate) source.flip = signs;
    return source;
}

uint32_t Binder::small_immediate(uint32_t limit) {
    const Operand& operand = next(OperandKind::Immediate);
    plain(operand);
    if (operand.is_float_text || operand.value < 0 || operand.value > static_cast<int64_t>(limit)) {
        refuse("immediate '" + operand.text + "'");
    }
    return static_cast<uint32_t>(operand.value);
}

void Binder::address(AddressBase base) {
    const Operand& operand = next(OperandKind::Address);
    no_suffix(operand);
    if (operand.scale_shift && base != AddressBase::ScalableRegister) refuse("scaled address '" + operand.text + "'");
    if (operand.index >= 0) {
        out.a.row = register_row(operand, base == AddressBase::Pair ? 2 : 1);
        out.a.space = 0;
    }
    out.mode = static_cast<uint8_t>(operand.scale_shift);
    out.offset = operand.value;
}

void Binder::finish() {
    if (!modifiers_.empty()) refuse("modifier ." + modifiers_.front() + " is not implemented for " + parsed.opcode);
    if (more()) refuse("operand '" + peek().text + "' is not implemented for " + parsed.opcode);
    if (!out.execute) refuse("no implementation was chosen");
}

}  // namespace sm70emu
