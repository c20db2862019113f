#include "emulator/api.h"

#include <algorithm>
#include <memory>
#include <string>

#include "emulator/api_errors.h"
#include "emulator/disassembler.h"
#include "emulator/error.h"
#include "emulator/module.h"
#include "emulator/observer.h"

struct sm70emu_module {
    sm70emu::Module module;
};

namespace {

using sm70emu::fail;
using sm70emu::guarded;

sm70emu::LaunchRequest convert(const sm70emu_launch_request& from) {
    if (from.struct_bytes != sizeof(sm70emu_launch_request)) fail("launch request of another interface version");
    if (from.tensor_rounding > SM70EMU_NEAREST) fail("unknown tensor rounding");
    sm70emu::LaunchRequest to;
    std::copy_n(from.grid, 3, to.grid);
    std::copy_n(from.block, 3, to.block);
    to.dynamic_shared_bytes = from.dynamic_shared_bytes;
    const auto* parameters = static_cast<const uint8_t*>(from.parameters);
    if (from.parameter_bytes) to.parameters.assign(parameters, parameters + from.parameter_bytes);
    for (uint64_t i = 0; i < from.buffer_count; ++i) {
        const sm70emu_buffer& b = from.buffers[i];
        to.buffers.push_back({b.name ? b.name : "", b.address, b.bytes, b.writable != 0});
    }
    to.sampled = from.sampled_blocks != nullptr;
    if (to.sampled) to.sampled_blocks.assign(from.sampled_blocks, from.sampled_blocks + from.sampled_block_count);
    to.seed = from.seed;
    to.instruction_limit = from.instruction_limit;
    to.threads = from.threads;
    to.tensor_rounding = sm70emu::TensorRounding(from.tensor_rounding);
    to.observer = reinterpret_cast<sm70emu::LaunchObserver*>(from.observer);
    return to;
}

}  // namespace

extern "C" {

const char* sm70emu_version(void) {
    return "1";
}

uint32_t sm70emu_abi_version(void) {
    return SM70EMU_ABI_VERSION;
}

sm70emu_module* sm70emu_module_load(const void* cubin, uint64_t cubin_bytes, const char* listing,
                                    uint64_t listing_bytes, char* error, uint64_t error_bytes) {
    std::unique_ptr<sm70emu_module> module;
    guarded(error, error_bytes, [&] {
        module.reset(new sm70emu_module{{static_cast<const uint8_t*>(cubin),
                                         static_cast<size_t>(cubin_bytes),
                                         {listing, static_cast<size_t>(listing_bytes)}}});
    });
    return module.release();
}

sm70emu_module* sm70emu_module_load_with_nvdisasm(const void* cubin, uint64_t cubin_bytes, const char* nvdisasm,
                                                  const char* cache_folder, char* error, uint64_t error_bytes) {
    std::unique_ptr<sm70emu_module> module;
    guarded(error, error_bytes, [&] {
        const auto* bytes = static_cast<const uint8_t*>(cubin);
        const std::string listing = sm70emu::listing_from_nvdisasm(bytes, static_cast<size_t>(cubin_bytes), nvdisasm,
                                                                   cache_folder ? cache_folder : "");
        module.reset(new sm70emu_module{{bytes, static_cast<size_t>(cubin_bytes), listing}});
    });
    return module.release();
}

void sm70emu_module_unload(sm70emu_module* module) {
    delete module;
}

int sm70emu_kernel_query(sm70emu_module* module, const char* kernel, sm70emu_kernel_info* info, char* error,
                         uint64_t error_bytes) {
    const bool ok = guarded(error, error_bytes, [&] {
        if (info->struct_bytes != sizeof(sm70emu_kernel_info)) fail("kernel info of another interface version");
        const auto& image = module->module.kernel(kernel);
        if (!image.refusal.empty()) fail(image.name + ": " + image.refusal);
        module->module.decoded(kernel);
        info->registers = image.registers;
        info->static_shared_bytes = image.static_shared_bytes;
        info->local_bytes = image.local_bytes;
        info->parameter_bytes = image.parameter_bytes;
        info->max_threads = image.max_threads;
    });
    return ok ? 0 : 1;
}

int sm70emu_symbol(sm70emu_module* module, const char* name, void** address, uint64_t* bytes, char* error,
                   uint64_t error_bytes) {
    const bool ok = guarded(error, error_bytes, [&] {
        const auto [where, size] = module->module.symbol(name);
        *address = where;
        *bytes = size;
    });
    return ok ? 0 : 1;
}

int sm70emu_launch(sm70emu_module* module, const sm70emu_launch_request* request, sm70emu_launch_result* result) {
    if (result->struct_bytes != sizeof(sm70emu_launch_result)) return 2;
    const bool ok = guarded(result->error, sizeof(result->error), [&] {
        const sm70emu::LaunchResult outcome = module->module.launch(request->kernel, convert(*request));
        result->warp_instructions = outcome.warp_instructions;
        result->blocks_run = outcome.blocks_run;
        result->blocks_total = outcome.blocks_total;
        result->seconds = outcome.seconds;
        if (!outcome.error.empty()) fail(outcome.error);
    });
    return ok ? 0 : 1;
}

}  // extern "C"
