// Where in the source an instruction comes from: the cubin's .debug_line, which ptxas writes with -lineinfo. DWARF 2,
// with NVIDIA's extension that says where an inlined function was called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sm70emu {

struct SourceLine {
    std::string file;  // as the compiler was given it: relative to the checkout for the package's own kernels
    uint32_t line = 0;
};

// The line of an instruction, then the lines that the functions around it were inlined at, the kernel's own last.
struct SourceLocation {
    std::vector<SourceLine> lines;  // empty: not known

    bool known() const { return !lines.empty(); }
    // "csrc/ops/x/y.cuh:12" of the innermost line; empty if not known.
    std::string text() const;
};

// Text section -> the location of each instruction. `sections` says which section the address at an offset of the
// table lies in (its relocations). A table that can't be read says nothing: lines are a help, no condition.
std::map<std::string, std::vector<SourceLocation>> read_source_lines(const std::vector<uint8_t>& table,
                                                                     const std::map<size_t, std::string>& sections);

}  // namespace sm70emu
