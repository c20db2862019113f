// What a launch needs from a cubin (an ELF file of machine 190): kernels, their parameters and resources, constant
// banks and device globals. Anything that would need a loader feature not built here is refused, not ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emulator/source_lines.h"

namespace sm70emu {

struct KernelParameter {
    uint32_t ordinal = 0;
    uint32_t offset = 0;  // from the start of the parameter block at c[0x0][0x160]
    uint32_t size = 0;
};

struct KernelImage {
    std::string name;
    uint32_t registers = 0;
    uint32_t static_shared_bytes = 0;
    uint32_t local_bytes = 0;  // stack per thread, known call graph included
    uint32_t parameter_offset = 0x160;
    uint32_t parameter_bytes = 0;
    uint32_t max_threads = 0;  // 0: not declared
    std::vector<KernelParameter> parameters;
    std::vector<uint8_t> code;
    std::vector<uint8_t> constant2;
    std::vector<SourceLocation> sources;  // by instruction; may be shorter than the code
    std::string refusal;                  // why this kernel cannot be loaded; empty if it can
};

// A store address into constant bank 4 (or into an initialised global) that holds a device global's address.
struct AddressRelocation {
    bool in_constant4 = true;
    size_t offset = 0;
    size_t global_offset = 0;  // within Cubin::globals
    std::string external;      // not empty: a function the driver would provide instead
};

struct GlobalSymbol {
    std::string name;
    size_t offset = 0;  // within Cubin::globals, or within constant3 if is_constant
    size_t size = 0;
    bool is_constant = false;
};

struct Cubin {
    std::map<std::string, KernelImage> kernels;
    std::vector<uint8_t> constant3;
    std::vector<uint8_t> constant4;
    std::vector<uint8_t> globals;  // .nv.global.init followed by .nv.global
    std::vector<GlobalSymbol> symbols;
    std::vector<AddressRelocation> relocations;
};

constexpr uint32_t kParameterBase = 0x160;

Cubin parse_cubin(const uint8_t* data, size_t size);

}  // namespace sm70emu
