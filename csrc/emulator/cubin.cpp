#include "emulator/cubin.h"

#include <elf.h>

#include <algorithm>
#include <cstring>

#include "emulator/error.h"

namespace sm70emu {
namespace {

// Attributes of .nv.info sections, by their number in the file (names as printed by cuobjdump -elf).
enum InfoAttribute : uint8_t {
    kMaxThreads = 0x05,
    kParamCbank = 0x0a,
    kFrameSize = 0x11,
    kMinStackSize = 0x12,
    kKparamInfo = 0x17,
    kCbankParamSize = 0x19,
    kRegcount = 0x2f,
};

constexpr uint32_t kRelocation64 = 2;  // R_CUDA_64: a full address
constexpr uint16_t kMachineCuda = 190;
constexpr uint32_t kDefaultStackBytes = 1024;  // the driver's default, for kernels whose stack use is not known

struct Section {
    std::string name;
    Elf64_Shdr header;
    const uint8_t* data;  // null for NOBITS
};

template <class T>
T read_at(const uint8_t* p) {
    T value;
    std::memcpy(&value, p, sizeof(T));
    return value;
}

class Reader {
 public:
    Reader(const uint8_t* data, size_t size) : data_(data), size_(size) {
        if (size < sizeof(Elf64_Ehdr) || std::memcmp(data, ELFMAG, SELFMAG) != 0) fail("not an ELF file");
        const auto header = read_at<Elf64_Ehdr>(data);
        if (header.e_machine != kMachineCuda) {
            fail("not a CUDA cubin (ELF machine " + std::to_string(header.e_machine) + ")");
        }
        const uint32_t architecture = header.e_flags & 0xff;
        if (architecture != 70) fail("cubin is for sm_" + std::to_string(architecture) + ", the emulator runs sm_70");
        if (header.e_shoff + static_cast<uint64_t>(header.e_shnum) * sizeof(Elf64_Shdr) > size) {
            fail("cubin is truncated");
        }
        std::vector<Elf64_Shdr> headers(header.e_shnum);
        if (!headers.empty()) std::memcpy(headers.data(), data + header.e_shoff, headers.size() * sizeof(Elf64_Shdr));
        if (header.e_shstrndx >= headers.size()) fail("cubin has no section names");
        for (const auto& h : headers) {
            const bool has_data = h.sh_type != SHT_NOBITS && h.sh_type != SHT_NULL;
            if (has_data && (h.sh_offset > size || h.sh_size > size - h.sh_offset)) fail("cubin is truncated");
            sections_.push_back(
                {string_at(headers[header.e_shstrndx], h.sh_name), h, has_data ? data + h.sh_offset : nullptr});
        }
        for (size_t i = 0; i < sections_.size(); ++i) {
            if (sections_[i].header.sh_type == SHT_SYMTAB) symtab_ = i;
        }
    }

    const std::vector<Section>& sections() const { return sections_; }

    const Section* find(const std::string& name) const {
        for (const auto& s : sections_) {
            if (s.name == name) return &s;
        }
        return nullptr;
    }

    std::vector<uint8_t> contents(const std::string& name) const {
        const Section* s = find(name);
        if (!s || !s->data) return {};
        return {s->data, s->data + s->header.sh_size};
    }

    Elf64_Sym symbol(uint32_t index) const {
        const auto& table = sections_.at(symtab_);
        if ((index + 1) * sizeof(Elf64_Sym) > table.header.sh_size) fail("cubin names a symbol that does not exist");
        return read_at<Elf64_Sym>(table.data + index * sizeof(Elf64_Sym));
    }

    uint32_t symbol_count() const {
        return symtab_ ? static_cast<uint32_t>(sections_[symtab_].header.sh_size / sizeof(Elf64_Sym)) : 0;
    }

    std::string symbol_name(const Elf64_Sym& symbol) const {
        return string_at(sections_.at(sections_[symtab_].header.sh_link).header, symbol.st_name);
    }

 private:
    std::string string_at(const Elf64_Shdr& table, uint64_t offset) const {
        if (offset >= table.sh_size || table.sh_offset > size_ || table.sh_size > size_ - table.sh_offset) return {};
        const char* begin = reinterpret_cast<const char*>(data_ + table.sh_offset + offset);
        return {begin, strnlen(begin, table.sh_size - offset)};
    }

