// How data flows through an instruction: which rows it reads and writes and by which rule what is known about the
// sources becomes what is known about the results. Found once for each kernel, by opcode; an opcode that is not in the
// table is refused.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/instruction.h"
#include "emulator/memory.h"

namespace sm70emu::check {

enum class Rule : uint8_t {
    Decide,       // writes nothing: the sources decide where the kernel goes, or are not read
    Fresh,        // a value that depends on no source
    Whole,        // any bad byte makes every byte of the result bad
    Sum,          // arithmetic carries spread badness upward from the lowest bad byte
    Product,      // IMAD: as Sum; powers of two shift, zero cleans
    WideProduct,  // IMAD.WIDE
    CopyA,
    CopyC,
    Logic,        // LOP3, bit by bit
    Choice,       // SEL, FSEL: the chosen source
    Shift,        // SHF
    ScaledSum,    // LEA
    Permute,      // PRMT, byte by byte
    Extend,       // SGXT
    Reverse,      // BREV
    Compare,      // a predicate; the one that it is combined with may decide it alone
    Halves,       // packed half arithmetic
    HalfToFloat,  // HADD2.F32
    HalfCompare,
    HalfSet,
    Convert,
    Vote,
    Match,
    Shuffle,
    PredicateLogic,
    FromPredicates,  // P2R
    ToPredicates,    // R2P
    TensorCore,
    Load,
    Store,
    Atomic,
};

enum class ShuffleMode : uint8_t { Index, Up, Down, Butterfly };
enum ShiftMode : uint8_t { kShiftRight = 1, kShift64 = 2, kShiftSigned = 4, kShiftHigh = 8, kShiftWraps = 16 };

// What the observer does beside the data flow.
enum class Event : uint8_t { None, Barrier, WarpSync, WarpMeeting, Exit };

struct Flow {
    Rule rule = Rule::Decide;
    MemorySpace space = MemorySpace::None;
    Event event = Event::None;
    bool decides = false;              // its guard, p0 and register sources lead to what can be seen: branch, store
    bool moves_stack_pointer = false;  // writes R1
    bool sign_extends = false;         // of a load narrower than a register, or SGXT
    bool exchanges = false;            // ATOM.EXCH: the new value is the operand
    uint8_t shift = 0;                 // ShiftMode bits of SHF
    ShuffleMode shuffle = ShuffleMode::Index;
    uint8_t a = 0, b = 0, c = 0;  // words read of each source
    uint8_t written = 0;          // words of the destination
    uint8_t source_bytes = 0xf;   // of a conversion's source
    uint8_t result_bytes = 0xf;   // of a conversion's result: what is not in it is zero
    uint8_t row_count = 0;
    uint16_t rows[6] = {};  // register rows read
};

// One for each instruction of the kernel.
std::vector<Flow> flows_of(const DecodedKernel& kernel);

}  // namespace sm70emu::check
