// A loaded cubin: its kernels, decoded on first use, and its device globals, which live as long as the module.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/cubin.h"
#include "emulator/listing.h"
#include "emulator/opcodes.h"
#include "emulator/run_launch.h"

namespace sm70emu {

class Module {
 public:
    Module(const uint8_t* cubin, size_t cubin_bytes, std::string_view listing,
           InstructionSet instruction_set = InstructionSet::Best);

    const std::map<std::string, KernelImage>& kernels() const { return cubin_.kernels; }
    const KernelImage& kernel(const std::string& name) const;
    const ListedSection& section(const std::string& name) const;
    // Decodes the kernel, or throws with the first instruction that is not implemented.
    const DecodedKernel& decoded(const std::string& name);
    LaunchResult launch(const std::string& name, const LaunchRequest& request);
    // Host address and size of a __device__ or __constant__ variable; changes show in later launches.
    std::pair<uint8_t*, size_t> symbol(const std::string& name);

 private:
    void place_globals();

    Cubin cubin_;
    InstructionSet instruction_set_;
    std::map<std::string, ListedSection> sections_;
    std::map<std::string, DecodedKernel> decoded_;
    std::mutex mutex_;
    std::unique_ptr<uint8_t[]> globals_storage_;
    uint8_t* globals_ = nullptr;
    std::vector<GlobalBuffer> global_buffers_;
    std::vector<ExternalFunction> externals_;
};

}  // namespace sm70emu