    const uint8_t* data_;
    size_t size_;
    std::vector<Section> sections_;
    size_t symtab_ = 0;
};

// Calls visit(attribute, payload, payload size) for each record of a .nv.info section.
template <class Visit>
void for_each_attribute(const std::vector<uint8_t>& info, Visit visit) {
    size_t at = 0;
    while (at + 4 <= info.size()) {
        const uint8_t format = info[at], attribute = info[at + 1];
        const auto word = read_at<uint16_t>(&info[at + 2]);
        at += 4;
        if (format == 0x04) {  // sized value
            if (at + word > info.size()) fail("truncated .nv.info record");
            visit(attribute, info.data() + at, static_cast<size_t>(word));
            at += word;
        } else {
            visit(attribute, reinterpret_cast<const uint8_t*>(&word), sizeof(word));
        }
    }
}

void read_kernel_info(const Reader& reader, KernelImage& kernel) {
    for_each_attribute(reader.contents(".nv.info." + kernel.name), [&](uint8_t attribute, const uint8_t* p, size_t n) {
        if (attribute == kKparamInfo && n >= 12) {
            const uint32_t packed = read_at<uint32_t>(p + 8);
            kernel.parameters.push_back({read_at<uint16_t>(p + 4), read_at<uint16_t>(p + 6), packed >> 18});
        } else if (attribute == kParamCbank && n >= 8) {
            kernel.parameter_offset = read_at<uint16_t>(p + 4);
            kernel.parameter_bytes = read_at<uint16_t>(p + 6);
        } else if (attribute == kMaxThreads && n >= 12) {
            kernel.max_threads = read_at<uint32_t>(p) * read_at<uint32_t>(p + 4) * read_at<uint32_t>(p + 8);
        }
    });
    std::sort(kernel.parameters.begin(), kernel.parameters.end(),
              [](const auto& a, const auto& b) { return a.ordinal < b.ordinal; });
    if (kernel.parameter_offset != kParameterBase) kernel.refusal = "parameters do not start at c[0x0][0x160]";
}

void read_resource_info(const Reader& reader, Cubin& cubin) {
    struct Stack {
        uint32_t own = 0, total = 0, callee = 0;
    };
    std::map<std::string, Stack> stacks;
    for_each_attribute(reader.contents(".nv.info"), [&](uint8_t attribute, const uint8_t* p, size_t n) {
        if (n < 8 || (attribute != kRegcount && attribute != kFrameSize && attribute != kMinStackSize)) return;
        const Elf64_Sym symbol = reader.symbol(read_at<uint32_t>(p));
        if (symbol.st_shndx >= reader.sections().size()) return;
        const auto value = read_at<uint32_t>(p + 4);
        const std::string section = reader.sections()[symbol.st_shndx].name, name = reader.symbol_name(symbol);
        const auto found =
            section.rfind(".text.", 0) == 0 ? cubin.kernels.find(section.substr(6)) : cubin.kernels.end();
        if (found == cubin.kernels.end()) return;
        Stack& stack = stacks[found->first];
        const bool is_kernel = name == found->first;
        if (attribute == kRegcount && is_kernel) found->second.registers = value;
        if (attribute == kFrameSize) {
            (is_kernel ? stack.own : stack.callee) = std::max(is_kernel ? stack.own : stack.callee, value);
        }
        if (attribute == kMinStackSize && is_kernel) stack.total = value;
    });
    for (auto& [name, kernel] : cubin.kernels) {
        const Stack& stack = stacks[name];
        uint32_t bytes = std::max(stack.total, stack.own);
        // A callee's frame missing from the total means recursion or a call through a pointer: no bound is known.
        if (bytes < stack.own + stack.callee) bytes += kDefaultStackBytes;
        kernel.local_bytes = (bytes + 15) / 16 * 16;
    }
}

void read_globals(const Reader& reader, Cubin& cubin) {
    cubin.constant3 = reader.contents(".nv.constant3");
    cubin.constant4 = reader.contents(".nv.constant4");
    cubin.globals = reader.contents(".nv.global.init");
    const size_t zeroed_at = (cubin.globals.size() + 255) / 256 * 256;
    const Section* zeroed = reader.find(".nv.global");
    cubin.globals.resize(zeroed_at + (zeroed ? zeroed->header.sh_size : 0));

    // Where a symbol lives in Cubin::globals; false for symbols of other sections.
    const auto place = [&](const Elf64_Sym& symbol, size_t& offset) {
        if (symbol.st_shndx >= reader.sections().size()) return false;
        const std::string& section = reader.sections()[symbol.st_shndx].name;
        if (section == ".nv.global.init") {
            offset = symbol.st_value;
        } else if (section == ".nv.global") {
            offset = zeroed_at + symbol.st_value;
        } else {
            return false;
        }
        return true;
    };
    for (uint32_t i = 0; i < reader.symbol_count(); ++i) {
        const auto symbol = reader.symbol(i);
        if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT) continue;
        size_t offset = 0;
        if (place(symbol, offset)) {
            cubin.symbols.push_back({reader.symbol_name(symbol), offset, symbol.st_size, false});
        } else if (symbol.st_shndx < reader.sections().size() &&
                   reader.sections()[symbol.st_shndx].name == ".nv.constant3") {
            cubin.symbols.push_back({reader.symbol_name(symbol), symbol.st_value, symbol.st_size, true});
        }
    }

