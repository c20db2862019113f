#include "instruments/check/flow.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>

#include "emulator/error.h"

namespace sm70emu::check {
namespace {

// Opcode and modifiers of an instruction's text, without guard and operands.
struct Name {
    std::string_view opcode;
    std::vector<std::string_view> modifiers;

    explicit Name(std::string_view text) {
        if (!text.empty() && text[0] == '@') {
            text.remove_prefix(std::min(text.find(' '), text.size()));
            text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
        }
        text = text.substr(0, text.find(' '));
        size_t at = text.find('.');
        opcode = text.substr(0, at);
        while (at != std::string_view::npos) {
            text.remove_prefix(at + 1);
            at = text.find('.');
            modifiers.push_back(text.substr(0, at));
        }
    }
    bool has(std::string_view modifier) const {
        return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
    }
};

using Describe = void (*)(const Name& name, const Instruction& in, Flow& flow);

// Rule with the words read of a, b, c and written.
template <Rule R, int A, int B, int C, int Written>
void plain(const Name&, const Instruction&, Flow& flow) {
    flow.rule = R;
    flow.a = A;
    flow.b = B;
    flow.c = C;
    flow.written = Written;
}

template <int A, int B>
void decide(const Name&, const Instruction&, Flow& flow) {
    flow.decides = true;
    flow.a = A;
    flow.b = B;
}

void nothing(const Name&, const Instruction&, Flow&) {}

// ptxas leaves a NOP where it found that the lanes of a __syncwarp() are together already.
void nop(const Name&, const Instruction&, Flow& flow) {
    flow.event = Event::WarpMeeting;
}

void imad(const Name& name, const Instruction& in, Flow& flow) {
    const auto is_zero = [](const Source& s) { return s.space == 1 && s.row == 0; };
    if (name.has("WIDE")) return plain<Rule::WideProduct, 1, 1, 2, 2>(name, in, flow);
    if (name.has("HI")) return plain<Rule::Whole, 1, 1, 1, 1>(name, in, flow);
    if (is_zero(in.a) && is_zero(in.b) && !name.has("X")) return plain<Rule::CopyC, 0, 0, 1, 1>(name, in, flow);
    plain<Rule::Product, 1, 1, 1, 1>(name, in, flow);
}

void lea(const Name& name, const Instruction& in, Flow& flow) {
    if (name.has("HI") || name.has("X")) return plain<Rule::Whole, 1, 1, 1, 1>(name, in, flow);
    plain<Rule::ScaledSum, 1, 1, 0, 1>(name, in, flow);
}

void shf(const Name& name, const Instruction& in, Flow& flow) {
    plain<Rule::Shift, 1, 1, 1, 1>(name, in, flow);
    flow.shift =
        static_cast<uint8_t>((name.has("R") ? kShiftRight : 0) | (name.has("U64") || name.has("S64") ? kShift64 : 0) |
                             (name.has("S32") || name.has("S64") ? kShiftSigned : 0) |
                             (name.has("HI") ? kShiftHigh : 0) | (name.has("W") ? kShiftWraps : 0));
}
void prmt(const Name& name, const Instruction& in, Flow& flow) {
    for (const char* mode : {"F4E", "B4E", "RC8", "ECL", "ECR", "RC16"}) {
        if (name.has(mode)) return plain<Rule::Whole, 1, 1, 1, 1>(name, in, flow);
    }
    plain<Rule::Permute, 1, 1, 1, 1>(name, in, flow);
}

void sgxt(const Name& name, const Instruction& in, Flow& flow) {
    if (name.has("W")) return plain<Rule::Whole, 1, 1, 0, 1>(name, in, flow);
    plain<Rule::Extend, 1, 1, 0, 1>(name, in, flow);
    flow.sign_extends = !name.has("U32");
}

// HADD2 and HMUL2.
void halves_or_float(const Name& name, const Instruction& in, Flow& flow) {
    if (name.has("F32")) return plain<Rule::HalfToFloat, 1, 1, 0, 1>(name, in, flow);
    plain<Rule::Halves, 1, 1, 0, 1>(name, in, flow);
}

constexpr int kHalf = 0, kDouble = 2;  // as float types are numbered in the decoded instructions

void convert(Flow& flow, bool wide_source, uint8_t source_bytes, bool wide_result, uint8_t result_bytes) {
    flow.rule = Rule::Convert;
    flow.a = wide_source ? 2 : 1;
    flow.written = wide_result ? 2 : 1;
    flow.source_bytes = source_bytes;
    flow.result_bytes = result_bytes;
}
uint8_t half_bytes(const Source& s) {
    return s.half == 2 ? 0xc : 0x3;
}
// Bytes of a register that an integer of `bits` at place `part` takes.
uint8_t part_bytes(int bits, int64_t part) {
    if (bits >= 32) return 0xf;
    return static_cast<uint8_t>(((1 << bits / 8) - 1) << (part * bits / 8));
}

void f2f(const Name& name, const Instruction& in, Flow& flow) {
    std::vector<std::string_view> types;
    for (const auto modifier : name.modifiers) {
        if (modifier == "F16" || modifier == "F32" || modifier == "F64") types.push_back(modifier);
    }
    if (types.size() != 2) fail("F2F without two types");
    convert(flow, types[1] == "F64", types[1] == "F16" ? half_bytes(in.a) : 0xf, types[0] == "F64",
            types[0] == "F16" ? 0x3 : 0xf);
}
void frnd(const Name&, const Instruction& in, Flow& flow) {
    const bool half = in.immediate == kHalf, wide = in.immediate == kDouble;
    convert(flow, wide, half ? half_bytes(in.a) : 0xf, wide, half ? 0x3 : 0xf);
}
void f2i(const Name&, const Instruction& in, Flow& flow) {
    const auto from = static_cast<int>(in.immediate);
    convert(flow, from == kDouble, from == kHalf ? half_bytes(in.a) : 0xf, in.width == 64, 0xf);
}
void i2f(const Name&, const Instruction& in, Flow& flow) {
    const auto to = static_cast<int>(in.immediate);
    convert(flow, in.width == 64, part_bytes(in.width, in.offset), to == kDouble, to == kHalf ? 0x3 : 0xf);
}
void i2i(const Name&, const Instruction& in, Flow& flow) {
    convert(flow, false, part_bytes(in.width, in.offset), false, 0xf);
}

void cs2r(const Name&, const Instruction& in, Flow& flow) {
    flow.rule = Rule::Fresh;
    flow.written = in.width / 4;
}

void bmov(const Name&, const Instruction& in, Flow& flow) {
    // Into a register nothing is read; into a barrier register the lanes to wait for are.
    const bool from_register = in.a.space == 0;
    flow.rule = from_register ? Rule::Decide : Rule::Fresh;
    flow.decides = from_register;
    flow.a = from_register ? 1 : 0;
    flow.written = from_register ? 0 : 1;
}

void bar(const Name&, const Instruction&, Flow& flow) {
    flow.event = Event::Barrier;
    flow.decides = true;
    flow.a = flow.b = 1;
}
void warpsync(const Name&, const Instruction&, Flow& flow) {
    flow.event = Event::WarpSync;
    flow.decides = true;
    flow.a = 1;
}
void exit(const Name&, const Instruction&, Flow& flow) {
    flow.event = Event::Exit;
    flow.decides = true;
}

template <Rule R, int A, int B, int C, int Written>
void meeting(const Name& name, const Instruction& in, Flow& flow) {
    plain<R, A, B, C, Written>(name, in, flow);
    flow.event = Event::WarpMeeting;
}
void shfl(const Name& name, const Instruction& in, Flow& flow) {
    meeting<Rule::Shuffle, 1, 1, 1, 1>(name, in, flow);
    flow.shuffle = name.has("UP")     ? ShuffleMode::Up
                   : name.has("DOWN") ? ShuffleMode::Down
                   : name.has("BFLY") ? ShuffleMode::Butterfly
                                      : ShuffleMode::Index;
}
void match(const Name&, const Instruction& in, Flow& flow) {
    flow.rule = Rule::Match;
    flow.event = Event::WarpMeeting;
    flow.a = in.width / 4;
    flow.written = 1;
}

template <MemorySpace S>
void load(const Name& name, const Instruction& in, Flow& flow) {
    flow.rule = Rule::Load;
    flow.space = S;
    flow.a = S == MemorySpace::Global || S == MemorySpace::Generic ? 2 : 1;
    flow.written = static_cast<uint8_t>(std::max(1, in.width / 4));
    flow.sign_extends = name.has("S8") || name.has("S16");
}
template <MemorySpace S>
void store(const Name&, const Instruction& in, Flow& flow) {
    flow.rule = Rule::Store;
    flow.space = S;
    flow.decides = true;
    flow.a = S == MemorySpace::Global || S == MemorySpace::Generic ? 2 : 1;
    flow.b = static_cast<uint8_t>(std::max(1, in.width / 4));
}
template <MemorySpace S>
void atomic(const Name& name, const Instruction& in, Flow& flow) {
    const uint8_t words = in.width / 4;
    flow.rule = Rule::Atomic;
    flow.space = S;
    flow.decides = true;
    flow.a = S == MemorySpace::Shared ? 1 : 2;
    flow.b = words;
    flow.c = name.has("CAS") || name.has("CAST") ? words : 0;
    flow.written = name.opcode == "RED" ? 0 : words;
    flow.exchanges = name.has("EXCH");
}

const std::unordered_map<std::string_view, Describe>& table() {
    static const std::unordered_map<std::string_view, Describe> entries = {
        // integer
        {"IADD3", plain<Rule::Sum, 1, 1, 1, 1>},
        {"IMAD", imad},
        {"ISETP", plain<Rule::Compare, 1, 1, 0, 0>},
        {"IMNMX", plain<Rule::Whole, 1, 1, 0, 1>},
        {"SEL", plain<Rule::Choice, 1, 1, 0, 1>},
        {"LEA", lea},
        {"IDP", plain<Rule::Whole, 1, 1, 1, 1>},
        {"VABSDIFF", plain<Rule::Whole, 1, 1, 1, 1>},
        // bits
        {"LOP3", plain<Rule::Logic, 1, 1, 1, 1>},
        {"SHF", shf},
        {"PRMT", prmt},
        {"SGXT", sgxt},
        {"BMSK", plain<Rule::Whole, 1, 1, 0, 1>},
        {"POPC", plain<Rule::Whole, 1, 0, 0, 1>},
        {"FLO", plain<Rule::Whole, 1, 0, 0, 1>},
        {"BREV", plain<Rule::Reverse, 1, 0, 0, 1>},
        {"IABS", plain<Rule::Whole, 1, 0, 0, 1>},
        {"MOV", plain<Rule::CopyA, 1, 0, 0, 1>},
        // floating point
        {"FADD", plain<Rule::Whole, 1, 1, 0, 1>},
        {"FMUL", plain<Rule::Whole, 1, 1, 0, 1>},
        {"FFMA", plain<Rule::Whole, 1, 1, 1, 1>},
        {"FSETP", plain<Rule::Compare, 1, 1, 0, 0>},
        {"FSET", plain<Rule::Whole, 1, 1, 0, 1>},
        {"FSEL", plain<Rule::Choice, 1, 1, 0, 1>},
        {"FMNMX", plain<Rule::Whole, 1, 1, 0, 1>},
        {"FCHK", plain<Rule::Whole, 1, 1, 0, 0>},
        {"MUFU", plain<Rule::Whole, 1, 0, 0, 1>},
        {"HADD2", halves_or_float},
        {"HMUL2", halves_or_float},
        {"HFMA2", plain<Rule::Halves, 1, 1, 1, 1>},
        {"HSETP2", plain<Rule::HalfCompare, 1, 1, 0, 0>},
        {"HSET2", plain<Rule::HalfSet, 1, 1, 0, 1>},
        {"DADD", plain<Rule::Whole, 2, 2, 0, 2>},
        {"DMUL", plain<Rule::Whole, 2, 2, 0, 2>},
        {"DFMA", plain<Rule::Whole, 2, 2, 2, 2>},
        {"DSETP", plain<Rule::Compare, 2, 2, 0, 0>},
        {"HMMA", meeting<Rule::TensorCore, 2, 2, 2, 2>},
        // conversions
        {"F2F", f2f},
        {"FRND", frnd},
        {"F2I", f2i},
        {"I2F", i2f},
        {"I2I", i2i},
        // control
        {"BRA", decide<0, 0>},
        {"BRX", decide<1, 0>},
        {"CALL", decide<1, 0>},
        {"RET", decide<1, 0>},
        {"EXIT", exit},
        {"BPT", decide<0, 0>},
        {"LEPC", plain<Rule::Fresh, 0, 0, 0, 2>},
        {"BSSY", decide<0, 0>},
        {"BSYNC", decide<0, 0>},
        {"BREAK", decide<0, 0>},
        {"BMOV", bmov},
        {"WARPSYNC", warpsync},
        {"YIELD", nothing},
        {"NOP", nop},
        {"NANOSLEEP", nothing},
        {"DEPBAR", nothing},
        {"CCTL", nothing},
        {"ERRBAR", nothing},
        {"MEMBAR", nothing},
        {"BAR", bar},
        {"B2R", plain<Rule::Fresh, 0, 0, 0, 1>},
        // exchange
        {"VOTE", meeting<Rule::Vote, 0, 0, 0, 1>},
        {"MATCH", match},
        {"SHFL", shfl},
        {"PLOP3", plain<Rule::PredicateLogic, 0, 0, 0, 0>},
        {"P2R", plain<Rule::FromPredicates, 1, 1, 0, 1>},
        {"R2P", plain<Rule::ToPredicates, 1, 1, 0, 0>},
        {"S2R", plain<Rule::Fresh, 0, 0, 0, 1>},
        {"CS2R", cs2r},
        // memory
        {"LDG", load<MemorySpace::Global>},
        {"STG", store<MemorySpace::Global>},
        {"LD", load<MemorySpace::Generic>},
        {"ST", store<MemorySpace::Generic>},
        {"LDS", load<MemorySpace::Shared>},
        {"STS", store<MemorySpace::Shared>},
        {"LDL", load<MemorySpace::Local>},
        {"STL", store<MemorySpace::Local>},
        {"LDC", load<MemorySpace::Constant>},
        {"QSPC", plain<Rule::Whole, 2, 0, 0, 1>},
        {"ATOMG", atomic<MemorySpace::Global>},
        {"ATOM", atomic<MemorySpace::Generic>},
        {"RED", atomic<MemorySpace::Global>},
        {"ATOMS", atomic<MemorySpace::Shared>},
    };
    return entries;
}

void collect_rows(const Source& source, int words, Flow& flow) {
    if (source.space != 0) return;
    for (int word = 0; word < words; ++word) flow.rows[flow.row_count++] = static_cast<uint16_t>(source.row + word);
}

}  // namespace

std::vector<Flow> flows_of(const DecodedKernel& kernel) {
    constexpr uint16_t kStackPointer = 1;
    std::vector<Flow> flows(kernel.instructions.size());
    for (size_t i = 0; i + 1 < flows.size(); ++i) {  // the last is the emulator's own sentinel
        const Name name(kernel.texts[i]);
        const auto entry = table().find(name.opcode);
        if (entry == table().end()) {
            fail(kernel.name + "+" + hex(16 * i) + ": " + kernel.texts[i] +
                 ": the checkers do not know how data flows through it");
        }
        const Instruction& in = kernel.instructions[i];
        Flow& flow = flows[i];
        entry->second(name, in, flow);
        collect_rows(in.a, flow.a, flow);
        collect_rows(in.b, flow.b, flow);
        collect_rows(in.c, flow.c, flow);
        flow.moves_stack_pointer =
            flow.written && in.destination <= kStackPointer && kStackPointer < in.destination + flow.written;
    }
    return flows;
}

}  // namespace sm70emu::check
