#include "emulator/source_lines.h"

#include <cstring>

namespace sm70emu {
namespace {

constexpr uint64_t kInstructionBytes = 16;
constexpr size_t kMaxInstructions = size_t{1} << 24;  // of a section; a table that says more is damaged
constexpr size_t kMaxInlineDepth = 64;

// Opcodes of a line program (DWARF 2, section 6.2.5); those not named here take operands that nothing here needs.
enum Standard : uint8_t { kCopy = 1, kAdvancePc = 2, kAdvanceLine = 3, kSetFile = 4, kConstAddPc = 8, kFixedAddPc = 9 };
enum Extended : uint8_t {
    kEndSequence = 1,
    kSetAddress = 2,
    kInlinedAt = 0x90,  // NVIDIA: number of the row of the sequence, from 1, that called the inlined function; then the
                        // function's name
};

// Reads forward; past the end it yields zeros and `failed`.
class Cursor {
 public:
    Cursor(const std::vector<uint8_t>& bytes, size_t at, size_t end) : bytes_(bytes), at_(at), end_(end) {}

    size_t at() const { return at_; }
    bool more() const { return !failed_ && at_ < end_; }
    bool failed() const { return failed_; }
    void move_to(size_t at) {
        if (at < at_ || at > end_) failed_ = true;
        at_ = at;
    }
    template <class T>
    T take() {
        T value{};
        if (failed_ || end_ - at_ < sizeof(T)) {
            failed_ = true;
            return value;
        }
        std::memcpy(&value, bytes_.data() + at_, sizeof(T));
        at_ += sizeof(T);
        return value;
    }
    uint64_t unsigned_leb() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = take<uint8_t>();
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            if (!(byte & 0x80)) break;
        }
        return value;
    }
    int64_t signed_leb() {
        uint64_t value = 0;
        for (unsigned shift = 0; shift < 64;) {
            const auto byte = take<uint8_t>();
            value |= static_cast<uint64_t>(byte & 0x7f) << shift;
            shift += 7;
            if (byte & 0x80) continue;
            if ((byte & 0x40) && shift < 64) value |= ~uint64_t{0} << shift;
            break;
        }
        return static_cast<int64_t>(value);
    }
    std::string text() {
        std::string value;
        // Names go into reports and JSON: what does not belong into a file name there is replaced.
        for (char c; (c = take<char>()) != '\0' && !failed_;) {
            value += c >= ' ' && c <= '~' && c != '"' && c != '\\' ? c : '?';
        }
        return value;
    }

 private:
    const std::vector<uint8_t>& bytes_;
    size_t at_, end_;
    bool failed_ = false;
};

struct Row {
    std::string section;
    uint64_t address = 0;
    uint64_t file = 1;
    uint64_t line = 1;
    uint64_t inlined_at = 0;  // number of a row of the sequence, 0: not inlined
    size_t sequence = 0;      // index of the sequence's first row
    bool is_end = false;      // the first address past the sequence
};

// One compilation unit.
struct Unit {
    std::vector<std::string> files;  // by number
    std::vector<Row> rows;
};

std::vector<std::string> read_files(Cursor& header) {
    std::vector<std::string> folders{""}, files{""};
    for (std::string folder; !(folder = header.text()).empty();) folders.push_back(folder);
    for (std::string name; !(name = header.text()).empty();) {
        const uint64_t folder = header.unsigned_leb();
        header.unsigned_leb();  // time
        header.unsigned_leb();  // size
        const bool in_folder = folder > 0 && folder < folders.size() && name[0] != '/';
        files.push_back(in_folder ? folders[folder] + "/" + name : name);
    }
    return files;
}