    for (const auto& s : reader.sections()) {
        const bool with_addend = s.header.sh_type == SHT_RELA;
        if (s.header.sh_type != SHT_REL && !with_addend) continue;
        if (s.header.sh_info >= reader.sections().size()) continue;
        const std::string& target = reader.sections()[s.header.sh_info].name;
        const bool is_data = target == ".nv.constant4" || target == ".nv.global.init";
        const bool is_code = target.rfind(".text.", 0) == 0;
        if (!is_data && !is_code) continue;
        const size_t entry = with_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
        for (size_t at = 0; at + entry <= s.header.sh_size; at += entry) {
            Elf64_Rela r{};
            std::memcpy(&r, s.data + at, entry);
            if (is_code) {
                // The linker resolves what it can; a relocation left in code names something a driver would provide.
                const auto found = cubin.kernels.find(target.substr(6));
                if (found != cubin.kernels.end()) {
                    found->second.refusal = "code refers to " +
                                            reader.symbol_name(reader.symbol(ELF64_R_SYM(r.r_info))) +
                                            ", which a loader would have to provide";
                }
                continue;
            }
            size_t offset = 0;
            const auto symbol = reader.symbol(ELF64_R_SYM(r.r_info));
            const std::string name = reader.symbol_name(symbol);
            if (ELF64_R_TYPE(r.r_info) != kRelocation64) {
                fail("unsupported relocation in " + target + " against " + name);
            }
            const bool in_constant4 = target == ".nv.constant4";
            if (place(symbol, offset)) {
                cubin.relocations.push_back({in_constant4, r.r_offset, offset + static_cast<size_t>(r.r_addend), {}});
            } else if (symbol.st_shndx == SHN_UNDEF) {
                cubin.relocations.push_back({in_constant4, r.r_offset, 0, name});
            } else {
                fail("unsupported relocation in " + target + " against " + name);
            }
        }
    }
}

void read_lines(const Reader& reader, Cubin& cubin) {
    // The addresses in the table are relocated against the kernels' sections.
    std::map<size_t, std::string> targets;
    for (const auto& s : reader.sections()) {
        const bool with_addend = s.header.sh_type == SHT_RELA;
        if (s.name != (with_addend ? ".rela.debug_line" : ".rel.debug_line") || !s.data) continue;
        const size_t entry = with_addend ? sizeof(Elf64_Rela) : sizeof(Elf64_Rel);
        for (size_t at = 0; at + entry <= s.header.sh_size; at += entry) {
            const auto relocation = read_at<Elf64_Rel>(s.data + at);
            const uint16_t section = reader.symbol(ELF64_R_SYM(relocation.r_info)).st_shndx;
            if (section < reader.sections().size()) targets[relocation.r_offset] = reader.sections()[section].name;
        }
    }
    for (auto& [section, sources] : read_source_lines(reader.contents(".debug_line"), targets)) {
        const auto kernel =
            section.rfind(".text.", 0) == 0 ? cubin.kernels.find(section.substr(6)) : cubin.kernels.end();
        if (kernel != cubin.kernels.end()) kernel->second.sources = std::move(sources);
    }
}

}  // namespace

Cubin parse_cubin(const uint8_t* data, size_t size) {
    const Reader reader(data, size);
    Cubin cubin;
    const std::string prefix = ".text.";
    for (const auto& s : reader.sections()) {
        if (s.name.rfind(prefix, 0) != 0 || !s.data) continue;
        KernelImage kernel;
        kernel.name = s.name.substr(prefix.size());
        if (!reader.find(".nv.info." + kernel.name)) continue;
        kernel.code.assign(s.data, s.data + s.header.sh_size);
        kernel.constant2 = reader.contents(".nv.constant2." + kernel.name);
        if (const Section* shared = reader.find(".nv.shared." + kernel.name)) {
            kernel.static_shared_bytes = static_cast<uint32_t>(shared->header.sh_size);
        }
        read_kernel_info(reader, kernel);
        cubin.kernels.emplace(kernel.name, std::move(kernel));
    }
    if (cubin.kernels.empty()) fail("cubin holds no kernel");
    read_resource_info(reader, cubin);
    read_globals(reader, cubin);
    read_lines(reader, cubin);
    return cubin;
}

}  // namespace sm70emu
