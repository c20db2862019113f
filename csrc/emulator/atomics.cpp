// Atomics on global, shared and generic addresses. Blocks run on several threads, so each is one atomic operation of
// the host; lanes of a warp go in ascending order.
#include <iterator>

#include "emulator/access.h"
#include "emulator/binder.h"
#include "emulator/opcodes.h"

namespace sm70emu {
namespace {

enum class AtomicOperation : uint8_t { Add, Min, Max, Inc, Dec, And, Or, Xor, Exchange, CompareAndSwap };
enum class ValueType : uint8_t { U32, S32, U64, S64, F32, F64, F16x2 };

struct AtomicForm {
    AtomicOperation operation;
    ValueType type;
    MemorySpace space;
    bool returns_success;  // ATOMS.CAST: 1 if the swap was done
};

// Instruction::immediate holds the form.
uint32_t pack(AtomicForm f) {
    return static_cast<uint32_t>(f.operation) | static_cast<uint32_t>(f.type) << 8 |
           static_cast<uint32_t>(f.space) << 16 | static_cast<uint32_t>(f.returns_success) << 24;
}
AtomicForm unpack(uint32_t v) {
    return {static_cast<AtomicOperation>(v & 0xff), static_cast<ValueType>(v >> 8 & 0xff),
            static_cast<MemorySpace>(v >> 16 & 0xff), (v >> 24 & 1) != 0};
}

bool is_float(ValueType type) {
    return type == ValueType::F32 || type == ValueType::F64 || type == ValueType::F16x2;
}
uint32_t width_of(ValueType type) {
    return type == ValueType::U64 || type == ValueType::S64 || type == ValueType::F64 ? 8 : 4;
}

float flushed(float x) {
    return (as_bits(x) & 0x7f800000u) ? x : as_float(as_bits(x) & 0x80000000u);
}

uint32_t add_half(uint32_t a, uint32_t b) {
    return float_to_half(half_to_float(static_cast<uint16_t>(a)) + half_to_float(static_cast<uint16_t>(b)));
}

template <class Word>
Word combine(AtomicForm form, Word old, Word operand, Word compare) {
    using Signed = std::make_signed_t<Word>;
    const bool is_signed = form.type == ValueType::S32 || form.type == ValueType::S64;
    switch (form.operation) {
        case AtomicOperation::Add:
            if (form.type == ValueType::F32) {
                const float sum = flushed(flushed(as_float(static_cast<uint32_t>(old))) +
                                          flushed(as_float(static_cast<uint32_t>(operand))));
                return sum == sum ? as_bits(sum) : kCanonicalNaN32;
            }
            if (form.type == ValueType::F64) {
                const double sum = as_double(old) + as_double(operand);
                return Word(sum == sum ? as_bits(sum) : kCanonicalNaN64);
            }
            if (form.type == ValueType::F16x2) {
                return add_half(static_cast<uint32_t>(old) & 0xffff, static_cast<uint32_t>(operand) & 0xffff) |
                       add_half(static_cast<uint32_t>(old) >> 16, static_cast<uint32_t>(operand) >> 16) << 16;
            }
            return old + operand;
        case AtomicOperation::Min: return (is_signed ? Signed(operand) < Signed(old) : operand < old) ? operand : old;
        case AtomicOperation::Max: return (is_signed ? Signed(operand) > Signed(old) : operand > old) ? operand : old;
        case AtomicOperation::Inc: return old >= operand ? 0 : old + 1;
        case AtomicOperation::Dec: return old == 0 || old > operand ? operand : old - 1;
        case AtomicOperation::And: return old & operand;
        case AtomicOperation::Or: return old | operand;
        case AtomicOperation::Xor: return old ^ operand;
        case AtomicOperation::Exchange: return operand;
        case AtomicOperation::CompareAndSwap: break;
    }
    return old == compare ? operand : old;
}

template <class Word>
Word apply(uint8_t* where, AtomicForm form, Word operand, Word compare) {
    auto* word = reinterpret_cast<Word*>(where);
    Word old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(word, &old, combine(form, old, operand, compare), false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
    }
    return old;
}

uint64_t read_rows(const uint32_t* row, int lane, uint32_t bytes) {
    return bytes == 8 ? static_cast<uint64_t>(row[kLanes + lane]) << 32 | row[lane] : row[lane];
}

void run_atomic(Core& core, const Instruction& in, uint32_t exec) {
    const AtomicForm form = unpack(in.immediate);
    const uint32_t bytes = width_of(form.type);
    const LaneAddresses addresses =
        form.space == MemorySpace::Shared ? window_addresses(core, in) : global_addresses(core, in);
    const uint32_t *operand_row = core.row(in.b), *compare_row = core.row(in.c);
    uint32_t* d = core.destination(in.destination);
    uint32_t performed = 0;
    for (int lane = 0; lane < kLanes; ++lane) {
        if (!lane_in(exec, lane)) continue;
        uint64_t address = addresses.at[lane];
        bool in_shared = form.space == MemorySpace::Shared;
        if (form.space == MemorySpace::Generic) {
            if (address - kSharedWindow < kWindowBytes) {
                in_shared = true;
                address -= kSharedWindow;
            } else if (address - kLocalWindow < kWindowBytes) {
                refuse_access(core, lane, "atomic on stack memory");
            }
            if (in_shared && is_float(form.type)) {
                // Shared memory has no float atomics: the predicate sends the lane to a compare-and-swap loop.
                if (in.predicate0 == kPredicateSink) refuse_access(core, lane, "float atomic on shared memory");
                continue;
            }
        }
        uint8_t* where = in_shared ? shared_pointer(core, lane, address, bytes)
                                   : global_pointer(core, lane, address, bytes, AccessKind::Atomic);
        const uint64_t operand = read_rows(operand_row, lane, bytes), compare = read_rows(compare_row, lane, bytes);
        const uint64_t old =
            bytes == 8 ? apply<uint64_t>(where, form, operand, compare)
                       : apply<uint32_t>(where, form, static_cast<uint32_t>(operand), static_cast<uint32_t>(compare));
        performed |= 1u << lane;
        d[lane] = form.returns_success ? static_cast<uint32_t>(old == compare) : static_cast<uint32_t>(old);
        if (bytes == 8) d[kLanes + lane] = form.returns_success ? 0 : static_cast<uint32_t>(old >> 32);
    }
    core.write_predicate(in.predicate0, performed, exec);
}

AtomicOperation take_operation(Binder& b) {
    return static_cast<AtomicOperation>(
        b.require({"ADD", "MIN", "MAX", "INC", "DEC", "AND", "OR", "XOR", "EXCH", "CAS"}));
}

ValueType take_type(Binder& b, AtomicOperation operation) {
    if (b.take("F32")) {
        if (!b.take("FTZ") || !b.take("RN")) b.refuse("F32 atomic without .FTZ.RN");
        if (operation != AtomicOperation::Add) b.refuse("F32 atomic other than ADD");
        return ValueType::F32;
    }
    if (b.take("F64")) {
        if (!b.take("RN") || operation != AtomicOperation::Add) b.refuse("F64 atomic other than ADD.RN");
        return ValueType::F64;
    }
    if (b.take("F16x2")) {
        if (!b.take("RN") || operation != AtomicOperation::Add) b.refuse("F16x2 atomic other than ADD.RN");
        return ValueType::F16x2;
    }
    if (b.take("64") || b.take("U64")) return ValueType::U64;
    if (b.take("S64")) return ValueType::S64;
    if (b.take("S32")) return ValueType::S32;
    return ValueType::U32;
}

void take_scope(Binder& b) {
    if (!b.take("E")) b.refuse(b.parsed.opcode + " without .E");
    b.choose({"STRONG", "WEAK"});
    b.choose({"CTA", "SM", "GPU", "SYS"});
}

void finish_atomic(Binder& b, AtomicForm form, bool returns) {
    const int registers = width_of(form.type) == 8 ? 2 : 1;
    if (returns && b.next_is(OperandKind::Predicate)) b.out.predicate0 = b.predicate_destination();
    b.out.destination = returns ? b.destination(registers) : b.sink_row;
    b.address(form.space == MemorySpace::Shared ? AddressBase::ScalableRegister : AddressBase::Pair);
    if (form.operation == AtomicOperation::CompareAndSwap) b.out.c = b.bits(registers);
    b.out.b = b.bits(registers);
    b.out.width = static_cast<uint8_t>(4 * registers);
    b.out.immediate = pack(form);
    b.handler(&run_atomic);
}

void bind_global(Binder& b, MemorySpace space, bool returns) {
    take_scope(b);
    const AtomicOperation operation = take_operation(b);
    finish_atomic(b, {operation, take_type(b, operation), space, false}, returns);
}
void bind_atomg(Binder& b) {
    bind_global(b, MemorySpace::Global, true);
}
void bind_atom(Binder& b) {
    bind_global(b, MemorySpace::Generic, true);
}
void bind_red(Binder& b) {
    bind_global(b, MemorySpace::Global, false);
}

void bind_atoms(Binder& b) {
    if (b.take("CAST")) {
        if (!b.take("SPIN")) b.refuse("ATOMS.CAST without .SPIN");
        const ValueType type = b.take("64") ? ValueType::U64 : ValueType::U32;
        finish_atomic(b, {AtomicOperation::CompareAndSwap, type, MemorySpace::Shared, true}, true);
        return;
    }
    const AtomicOperation operation = take_operation(b);
    finish_atomic(b, {operation, take_type(b, operation), MemorySpace::Shared, false}, true);
}

constexpr Opcode kOpcodes[] = {{"ATOMG", bind_atomg}, {"ATOM", bind_atom}, {"RED", bind_red}, {"ATOMS", bind_atoms}};

}  // namespace

OpcodeFamily atomic_family() {
    return {kOpcodes, std::size(kOpcodes)};
}

}  // namespace sm70emu