Unit read_unit(Cursor& program, const std::map<size_t, std::string>& sections, uint16_t version) {
    Unit unit;
    const auto header_bytes = program.take<uint32_t>();
    const size_t first = program.at() + header_bytes;
    const auto unit_bytes = program.take<uint8_t>();  // bytes of the smallest instruction
    if (version >= 4) program.take<uint8_t>();
    program.take<uint8_t>();  // whether rows are statements at first
    const auto line_base = program.take<int8_t>();
    const auto line_range = program.take<uint8_t>(), opcode_base = program.take<uint8_t>();
    std::vector<uint8_t> operands(1);
    for (int opcode = 1; opcode < opcode_base; ++opcode) operands.push_back(program.take<uint8_t>());
    unit.files = read_files(program);
    program.move_to(first);
    if (line_range == 0) return unit;

    Row row;
    while (program.more()) {
        const auto opcode = program.take<uint8_t>();
        if (opcode >= opcode_base) {
            const int adjusted = opcode - opcode_base;
            row.address += static_cast<uint64_t>(adjusted / line_range) * unit_bytes;
            row.line += static_cast<uint64_t>(line_base + adjusted % line_range);
            unit.rows.push_back(row);
        } else if (opcode == 0) {
            const uint64_t bytes = program.unsigned_leb();
            const size_t next = program.at() + bytes;
            const auto what = program.take<uint8_t>();
            if (what == kEndSequence) {
                row.is_end = true;
                unit.rows.push_back(row);
                row = {};
                row.sequence = unit.rows.size();
            } else if (what == kSetAddress) {
                const auto section = sections.find(program.at());
                row.section = section == sections.end() ? "" : section->second;
                row.address = program.take<uint64_t>();
            } else if (what == kInlinedAt) {
                row.inlined_at = program.unsigned_leb();
            }
            program.move_to(next);
        } else if (opcode == kCopy) {
            unit.rows.push_back(row);
        } else if (opcode == kAdvancePc) {
            row.address += program.unsigned_leb() * unit_bytes;
        } else if (opcode == kAdvanceLine) {
            row.line += static_cast<uint64_t>(program.signed_leb());
        } else if (opcode == kSetFile) {
            row.file = program.unsigned_leb();
        } else if (opcode == kConstAddPc) {
            row.address += static_cast<uint64_t>((255 - opcode_base) / line_range) * unit_bytes;
        } else if (opcode == kFixedAddPc) {
            row.address += program.take<uint16_t>();
        } else {
            for (int i = 0; i < operands[opcode]; ++i) program.unsigned_leb();
        }
    }
    return unit;
}

SourceLocation locate(const Unit& unit, const Row& innermost) {
    SourceLocation location;
    const Row* row = &innermost;
    while (row->file < unit.files.size() && location.lines.size() < kMaxInlineDepth) {
        location.lines.push_back({unit.files[row->file], static_cast<uint32_t>(row->line)});
        if (row->inlined_at == 0 || row->inlined_at > unit.rows.size() - row->sequence) break;
        row = &unit.rows[row->sequence + row->inlined_at - 1];
    }
    return location;
}

}  // namespace

std::string SourceLocation::text() const {
    return lines.empty() ? "" : lines[0].file + ":" + std::to_string(lines[0].line);
}

std::map<std::string, std::vector<SourceLocation>> read_source_lines(const std::vector<uint8_t>& table,
                                                                     const std::map<size_t, std::string>& sections) {
    std::map<std::string, std::vector<SourceLocation>> found;
    size_t at = 0;
    while (at + 6 <= table.size()) {
        Cursor start(table, at, table.size());
        const auto length = start.take<uint32_t>();
        if (length > table.size() - start.at()) break;
        Cursor program(table, start.at(), start.at() + length);
        at = start.at() + length;
        const auto version = program.take<uint16_t>();
        if (version < 2 || version > 4) continue;
        const Unit unit = read_unit(program, sections, version);
        if (program.failed()) continue;
        // A row holds from its address to that of the next; of several at one address the last one does.
        for (size_t i = 0; i + 1 < unit.rows.size(); ++i) {
            const Row &row = unit.rows[i], &next = unit.rows[i + 1];
            const size_t first = row.address / kInstructionBytes, end = next.address / kInstructionBytes;
            if (row.is_end || row.section.empty() || first >= end || end > kMaxInstructions) continue;
            auto& locations = found[row.section];
            if (locations.size() < end) locations.resize(end);
            const SourceLocation location = locate(unit, row);
            for (size_t instruction = first; instruction < end; ++instruction) locations[instruction] = location;
        }
    }
    return found;
}

}  // namespace sm70emu
