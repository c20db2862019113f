#include "instruments/pipes.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace sm70emu {
namespace {

// Which pipe: Nsight Compute's documentation, "Pipelines" (FMA also takes IMAD and IDP; ALU the other integer, logic,
// compare and select instructions; XU conversions and transcendental functions; LSU also shuffles and special register
// reads; ADU constant loads and block barriers; CBU branches and convergence).
//
// Cycles: 32 lanes over the lanes that a sub-core has for the instruction. CUDA C++ programming guide, "Arithmetic
// Instructions", results per clock and SM of compute capability 7.0: 64 for FP32, integer and logic, 128 halves
// (64 lanes of half2), 32 for FP64, 16 for conversions, transcendental functions, POPC, FLO, BREV. Jia et al.,
// "Dissecting the NVIDIA Volta GPU architecture via microbenchmarking", 2018; the spacing that ptxas keeps between
// dependent-free instructions of one pipe confirms FMA, ALU, XU and IMAD.WIDE.
constexpr uint32_t kHalfWarpLanes = 2;     // 16 lanes per sub-core
constexpr uint32_t kQuarterWarpLanes = 4;  // 8
constexpr uint32_t kEighthWarpLanes = 8;   // 4
constexpr uint32_t kWavefront = 4;         // one wavefront per cycle and SM, shared by four sub-cores
// No published figure: taken as a half-warp pipe's, so that they never look like a bound.
constexpr uint32_t kAssumed = 2;

const std::unordered_map<std::string_view, PipeUse>& table() {
    static const std::unordered_map<std::string_view, PipeUse> uses = {
        {"FADD", {Pipe::Fma, kHalfWarpLanes}},
        {"FMUL", {Pipe::Fma, kHalfWarpLanes}},
        {"FFMA", {Pipe::Fma, kHalfWarpLanes}},
        {"IMAD", {Pipe::Fma, kHalfWarpLanes}},  // .WIDE and .HI below
        {"IDP", {Pipe::Fma, kHalfWarpLanes}},

        {"IADD3", {Pipe::Alu, kHalfWarpLanes}},
        {"ISETP", {Pipe::Alu, kHalfWarpLanes}},
        {"IMNMX", {Pipe::Alu, kHalfWarpLanes}},
        {"IABS", {Pipe::Alu, kHalfWarpLanes}},
        {"VABSDIFF", {Pipe::Alu, kHalfWarpLanes}},
        {"LEA", {Pipe::Alu, kHalfWarpLanes}},
        {"LOP3", {Pipe::Alu, kHalfWarpLanes}},
        {"SHF", {Pipe::Alu, kHalfWarpLanes}},
        {"PRMT", {Pipe::Alu, kHalfWarpLanes}},
        {"SGXT", {Pipe::Alu, kHalfWarpLanes}},
        {"BMSK", {Pipe::Alu, kHalfWarpLanes}},
        {"SEL", {Pipe::Alu, kHalfWarpLanes}},
        {"MOV", {Pipe::Alu, kHalfWarpLanes}},
        {"FSETP", {Pipe::Alu, kHalfWarpLanes}},
        {"FSET", {Pipe::Alu, kHalfWarpLanes}},
        {"FSEL", {Pipe::Alu, kHalfWarpLanes}},
        {"FMNMX", {Pipe::Alu, kHalfWarpLanes}},
        {"PLOP3", {Pipe::Alu, kHalfWarpLanes}},
        {"P2R", {Pipe::Alu, kHalfWarpLanes}},
        {"R2P", {Pipe::Alu, kHalfWarpLanes}},
        {"VOTE", {Pipe::Alu, kHalfWarpLanes}},
        {"CS2R", {Pipe::Alu, kHalfWarpLanes}},

        {"HADD2", {Pipe::Fp16, kHalfWarpLanes}},
        {"HMUL2", {Pipe::Fp16, kHalfWarpLanes}},
        {"HFMA2", {Pipe::Fp16, kHalfWarpLanes}},
        {"HSETP2", {Pipe::Fp16, kHalfWarpLanes}},
        {"HSET2", {Pipe::Fp16, kHalfWarpLanes}},

        {"DADD", {Pipe::Fp64, kQuarterWarpLanes}},
        {"DMUL", {Pipe::Fp64, kQuarterWarpLanes}},
        {"DFMA", {Pipe::Fp64, kQuarterWarpLanes}},
        {"DSETP", {Pipe::Fp64, kQuarterWarpLanes}},

        {"MUFU", {Pipe::Xu, kEighthWarpLanes}},
        {"F2F", {Pipe::Xu, kEighthWarpLanes}},
        {"F2I", {Pipe::Xu, kEighthWarpLanes}},
        {"I2F", {Pipe::Xu, kEighthWarpLanes}},
        {"I2I", {Pipe::Xu, kEighthWarpLanes}},
        {"FRND", {Pipe::Xu, kEighthWarpLanes}},
        {"POPC", {Pipe::Xu, kEighthWarpLanes}},
        {"FLO", {Pipe::Xu, kEighthWarpLanes}},
        {"BREV", {Pipe::Xu, kEighthWarpLanes}},
        {"FCHK", {Pipe::Xu, kEighthWarpLanes}},

        // An m8n8k4 of all four quad-pairs takes 8 cycles: 64 FMA per cycle and tensor core (NVIDIA, "Tesla V100 GPU
        // architecture"), two of them a sub-core. It is four steps with a single-precision accumulator, two with half.
        {"HMMA", {Pipe::Tensor, 2}},

        // Shared memory is one wavefront for each register that is moved (below); other accesses are one request.
        {"LDG", {Pipe::Lsu, kWavefront}},
        {"STG", {Pipe::Lsu, kWavefront}},
        {"LD", {Pipe::Lsu, kWavefront}},
        {"ST", {Pipe::Lsu, kWavefront}},
        {"LDS", {Pipe::Lsu, kWavefront}},
        {"STS", {Pipe::Lsu, kWavefront}},
        {"LDL", {Pipe::Lsu, kWavefront}},
        {"STL", {Pipe::Lsu, kWavefront}},
        {"ATOM", {Pipe::Lsu, kWavefront}},
        {"ATOMG", {Pipe::Lsu, kWavefront}},
        {"ATOMS", {Pipe::Lsu, kWavefront}},
        {"RED", {Pipe::Lsu, kWavefront}},
        {"SHFL", {Pipe::Lsu, kWavefront}},
        {"S2R", {Pipe::Lsu, kWavefront}},
        {"QSPC", {Pipe::Lsu, kWavefront}},
        {"CCTL", {Pipe::Lsu, kWavefront}},
        {"MEMBAR", {Pipe::Lsu, kWavefront}},
        {"ERRBAR", {Pipe::Lsu, kWavefront}},

        {"LDC", {Pipe::Adu, kAssumed}},
        {"BAR", {Pipe::Adu, kAssumed}},
        {"B2R", {Pipe::Adu, kAssumed}},
        {"MATCH", {Pipe::Adu, kAssumed}},

        {"BRA", {Pipe::Cbu, kAssumed}},
        {"BRX", {Pipe::Cbu, kAssumed}},
        {"CALL", {Pipe::Cbu, kAssumed}},
        {"RET", {Pipe::Cbu, kAssumed}},
        {"EXIT", {Pipe::Cbu, kAssumed}},
        {"BPT", {Pipe::Cbu, kAssumed}},
        {"LEPC", {Pipe::Cbu, kAssumed}},
        {"BSSY", {Pipe::Cbu, kAssumed}},
        {"BSYNC", {Pipe::Cbu, kAssumed}},
        {"BREAK", {Pipe::Cbu, kAssumed}},
        {"BMOV", {Pipe::Cbu, kAssumed}},
        {"WARPSYNC", {Pipe::Cbu, kAssumed}},
        {"YIELD", {Pipe::Cbu, kAssumed}},
        {"NANOSLEEP", {Pipe::Cbu, kAssumed}},

        {"NOP", {Pipe::None, 0}},
        {"DEPBAR", {Pipe::None, 0}},
    };
    return uses;
}

bool has(const ParsedInstruction& instruction, std::string_view modifier) {
    const auto& modifiers = instruction.modifiers;
    return std::find(modifiers.begin(), modifiers.end(), modifier) != modifiers.end();
}

}  // namespace

const char* pipe_name(Pipe pipe) {
    static constexpr const char* names[kPipes] = {"fma",    "alu", "fp16", "fp64", "xu",
                                                  "tensor", "lsu", "adu",  "cbu",  "none"};
    return names[static_cast<int>(pipe)];
}

PipeUse pipe_use(const ParsedInstruction& instruction) {
    const auto found = table().find(instruction.opcode);
    if (found == table().end()) return {Pipe::None, 0, false};
    PipeUse use = found->second;
    if (instruction.opcode == "IMAD" && (has(instruction, "WIDE") || has(instruction, "HI"))) {
        use.cycles = 2 * kHalfWarpLanes;  // as ptxas spaces them
    }
    if (instruction.opcode == "HMMA" && !instruction.modifiers.empty() && has(instruction, "F16") &&
        !has(instruction, "F32")) {
        use.cycles = 4;
    }
    if (instruction.opcode == "LDS" || instruction.opcode == "STS") {
        use.cycles = kWavefront * (has(instruction, "128") ? 4 : has(instruction, "64") ? 2 : 1);
    }
    return use;
}

}  // namespace sm70emu
