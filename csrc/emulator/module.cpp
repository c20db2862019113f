#include "emulator/module.h"

#include <cstring>

#include "emulator/error.h"

namespace sm70emu {
namespace {

constexpr size_t kGlobalAlignment = 256;
// Addresses that stand for driver functions; no host pointer looks like them.
constexpr uint64_t kExternalBase = 0x0300000000000000ull;

}  // namespace

Module::Module(const uint8_t* cubin, size_t cubin_bytes, std::string_view listing, InstructionSet instruction_set)
    : cubin_(parse_cubin(cubin, cubin_bytes)), instruction_set_(instruction_set), sections_(read_listing(listing)) {
    // A listing may leave kernels out; those cannot be launched. What it has must be this cubin's code, bit for bit.
    size_t listed = 0;
    for (const auto& [name, image] : cubin_.kernels) {
        const auto found = sections_.find(name);
        if (found == sections_.end()) continue;
        ++listed;
        const auto& instructions = found->second.instructions;
        if (instructions.size() * 16 != image.code.size()) {
            fail("the listing of " + name + " has a different length from the cubin's code");
        }
        for (const auto& instruction : instructions) {
            uint64_t words[2];
            std::memcpy(words, image.code.data() + instruction.offset, sizeof(words));
            if (words[0] != instruction.low || words[1] != instruction.high) {
                fail("the listing of " + name + " differs from the cubin's code at " + hex(instruction.offset));
            }
        }
    }
    if (listed == 0) fail("the listing has no kernel of this cubin");
    place_globals();
}

void Module::place_globals() {
    globals_storage_ = std::make_unique<uint8_t[]>(cubin_.globals.size() + kGlobalAlignment);
    const auto raw = reinterpret_cast<uintptr_t>(globals_storage_.get());
    globals_ = globals_storage_.get() + (kGlobalAlignment - raw % kGlobalAlignment) % kGlobalAlignment;
    if (!cubin_.globals.empty()) std::memcpy(globals_, cubin_.globals.data(), cubin_.globals.size());
    for (const auto& symbol : cubin_.symbols) {
        if (!symbol.is_constant) {
            global_buffers_.push_back({symbol.name,
                                       static_cast<uint64_t>(reinterpret_cast<uintptr_t>(globals_ + symbol.offset)),
                                       symbol.size, true});
        }
    }
    for (const auto& relocation : cubin_.relocations) {
        uint64_t address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(globals_)) + relocation.global_offset;
        if (!relocation.external.empty()) {
            address = kExternalBase + 16 * externals_.size();
            externals_.push_back({relocation.external, address});
        }
        uint8_t* target = relocation.in_constant4 ? cubin_.constant4.data() : globals_;
        const size_t limit = relocation.in_constant4 ? cubin_.constant4.size() : cubin_.globals.size();
        if (relocation.offset + 8 > limit) fail("relocation outside its section");
        std::memcpy(target + relocation.offset, &address, 8);
    }
}

const KernelImage& Module::kernel(const std::string& name) const {
    const auto found = cubin_.kernels.find(name);
    if (found != cubin_.kernels.end()) return found->second;
    std::string known;
    for (const auto& entry : cubin_.kernels) known += (known.empty() ? "" : ", ") + entry.first;
    fail("no kernel " + name + " in this cubin; it has " + known);
}

const ListedSection& Module::section(const std::string& name) const {
    kernel(name);
    const auto found = sections_.find(name);
    if (found == sections_.end()) fail("the listing has no kernel " + name);
    return found->second;
}

const DecodedKernel& Module::decoded(const std::string& name) {
    const KernelImage& image = kernel(name);
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = decoded_.find(name);
    if (found != decoded_.end()) return found->second;
    DecodedKernel kernel = decode_kernel(section(name), image.registers, instruction_set_);
    kernel.sources = image.sources;
    kernel.sources.resize(kernel.instructions.size());
    return decoded_.emplace(name, std::move(kernel)).first->second;
}

LaunchResult Module::launch(const std::string& name, const LaunchRequest& request) {
    LoadedKernel loaded;
    try {
        loaded.image = &kernel(name);
        loaded.decoded = &decoded(name);
        loaded.section = &section(name);
    } catch (const EmulatorError& error) {
        LaunchResult result;
        result.error = error.what();
        return result;
    }
    loaded.constant3 = &cubin_.constant3;
    loaded.constant4 = &cubin_.constant4;
    loaded.globals = &global_buffers_;
    loaded.externals = &externals_;
    return run_launch(loaded, request);
}

std::pair<uint8_t*, size_t> Module::symbol(const std::string& name) {
    for (const auto& symbol : cubin_.symbols) {
        if (symbol.name == name) {
            return {(symbol.is_constant ? cubin_.constant3.data() : globals_) + symbol.offset, symbol.size};
        }
    }
    fail("no variable " + name + " in this cubin");
}

}  // namespace sm70emu
